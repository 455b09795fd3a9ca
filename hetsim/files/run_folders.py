"""The folders of finished runs below a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

SUMMARY = "summary.json"
"""The file of a finished run."""
ERROR = "error.txt"
"""The file of a run that failed."""


class RunFolders(NamedTuple):
    """The finished runs' folders, relative to the searched folder, and the number of failed runs."""

    names: list[str]
    num_failed: int


def search(folder: Path) -> RunFolders:
    """All folders with a summary.json, this one and below it, in order. Links to folders are not followed."""
    names: list[str] = []
    num_failed = 0
    unseen = [""]
    root = os.fspath(folder)
    while unseen:
        name = unseen.pop()
        has_finished = has_failed = False
        try:
            with os.scandir(f"{root}{os.sep}{name}") as entries:
                for entry in entries:
                    if entry.name == SUMMARY:  # or a folder of this name, which its reader refuses
                        has_finished = True
                    elif entry.is_dir(follow_symlinks=False):
                        unseen.append(f"{name}{os.sep}{entry.name}" if name else entry.name)
                    elif entry.name == ERROR:
                        has_failed = True
        except (PermissionError, FileNotFoundError):
            continue
        if has_finished:
            names.append(name)
        num_failed += has_failed and not has_finished
    return RunFolders(sorted(names, key=lambda name: [*filter(None, name.split(os.sep)), SUMMARY]), num_failed)
