"""Write values as command-line arguments, in Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override, Quote, QuotedString

from hetsim import checks

PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_][\w.-]*", re.IGNORECASE | re.ASCII)
"""A text that needs no quotes."""


def as_typed(value: Any) -> str:
    """The text that a user would type for this value. Raises ValueError if no text can express it."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return str(Override._get_value_element_as_str(_quoted(value)))


def words_for(keys: Mapping[str, Any]) -> list[str]:
    """The arguments that give each key its value. A mapping gives values to the keys below its key."""
    return [word for key, value in keys.items() for word in _words(key, value, "++" if isinstance(value, Mapping) else "")]


def _words(key: str, value: Any, adds: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _words(f"{key}.{name}", part, adds)
    else:
        yield f"{adds}{key}={as_typed(value)}"


def _quoted(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return QuotedString(value, Quote.single)
    if isinstance(value, dict):
        return {str(key): _quoted(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(part) for part in value]
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError(f"{checks.shown(value)} is not a value of a config: give a number, a text, true, false, null, a list or a mapping")


def quoted(text: str) -> str:
    """A text in quotes, in Hydra's grammar. Backslashes are literal, except before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text) + "'"
