"""The rows of a trace as arrays, as far as a comparison of where the time went needs them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.memory import check_fits
from hetsim.results.reading.intervals import check_interval, read_columns
from hetsim.results.reading.run_files import MAX_NUMBER, REMEDY
from hetsim.runtime.recorder import GRADIENT, KINDS, MESSAGE

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TIMES = ("start", "end")
COLUMNS = [*TIMES, "rank", "kind", "version", "samples", "staleness", "nbytes"]
BYTES_OF_A_ROW, BYTES_OF_A_WORKER = 500, 500
"""What a row, and a worker, take in memory while the seconds of a run are added up."""


@dataclass(frozen=True)
class Rows:
    """The rows of one run's trace, in no particular order; kinds by their places in `KINDS`, times in seconds of the run's own clock."""

    start: Floats
    end: Floats
    rank: Integers
    kind: Integers
    version: Integers
    samples: Integers
    staleness: Integers
    nbytes: Integers
    num_workers: int
    num_updates: int
    seconds: float
    """When the last version was committed: nothing after it counts."""

    def of(self, *kinds: int) -> NDArray[np.bool_]:
        """Which rows are of these kinds."""
        return np.isin(self.kind, kinds)

    @cached_property
    def of_workers(self) -> NDArray[np.bool_]:
        """Which rows are of workers, not of a server."""
        return self.rank < self.num_workers

    @cached_property
    def receiver(self) -> Integers:
        """Of each message of the server the worker that it went to; -1 for all other rows, and where no gradient says it.

        A trace has a message's sender alone. The worker to which weights of a version went is the one whose gradient at that version
        begins first at or after their delivery, each gradient being that of one message.
        """
        found = np.full(len(self.rank), -1)
        messages = np.flatnonzero(self.of(MESSAGE) & ~self.of_workers & (self.nbytes > 0))
        gradients = np.flatnonzero(self.of(GRADIENT) & self.of_workers)
        messages = messages[np.lexsort((self.end[messages], self.version[messages]))]
        gradients = gradients[np.lexsort((self.start[gradients], self.version[gradients]))]
        began = list(zip(self.version[gradients].tolist(), self.start[gradients].tolist(), strict=True))
        place = 0
        for message, version, end in zip(messages.tolist(), self.version[messages].tolist(), self.end[messages].tolist(), strict=True):
            while place < len(began) and began[place] < (version, end):
                place += 1
            if place < len(began) and began[place][0] == version:
                found[message] = self.rank[gradients[place]]
                place += 1
        return found


def read_rows(run: Path, summary: Mapping[str, Any]) -> Rows | None:
    """The rows of a run's trace; None if it has no intervals, or if the run took no time. ValueError with one sentence if it is broken."""
    trace = run / "trace.parquet"
    if not trace.exists() and not trace.is_symlink():
        return None
    num_workers, num_updates, seconds = (summary.get(key) for key in ("num_workers", "num_updates", "seconds"))
    if num_workers is None or num_updates is None or seconds is None or num_updates < 1 or seconds <= 0:
        return None
    table = read_columns(trace, COLUMNS, _cast)
    check_fits(f"{trace}, of {table.num_rows} rows,", BYTES_OF_A_ROW * table.num_rows, REMEDY)
    check_fits(f"{run}, of {num_workers} workers,", BYTES_OF_A_WORKER * num_workers, REMEDY)
    columns = {name: table[name].fill_null(math.nan if name in TIMES else -1).to_numpy() for name in COLUMNS}
    _check(trace, table, columns, num_workers)
    rows = Rows(**columns, num_workers=num_workers, num_updates=int(num_updates), seconds=float(seconds))
    return rows if rows.of(GRADIENT).any() else None


def _cast(table: Any) -> Any:
    """The table with its kinds by their places in `KINDS`, null if it is none, and numbers of the types that `Rows` has."""
    import pyarrow as pa
    from pyarrow import compute

    columns = {name: compute.cast(table[name], pa.float64() if name in TIMES else pa.int64()) for name in COLUMNS if name != "kind"}
    kinds = compute.index_in(compute.cast(table["kind"], pa.string()), value_set=pa.array(KINDS))
    return pa.table({**columns, "kind": compute.cast(kinds, pa.int64())})


def _check(trace: Path, table: Any, columns: Mapping[str, NDArray[Any]], num_workers: int) -> None:
    """ValueError with one sentence for the first row that is none of this run."""
    start, end, rank = (columns[name] for name in ("start", "end", "rank"))
    fine = (np.abs(start) <= MAX_NUMBER) & (np.abs(end) <= MAX_NUMBER) & (rank >= 0) & (rank <= 2 * num_workers)
    fine &= (start <= end) | (columns["kind"] == MESSAGE)
    for place in np.flatnonzero(~fine)[:1].tolist():
        check_interval(trace, *(table[name][place].as_py() for name in ("start", "end", "rank")), num_workers=num_workers)
    for name in ("kind", "samples", "staleness", "nbytes"):
        for place in np.flatnonzero(columns[name] < 0)[:1].tolist():
            raise ValueError(f"{trace} has a row whose {name} is {table[name][place].as_py()}, as none of a run is: {REMEDY}")
