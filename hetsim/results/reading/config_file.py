"""The resolved config in the folder of a finished run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from hetsim.results.reading.keys import with_added
from hetsim.results.reading.run_files import REMEDY, brief, is_text, read_text, shown

MAX_DEPTH = 50
"""How deeply mappings and lists may be nested: libyaml itself overflows its stack."""
MAX_BYTES = 10**7
"""The length of the file: a cluster of 50,000 nodes, each described by itself."""
MAX_UNQUOTED = 10_000
"""The length of a text that is unquoted or has a tag: to read a longer one as a number would take for ever."""
MAX_LONG_NUMBERS = 100
"""Whole numbers of twenty digits and more: as keys of one mapping, thousands with equal hashes would take for ever."""
MAX_BITS = 1023
"""The size of a whole number: it can be made a float."""

SEED = re.compile(r"^seed: (0|[1-9]\d{0,17})$", re.MULTILINE)
HEADER = re.compile(r"\A(?:#.*\n)*")
SIMPLE = re.compile(r"(?:(?:#.*| *(?:- )*\w[\w.]*:(?: (?:[\w.+/-]+|'[^'\n]*'|\[\]|\{\}))?| *(?:- )+[\w.+/-]+)\n)*")
"""A text in which each line is a comment, or a key or an entry with a value that ends there: no value goes over the line of the seed."""

UNREADABLE = (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""What PyYAML raises: its own errors, and others where a tag does not fit its text, as in `!!int ''`."""


def read_config(run: Path) -> dict[str, Any]:
    """The resolved config of a run, with the keys that were added since; empty if it is not there."""
    path = run / "config.yaml"
    if not path.exists():
        return {}
    text = read_text(path, max_bytes=MAX_BYTES)
    seed = SEED.search(text) if SIMPLE.fullmatch(text) and f"\n{text}".count("\nseed") == 1 else None
    if seed is None:
        return _loaded(path, text)
    own = len(text) - len(HEADER.sub("", text, count=1))  # the identity of the run, and what was typed for it
    shared = _loaded_once(f"{text[own : seed.start(1)]}0{text[seed.end(1) :]}")
    return {key: int(seed[1]) if key == "seed" else value for key, value in (_loaded(path, text) if shared is None else shared).items()}


def parsed(path: Path, text: str) -> dict[str, Any]:
    """The resolved config that a file has as a text; ValueError with one sentence if it is none."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"{path} has a config of {len(text)} letters, as no run has: {REMEDY}")
    return _loaded(path, text)


@lru_cache(maxsize=1000)
def _loaded_once(text: str) -> dict[str, Any] | None:
    """The config of runs that differ in their seeds; None if it cannot be read, for which a sentence names the file of each."""
    try:
        return _loaded(Path(), text)
    except ValueError:
        return None


def _loaded(path: Path, text: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        problem = _problem(yaml.parse(text, loader))
        loaded = None if problem else yaml.load(text, loader)
    except UNREADABLE as error:
        raise ValueError(f"{path}{_place(error)} cannot be read as YAML ({_reason(error)}): {REMEDY}") from None
    if problem or not isinstance(loaded, Mapping):
        raise ValueError(f"{path} {problem or f'must hold a mapping, not {shown(loaded)}'}: {REMEDY}")
    check_leaves(path, loaded)
    return with_added(loaded)


def check_leaves(path: Path, config: Any) -> None:
    """ValueError with one sentence for a value that no config has."""
    for value in _leaves(config):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ValueError(f"{path} holds a whole number of {value.bit_length()} bits, which no float can hold: {REMEDY}")
        if isinstance(value, str) and not is_text(value):
            raise ValueError(f"{path} holds {shown(value)}, which is not text: {REMEDY}")


def _leaves(value: Any) -> Iterator[Any]:
    """Every key and every value that holds no others."""
    if isinstance(value, Mapping | list | tuple | set):
        for part in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def _problem(events: Iterator[yaml.Event]) -> str:
    """What in these events hetsim does not write, and what would take memory or time beyond all bounds to load."""
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
    """Whether it is a whole number of twenty digits or more."""
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
