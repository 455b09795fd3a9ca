"""Check the file of a report."""

from __future__ import annotations

from pathlib import Path

from hetsim.checks import printable
from hetsim.files.reading import check_is_no_link


def check_place(file: Path, option: str, ending: str) -> None:
    """Raise ValueError if the file of this option has another ending, or cannot be written."""
    if file.suffix.lower() != ending:
        raise ValueError(f"{option} {printable(str(file))} must end in {ending}")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{option} {printable(str(file))} is in no folder that exists: make it")
    check_is_no_link(file)
