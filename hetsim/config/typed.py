"""Values as words of a command line, in Hydra's grammar."""

from __future__ import annotations

import re
from typing import Any

from hydra.core.override_parser.types import Override, Quote, QuotedString

from hetsim import checks

PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_][\w.-]*", re.IGNORECASE | re.ASCII)
"""A text that needs no quotes."""


def as_typed(value: Any) -> str:
    """What one would type for this value; ValueError with one sentence if there is nothing that means it."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return str(Override._get_value_element_as_str(_quoted(value)))


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
    raise ValueError(f"{checks.shown(value)} is no value of a config: give a number, a text, true, false, null, a list or a mapping")
