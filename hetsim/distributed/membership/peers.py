"""Read entries of other processes in a run's store. They are checked like input, because any process that reaches the store can write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from hetsim import checks
from hetsim.errors import RunFailed

T = TypeVar("T")
MAX_RANKS = 10**6
"""The maximum number of processes of a run on all hosts."""
WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


def of_peer(store: Any, key: str, read: Callable[[Any], T]) -> T:
    """The value of a key in JSON, converted by `read`. Raises RunFailed for an invalid value."""
    text = store.get(key)
    try:
        return read(json.loads(text))
    except WRONG:
        shown = checks.one_line(text.decode(errors="replace")[: checks.MAX_SHOWN])
        raise RunFailed(
            f"the run's store has {shown!r} at {key!r}, which hetsim does not write: "
            "give --master an address that no other program reaches, and call hetsim-launch again"
        ) from None


def moment(value: Any) -> float:
    """A finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no moment")
    return float(value)


def later(value: Any) -> float:
    """A number of seconds, or infinity for never."""
    return math.inf if value == math.inf else moment(value)


def rank_number(value: Any) -> int:
    """The number of a rank, or its number of earlier starts."""
    return checks.whole("a rank", value, least=0, most=MAX_RANKS)


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


def listed(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError("no list")
    return value
