"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path


def unfinished(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(f".{path.name}.unfinished")
