"""The record of a run: one row per interval or event, in columns, written as it grows."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np

KINDS = ("gradient", "update", "message", "all_reduce", "gather", "apply", "commit", "profile", "down", "regroup")


GRADIENT, UPDATE, MESSAGE, ALL_REDUCE, GATHER, APPLY, COMMIT, PROFILE, DOWN, REGROUP = range(len(KINDS))


COLUMNS = ("start", "end", "rank", "kind", "version", "samples", "staleness", "nbytes")


DETAILS = ("full", "commits", "none")


LIST = len(COLUMNS) * 1024  # numbers that stand in the list before they are packed: few enough to stay in a cache,


CHUNK = len(COLUMNS) * 65536  # and in the buffer before it is written


REPEATED = ("rank", "kind", "samples", "staleness", "nbytes")  # columns of few values: the others, as a dictionary, would be larger


class Trace:
    """Rows of (start end rank kind version samples staleness nbytes), seconds and bytes; `trace.parquet` when closed.

    gradient: a worker computes at `version` · update: an optimizer step on `rank` · message: from hand-over to delivery,
    `rank` the sender · all_reduce, gather: from one's own entry to the end · apply: a contribution of `rank` goes into
    `version`, `staleness` versions old · commit: `version` exists, made of `samples` samples · profile: a gradient to measure
    by, before the run began, so at negative seconds · down: a node is not there · regroup: from one's own entry to a new beginning.
    """

    def __init__(self, folder: Path | None, detail: str) -> None:
        self.full = detail == "full"
        self.commits = detail != "none"
        self.rows: list[float] = []
        """The numbers of all rows, or of those that are not on their way to the file yet."""
        self.record = self.rows.extend
        """What `add` does, for the numbers of one row in order; the next `add` or `spill` sees to the file."""
        self._path = folder / "trace.parquet" if folder is not None and self.commits else None
        self._packed = array("d")
        self._writer: Any = None

    def add(
        self, start: float, end: float, rank: int, kind: int, version: int = 0, samples: int = 0, staleness: int = 0, nbytes: int = 0
    ) -> None:
        """Note one row."""
        self.rows += (start, end, rank, kind, version, samples, staleness, nbytes)
        if len(self.rows) >= LIST:
            self.spill()

    def spill(self) -> None:
        """Pack the rows that stand in the list, and write those that are packed, if they are many."""
        if self._path is not None:
            self._pack()
            if len(self._packed) >= CHUNK:
                self.flush()

    def flush(self) -> None:
        """Write what there is behind what is written already."""
        if self._path is None:
            return
        from pyarrow import parquet

        self._pack()
        table = as_table(self._packed)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(_unfinished(self._path), table.schema, use_dictionary=REPEATED)
        self._writer.write_table(table)
        self._packed = array("d")

    def _pack(self) -> None:
        self._packed.frombytes(pack(f"{len(self.rows)}d", *self.rows))  # half the time of array.fromlist
        self.rows.clear()

    def close(self) -> None:
        """Finish the file; only now does it stand under its name."""
        if self._path is not None:
            self.flush()
            self._writer.close()
            self._writer = None
            os.replace(_unfinished(self._path), self._path)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing unfinished behind; a closed trace stays."""
        if self._writer is not None and self._path is not None:
            self._writer.close()
            self._writer = None
            _unfinished(self._path).unlink(missing_ok=True)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def as_table(rows: Sequence[float]) -> Any:
    """The rows as an Arrow table: times in seconds, kinds by name."""
    import pyarrow as pa

    columns = np.frombuffer(rows if isinstance(rows, array) else array("d", rows), dtype=np.float64).reshape(-1, len(COLUMNS)).T
    arrays: list[Any] = []
    for name, column in zip(COLUMNS, columns, strict=True):
        if name in ("start", "end"):
            arrays.append(pa.array(column))
        elif name == "kind":
            arrays.append(pa.DictionaryArray.from_arrays(column.astype(np.int8), list(KINDS)))
        else:
            arrays.append(pa.array(column.astype(np.int64 if name in ("version", "nbytes") else np.int32)))
    return pa.table(arrays, names=list(COLUMNS))
