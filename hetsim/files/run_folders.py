"""The folders of finished runs below a folder, and stamps by which one sees that a run's files have changed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

READ = ("summary.json", "config.yaml", "curve.csv")
"""The files of a run that are read."""
WHICH = {name: number for number, name in enumerate(READ)}
ERROR = "error.txt"
"""The file of a run that failed."""
SETTLED_SECONDS = 2
"""A file that changed less than this before it was read may change again without a new time stamp in its file system."""
STAMP = struct.Struct("<" + "Qqqq" * len(READ))
"""Three entries for each file: inode, size, and the times in nanoseconds of its last modification and change."""


class RunFolder(NamedTuple):
    """The folder of a finished run, relative to the sweep's folder, and the stamp of its files."""

    name: str
    stamp: bytes


class RunFolders(NamedTuple):
    """The content of a folder: the finished runs, and the number of failed runs."""

    places: list[RunFolder]
    num_failed: int


def search(folder: Path) -> RunFolders:
    """All folders with a summary.json, this one and below it, in order. Links to folders are not followed."""
    found: list[RunFolder] = []
    num_failed = 0
    unseen = [""]
    root = os.fspath(folder)
    while unseen:
        name = unseen.pop()
        files: list[os.stat_result | None] = [None, None, None]
        failed = False
        try:
            with os.scandir(f"{root}{os.sep}{name}") as entries:
                for entry in entries:
                    number = WHICH.get(entry.name)
                    if number is not None:
                        files[number] = entry.stat(follow_symlinks=False)
                    elif entry.is_dir(follow_symlinks=False):
                        unseen.append(f"{name}{os.sep}{entry.name}" if name else entry.name)
                    elif entry.name == ERROR:
                        failed = True
        except (PermissionError, FileNotFoundError):
            continue
        if files[0] is not None:
            found.append(RunFolder(name, _stamp(files)))
        num_failed += failed and files[0] is None
    return RunFolders(sorted(found, key=lambda place: [*filter(None, place.name.split(os.sep)), READ[0]]), num_failed)


def _stamp(files: Iterable[os.stat_result | None]) -> bytes:
    numbers: list[int] = []
    for file in files:
        numbers += (0, 0, 0, 0) if file is None else (file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
    return STAMP.pack(*numbers)


def is_settled(place: RunFolder, *, begun: datetime) -> bool:
    """Whether any later change of a run's files would change their stamp. The run is read after `begun`."""
    numbers = STAMP.unpack(place.stamp)
    return bool(max(*numbers[2::4], *numbers[3::4]) / 1e9 < begun.timestamp() - SETTLED_SECONDS)
