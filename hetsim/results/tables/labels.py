"""The labels of a table's rows: the keys in which their configs differ, with readable values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetsim.checks import printable
from hetsim.files.config_file import flattened
from hetsim.files.keys import VARY_IN_A_ROW, is_one_of
from hetsim.trust.shipped import choice

MAX_LETTERS = 44
"""The maximum length of a label."""


def distinguishing_keys(configs: Sequence[Mapping[str, Any]], typed: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """For each config, the keys that distinguish it from the others, with its values.

    These are the typed keys that vary. Other keys are added only if the typed ones are not enough, because a method changes dozens of keys
    and the user knows it by `method=`.
    """
    columns = _typed_columns(configs, typed)
    _add_columns(columns, configs)
    if not columns:
        columns["method"] = [str(config.get("method")) for config in configs]
    shown = {printable(key): [printable(value) for value in values] for key, values in columns.items()}  # they may be a stranger's
    return [dict(zip(shown, values, strict=True)) for values in zip(*shown.values(), strict=True)]


def _typed_columns(configs: Sequence[Mapping[str, Any]], typed: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The columns of typed keys that vary, the method first."""
    keys = [key for key in dict.fromkeys(key for overrides in typed for key in overrides) if not is_one_of(key, VARY_IN_A_ROW)]
    columns = {}
    for key in ["method", *(key for key in keys if key != "method")]:
        values = [_part(config, key) for config in configs]
        if len({repr(value) for value in values}) > 1 or (values[0] is None and len({overrides.get(key) for overrides in typed}) > 1):
            columns[key] = (
                _quantities([overrides.get(key) for overrides in typed], values)
                or _brief(values)
                or [_typed_text(key, overrides.get(key), value) for overrides, value in zip(typed, values, strict=True)]
            )
    return columns


def _add_columns(columns: dict[str, list[str]], configs: Sequence[Mapping[str, Any]]) -> None:
    """Add columns of other keys, the least nested first, until no two configs look the same or no key distinguishes them."""
    flat = [dict(flattened(config)) for config in configs]
    for key in sorted({key for entry in flat for key in entry}, key=lambda key: (key.count("."), key)):
        if _num_distinct(columns) == len(flat):
            return
        column = [value_text(entry.get(key)) for entry in flat]
        if _num_distinct({**columns, key: column}) > _num_distinct(columns):
            columns.update(_choices(configs, key, column) or {key: column})


def _choices(configs: Sequence[Mapping[str, Any]], key: str, column: Sequence[str]) -> dict[str, list[str]]:
    """The column of a group's choices instead of class names, if it distinguishes as many configs; else empty."""
    group, _, name = key.rpartition(".")
    values = [_part(config, group) for config in configs]
    if name != "_target_" or "." in group or not all(isinstance(value, Mapping) for value in values):
        return {}
    named = [choice(group, value) for value in values]
    return {group: named} if len(set(named)) == len(set(column)) else {}


def _num_distinct(columns: Mapping[str, Sequence[str]]) -> int:
    return len(set(zip(*columns.values(), strict=True))) if columns else 1


def _part(config: Mapping[str, Any], key: str) -> Any:
    part: Any = config
    for name in key.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def _typed_text(key: str, override: str | None, part: Any) -> str:
    """The override if it was typed and the value is a group or unknown. A group that was not typed is named by its choice."""
    if isinstance(part, Mapping | list):
        default = choice(key, part) if isinstance(part, Mapping) else part
        return value_text(default) if override is None else override
    return (override or "") if part is None else value_text(part)


def _quantities(overrides: Sequence[str | None], values: Sequence[Any]) -> list[str]:
    """Quantities as typed, such as 10 Gbit/s, if one of them has a unit; else empty. The config contains them in SI units."""
    texts = ["" if override is None else override.strip("'\"") for override in overrides]
    units = [
        isinstance(value, int | float) and text[:1].isdigit() and text[-1:].isalpha() for text, value in zip(texts, values, strict=True)
    ]
    return [text or value_text(value) for text, value in zip(texts, values, strict=True)] if any(units) else []


def _brief(values: Sequence[Any]) -> list[str]:
    """Numbers with six digits, if these distinguish them; else empty."""
    brief = [f"{value:.6g}" for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return brief if len(brief) == len(values) and len(set(brief)) == len({*values}) else []


def value_text(part: Any) -> str:
    """The value as a user would type it."""
    if part is None or isinstance(part, bool):
        return {None: "null", True: "true", False: "false"}[part]
    return " ".join(str(part).split())


def label(keys: Mapping[str, str]) -> str:
    """Keys and values as one line of bounded length. A method needs no key."""
    return short_text(", ".join(value if key == "method" else f"{key}={value}" for key, value in keys.items() if value))


def short_text(text: str) -> str:
    """The text with at most MAX_LETTERS. A longer text keeps its beginning and its end."""
    half = MAX_LETTERS // 2
    return text if len(text) <= MAX_LETTERS else f"{text[:half]}…{text[-(MAX_LETTERS - half - 1) :]}"
