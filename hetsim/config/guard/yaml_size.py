"""Check the size of a YAML file's content, because a few lines of aliases can exceed any memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

import yaml

from hetsim.files.config_file import MAX_LONG_NUMBERS, is_long_number

MAX_NODES = 1_000_000
"""The maximum number of keys and values, with aliases written out: enough for 50,000 individually described nodes."""
MAX_DEPTH = 50
"""The maximum depth of nested mappings and lists. Deeper nesting overflows libyaml's stack."""
MAX_UNQUOTED = 10_000
"""The maximum length of a text that is unquoted or has a tag. Reading a longer one as a number would take too long."""


def check_size(file: Path) -> None:
    """Raise ValueError if reading the file would take excessive memory or time, and yaml.YAMLError if it is no YAML."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a file that can be read: move it away")  # a pipe or a terminal would be waited for
    with contextlib.suppress(OSError, UnicodeDecodeError), file.open(encoding="utf-8") as text:
        _check(file, yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _check(file: Path, events: object) -> None:
    sizes: list[tuple[str | None, int]] = [(None, 0)]
    anchors: dict[str, int] = {}
    num_long = 0
    for event in events:  # type: ignore[attr-defined]
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = sizes.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
            num_long += is_long_number(event)
            if num_long > MAX_LONG_NUMBERS:
                raise ValueError(f"{file} has more than {MAX_LONG_NUMBERS} numbers of twenty digits and more: shorten them")
            if (not event.style or event.tag) and len(event.value) > MAX_UNQUOTED:
                raise ValueError(
                    f"{file}, line {event.start_mark.line + 1} has an unquoted or tagged text of {len(event.value)} letters: quote it"
                )
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, anchors.get(event.anchor, 1)
        if not size:
            if len(sizes) > MAX_DEPTH:
                raise ValueError(f"{file}, line {event.start_mark.line + 1} is nested more than {MAX_DEPTH} deep: make it flatter")
            continue
        if anchor is not None:
            anchors[anchor] = size
        outer, so_far = sizes[-1]
        sizes[-1] = outer, so_far + size
        if so_far + size > MAX_NODES:
            where = f"{file}, line {event.start_mark.line + 1}"
            raise ValueError(f"{where}: more than {MAX_NODES} keys and values, with aliases written out: shorten it")
