"""Atomic writes: a file is written completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def unfinished(path: Path) -> Path:
    """The temporary name of a file while it is written."""
    return path.with_name(f".{path.name}.unfinished")


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The path to write to. It is renamed to `path` at the end of the block, and removed if the block raises."""
    try:
        yield unfinished(path)
        os.replace(unfinished(path), path)
    finally:
        unfinished(path).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write the text atomically: all of it, or the file stays as it was."""
    with written_whole(path) as whole:
        whole.write_text(text, encoding="utf-8")
