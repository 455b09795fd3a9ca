"""The index of a sweep's folder: what `hetsim-table` reads of each finished run, in one file.

The index is never believed where it differs from the files. A row counts only while the files that it was read from are the same: by
inode, size, and the moments of their last change, of which a program cannot set the second. So what was done again, edited, copied or
unpacked is read anew, and missing runs are not listed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.memory import check_fits
from hetsim.results.reading.index_columns import Reader, Row, schema, table_of
from hetsim.results.reading.lock import sole_writer
from hetsim.results.reading.run_files import check_is_no_link
from hetsim.runtime.files import written_whole

NAME = ".index.parquet"
LEAST = 200
"""Finished runs that are read one by one in no time: an index is written if so many are not in it."""
READ = ("summary.json", "config.yaml", "curve.csv")
"""The files of a run that are read."""
WHICH = {name: number for number, name in enumerate(READ)}
ERROR = "error.txt"
"""The file of a run that failed."""
SETTLED_SECONDS = 2
"""A file that was changed less than this before it was read may be changed again in the same moment, by the clock of its file system."""
MAX_BYTES = 4 * 10**9
"""Of an index in memory."""

STAMP = struct.Struct("<" + "Qqqq" * len(READ))
"""Of each file the inode, the size, and in nanoseconds when its content and when anything of it was changed."""


class Place(NamedTuple):
    """The folder of a finished run, relative to that of the sweep, and the state of its files."""

    name: str
    stamp: bytes


class Found(NamedTuple):
    """What there is below a folder: the finished runs, and how many runs have failed."""

    places: list[Place]
    num_failed: int


def search(folder: Path) -> Found:
    """All folders below this one, and itself, that hold a summary.json, in order. Links to folders are not followed."""
    found: list[Place] = []
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
            found.append(Place(name, _stamp(files)))
        num_failed += failed and files[0] is None
    return Found(sorted(found, key=lambda place: [*filter(None, place.name.split(os.sep)), READ[0]]), num_failed)


def _stamp(files: Iterable[os.stat_result | None]) -> bytes:
    numbers: list[int] = []
    for file in files:
        numbers += (0, 0, 0, 0) if file is None else (file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
    return STAMP.pack(*numbers)


def is_settled(place: Place, *, begun: datetime) -> bool:
    """Whether the files of a run that is read since then show any later change by their state."""
    numbers = STAMP.unpack(place.stamp)
    return bool(max(*numbers[2::4], *numbers[3::4]) / 1e9 < begun.timestamp() - SETTLED_SECONDS)


def read_index(folder: Path, there: Sequence[Place], make: Callable[[str, Row], Any]) -> dict[str, Any]:
    """What `make` makes of the rows of those places that the index knows as they are now, by name; nothing of an index that is none."""
    path = folder / NAME
    from pyarrow import ArrowException, parquet

    try:
        check_is_no_link(path)
        if not path.is_file():
            return {}
        file = parquet.ParquetFile(path)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if (
            not file.schema_arrow.equals(schema(), check_metadata=False)
            or sum(group.num_rows for group in groups) != file.metadata.num_rows
        ):
            return {}
        size = sum(group.total_byte_size for group in groups)
        check_fits(f"{path}", size, "remove it")
        return {} if size > MAX_BYTES else _rows(file, dict(there), make)
    except (ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # the files say it


def _rows(file: Any, there: Mapping[str, bytes], make: Callable[[str, Row], Any]) -> dict[str, Any]:
    reader = Reader()
    return {
        name: make(name, row)
        for batch in file.iter_batches(batch_size=10_000)
        for name, stamp, row in reader.rows(batch)
        if there.get(name) == stamp
    }


def write_index(folder: Path, rows: Iterable[tuple[Place, Row]], *, begun: datetime) -> None:
    """Write the index of what was read of these places since then, unless another process is writing it or the folder cannot be written."""
    from pyarrow import parquet

    table = table_of((place.name, place.stamp, row) for place, row in rows if is_settled(place, begun=begun))
    try:
        with sole_writer(folder) as ours:
            if ours:
                with written_whole(folder / NAME) as file:
                    parquet.write_table(table, file, row_group_size=10_000, compression="zstd")
    except OSError:
        return  # a disk that is full, or a folder of somebody else's
