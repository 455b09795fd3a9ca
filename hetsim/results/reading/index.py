"""The index of a sweep's folder: the data that `hetsim-table` needs from all finished runs, in one file.

A row of the index counts only if the run's files are unchanged: by inode, size, and the times of their last modification and change. A
program cannot set the time of change. So repeated, edited, copied or unpacked runs are read again, and missing runs are not listed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.files.lock import sole_writer
from hetsim.files.reading import check_is_no_link
from hetsim.files.writing import written_whole
from hetsim.memory import check_fits
from hetsim.results.reading.index_columns import Reader, Row, schema, table_of

NAME = ".index.parquet"
LEAST = 200
"""The number of unindexed runs from which an index is written. Fewer runs are quick to read one by one."""
READ = ("summary.json", "config.yaml", "curve.csv")
"""The files of a run that are read."""
WHICH = {name: number for number, name in enumerate(READ)}
ERROR = "error.txt"
"""The file of a run that failed."""
SETTLED_SECONDS = 2
"""A file that changed less than this before it was read may change again without a new time stamp in its file system."""
MAX_BYTES = 4 * 10**9
"""The maximum size of an index in memory."""

STAMP = struct.Struct("<" + "Qqqq" * len(READ))
"""Three entries for each file: inode, size, and the times in nanoseconds of its last modification and change."""


class Place(NamedTuple):
    """The folder of a finished run, relative to the sweep's folder, and the stamp of its files."""

    name: str
    stamp: bytes


class Found(NamedTuple):
    """The content of a folder: the finished runs, and the number of failed runs."""

    places: list[Place]
    num_failed: int


def search(folder: Path) -> Found:
    """All folders with a summary.json, this one and below it, in order. Links to folders are not followed."""
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
    """Whether any later change of a run's files would change their stamp. The run is read after `begun`."""
    numbers = STAMP.unpack(place.stamp)
    return bool(max(*numbers[2::4], *numbers[3::4]) / 1e9 < begun.timestamp() - SETTLED_SECONDS)


def read_index(folder: Path, there: Sequence[Place], make: Callable[[str, Row], Any]) -> dict[str, Any]:
    """Apply `make` to the index's rows of these places with unchanged files. Returns the results by name; empty without a valid index."""
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
    """Write the index of these rows, which were read after `begun`.

    Does nothing if another process is writing the index or the folder is not writable.
    """
    from pyarrow import parquet

    table = table_of((place.name, place.stamp, row) for place, row in rows if is_settled(place, begun=begun))
    try:
        with sole_writer(folder) as ours:
            if ours:
                with written_whole(folder / NAME) as file:
                    parquet.write_table(table, file, row_group_size=10_000, compression="zstd")
    except OSError:
        return  # a disk that is full, or a folder of somebody else's
