"""The resolved config in the folder of a finished run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from hetsim.files.reading import REMEDY, brief, is_text, read_text, shown

MAX_DEPTH = 50
"""The maximum depth of nested mappings and lists. Deeper nesting overflows libyaml's stack."""
MAX_BYTES = 10**7
"""The maximum length of the file, enough for a cluster of 50,000 individually described nodes."""
MAX_UNQUOTED = 10_000
"""The maximum length of a text that is unquoted or has a tag. Reading a longer one as a number would take too long."""
MAX_LONG_NUMBERS = 100
"""The maximum count of whole numbers with twenty digits or more. As keys, thousands with equal hashes would take too long."""
MAX_BITS = 1023
"""The maximum size of a whole number, so that it can become a float."""

SEED = re.compile(r"^seed: (0|[1-9]\d{0,17})$", re.MULTILINE)
HEADER = re.compile(r"\A(?:#.*\n)*")
SIMPLE = re.compile(r"(?:(?:#.*| *(?:- )*\w[\w.]*:(?: (?:[\w.+/-]+|'[^'\n]*'|\[\]|\{\}))?| *(?:- )+[\w.+/-]+)\n)*")
"""A text in which each line is a comment, or a key or an entry with a value that ends on the line. So no value spans the seed's line."""

UNREADABLE = (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""The errors that PyYAML raises: its own, and others for a tag that does not fit its text, as in `!!int ''`."""


def read_config(run: Path) -> dict[str, Any]:
    """The resolved config of a run. Empty if the file is missing."""
    path = run / "config.yaml"
    if not path.exists():
        return {}
    text = read_text(path, max_bytes=MAX_BYTES)
    seed = SEED.search(text) if SIMPLE.fullmatch(text) and f"\n{text}".count("\nseed") == 1 else None
    if seed is None:
        return _load(path, text)
    header_length = len(text) - len(HEADER.sub("", text, count=1))  # the identity of the run, and what was typed for it
    shared = _load_once(f"{text[header_length : seed.start(1)]}0{text[seed.end(1) :]}")
    return {key: int(seed[1]) if key == "seed" else value for key, value in (_load(path, text) if shared is None else shared).items()}


def parsed(path: Path, text: str) -> dict[str, Any]:
    """The resolved config in a file's text. Raises ValueError for an invalid config."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} has a config of {len(text)} letters, as no run has: {REMEDY}")
    return _load(path, text)


@lru_cache(maxsize=1000)
def _load_once(text: str) -> dict[str, Any] | None:
    """The config of runs that differ only in their seeds. None if it is unreadable; the caller then reports each file by name."""
    try:
        return _load(Path(), text)
    except ValueError:
        return None


def _load(path: Path, text: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        problem = _problem(yaml.parse(text, loader))
        loaded = None if problem else yaml.load(text, loader)
    except UNREADABLE as error:
        raise ValueError(f"{path}{_place(error)} cannot be read as YAML ({_reason(error)}): {REMEDY}") from None
    if problem or not isinstance(loaded, Mapping):
        raise ValueError(f"{path} {problem or f'must hold a mapping, not {shown(loaded)}'}: {REMEDY}")
    check_leaves(path, loaded)
    return dict(loaded)


def check_leaves(path: Path, config: Any) -> None:
    """Raise ValueError for a value that no config has."""
    for value in _leaves(config):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ValueError(f"{path} holds a whole number of {value.bit_length()} bits, which no float can hold: {REMEDY}")
        if isinstance(value, str) and not is_text(value):
            raise ValueError(f"{path} holds {shown(value)}, which is not text: {REMEDY}")


def _leaves(value: Any) -> Iterator[Any]:
    """Every key, and every value that contains no other values."""
    if isinstance(value, Mapping | list | tuple | set):
        for part in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def _problem(events: Iterator[yaml.Event]) -> str:
    """Describe the part of these events that hetsim never writes, or that would take excessive memory or time to load."""
    depth = num_long = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return f"has an alias, *{event.anchor}, in line {event.start_mark.line + 1}, where the value itself belongs"
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} deep"
        num_long += is_long_number(event)
        if num_long > MAX_LONG_NUMBERS:
            return f"has more than {MAX_LONG_NUMBERS} numbers of twenty digits and more"
        if isinstance(event, yaml.ScalarEvent) and (not event.style or event.tag) and len(event.value) > MAX_UNQUOTED:
            return f"has an unquoted or tagged text of {len(event.value)} letters in line {event.start_mark.line + 1}"
    return ""


def is_long_number(event: yaml.Event) -> bool:
    """Whether the event is a whole number of twenty digits or more."""
    if not isinstance(event, yaml.ScalarEvent) or (event.style and not event.tag):
        return False
    return re.fullmatch(r"[-+]?[0-9][0-9_a-fA-FxXoO:]{19,}", event.value) is not None


def _place(error: BaseException) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _reason(error: BaseException) -> str:
    problem = getattr(error, "problem", None)
    return brief(error) if problem is None else brief(ValueError(problem))


def flattened(entry: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a config at any depth, with its dotted key."""
    if isinstance(entry, Mapping) and entry:
        for name, value in entry.items():
            yield from flattened(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, entry
