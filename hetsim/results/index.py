"""The index of a sweep's folder: what `hetsim-table` reads of each finished run, in one file.

The index is never believed where it differs from the files. A row counts only while the files that it was read from are the same: by
inode, size, and the moments of their last change, of which a program cannot set the second. So what was done again, edited, copied or
unpacked is read anew, and what is gone is not listed.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.memory import check_fits
from hetsim.results.finished import LossPoint
from hetsim.results.lock import sole_writer
from hetsim.results.run_files import check_is_no_link
from hetsim.runtime.files import written_whole

NAME = ".index.parquet"
LEAST = 200
"""Finished runs that are read one by one in no time: an index is written if so many are not in it."""
READ = ("summary.json", "config.yaml", "curve.csv")
"""The files of a run that are read."""
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


@dataclass(frozen=True)
class Row:
    """What was read of a run."""

    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]
    points: list[LossPoint]


def places(folder: Path) -> list[Place]:
    """All folders below this one, and itself, that hold a summary.json, in order. Links to folders are not followed."""
    found: list[Place] = []
    unseen = [""]
    root = os.fspath(folder)
    while unseen:
        name = unseen.pop()
        status: dict[str, os.stat_result | None] = dict.fromkeys(READ)
        try:
            with os.scandir(os.path.join(root, name) if name else root) as entries:
                for entry in entries:
                    if entry.name in status:
                        status[entry.name] = entry.stat(follow_symlinks=False)
                    elif entry.is_dir(follow_symlinks=False):
                        unseen.append(f"{name}{os.sep}{entry.name}" if name else entry.name)
        except (PermissionError, FileNotFoundError):
            continue
        if status[READ[0]] is not None:
            found.append(Place(name, _stamp(status.values())))
    return sorted(found, key=lambda place: [*filter(None, place.name.split(os.sep)), READ[0]])


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
            not file.schema_arrow.equals(_schema(), check_metadata=False)
            or sum(group.num_rows for group in groups) != file.metadata.num_rows
        ):
            return {}
        size = sum(group.total_byte_size for group in groups)
        check_fits(f"{path}", size, "remove it")
        return {} if size > MAX_BYTES else _rows(file, dict(there), make)
    except (ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # the files say it


def _rows(file: Any, there: Mapping[str, bytes], make: Callable[[str, Row], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    parsed = cache(json.loads)  # runs of one config share it
    for batch in file.iter_batches(batch_size=10_000):
        columns = batch.to_pydict()
        ends = zip(columns["seconds"], columns["loss"], columns["accuracy"], strict=True)
        for name, stamp, summary, config, typed, points in zip(
            columns["folder"], columns["stamp"], columns["summary"], columns["config"], columns["typed"], ends, strict=True
        ):
            if there.get(name) == stamp:
                row = Row(json.loads(summary), parsed(config), parsed(typed), list(zip(*points, strict=True)))
                found[name] = make(name, row)
    return found


def write_index(folder: Path, rows: Iterable[tuple[Place, Row | None]], *, begun: datetime) -> None:
    """Write the index of what was read of these places since then, unless another process is writing it or the folder cannot be written."""
    import pyarrow as pa
    from pyarrow import parquet

    texts = _Texts()
    columns: dict[str, list[Any]] = {name: [] for name in _schema().names}
    for place, row in rows:
        written = texts.of(row) if row is not None and is_settled(place, begun=begun) else None
        if row is not None and written is not None:
            points = zip(*row.points, strict=True) if row.points else ((), (), ())
            for column, value in zip(columns.values(), (place.name, place.stamp, *written, *points), strict=True):
                column.append(value)
    try:
        with sole_writer(folder) as ours:
            if ours:
                with written_whole(folder / NAME) as file:
                    parquet.write_table(pa.table(columns, schema=_schema()), file, row_group_size=10_000, compression="zstd")
    except OSError:
        return  # a disk that is full, or a folder of somebody else's


class _Texts:
    """The columns of a row that hold JSON; runs that share a config share its text."""

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}

    def of(self, row: Row) -> tuple[str, str, str] | None:
        """None if JSON would change something: dates, keys that are no texts, numbers that are none."""
        if id(row.config) not in self._known:
            self._known[id(row.config)] = _as_json(row.config)
        config, summary, typed = self._known[id(row.config)], _as_json(row.summary), _as_json(row.typed)
        return None if config is None or summary is None or typed is None else (summary, config, typed)


def _as_json(value: Any) -> str | None:
    try:
        text = json.dumps(value)
        text.encode()
        return text if repr(json.loads(text)) == repr(value) else None
    except (TypeError, ValueError, RecursionError):
        return None


@cache
def _schema() -> Any:
    import pyarrow as pa

    numbers = pa.list_(pa.float64())
    return pa.schema(
        {
            "folder": pa.string(), "stamp": pa.binary(), "summary": pa.string(), "config": pa.string(), "typed": pa.string(),
            "seconds": numbers, "loss": numbers, "accuracy": numbers,
        }
    )  # fmt: skip
