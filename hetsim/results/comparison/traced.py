"""The rows of a trace as arrays, with the columns that a comparison needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.files.reading import REMEDY
from hetsim.memory import check_fits
from hetsim.results.reading.intervals import read_trace
from hetsim.runtime.recording.recorder import GRADIENT, KINDS, MESSAGE
from hetsim.runtime.recording.trace import COLUMNS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TIMES = ("start", "end")
BYTES_OF_A_ROW, BYTES_OF_A_WORKER = 500, 500
"""The bytes of memory for each row, and for each worker, while the seconds of a run are added up."""


@dataclass(frozen=True)
class Rows:
    """The rows of one run's trace, in no particular order. Kinds are indices into `KINDS`. Times are in seconds of the run's clock."""

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
    """The time of the last commit. Later intervals do not count."""

    def of(self, *kinds: int) -> NDArray[np.bool_]:
        """Which rows have one of these kinds."""
        return np.isin(self.kind, kinds)

    @cached_property
    def of_workers(self) -> NDArray[np.bool_]:
        """Which rows belong to workers, not to a server."""
        return self.rank < self.num_workers

    @cached_property
    def receiver(self) -> Integers:
        """The worker that received each message of the server. -1 for all other rows, and for messages without a matching gradient.

        A trace contains only a message's sender. Weights of a version went to the worker whose gradient at that version is the first to
        begin at or after their delivery. Each gradient belongs to one message.
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
    """The rows of a run's trace; None without intervals or if the run took no time. Raises ValueError for a broken trace."""
    trace = run / "trace.parquet"
    if not trace.exists() and not trace.is_symlink():
        return None
    num_workers, num_updates, seconds = (summary.get(key) for key in ("num_workers", "num_updates", "seconds"))
    if num_workers is None or num_updates is None or seconds is None or num_updates < 1 or seconds <= 0:
        return None
    import pyarrow as pa
    from pyarrow import compute

    table = read_trace(trace, num_workers=num_workers)
    check_fits(f"{trace}, of {table.num_rows} rows,", BYTES_OF_A_ROW * table.num_rows, REMEDY)
    check_fits(f"{run}, of {num_workers} workers,", BYTES_OF_A_WORKER * num_workers, REMEDY)
    kinds = compute.index_in(table["kind"], value_set=pa.array(KINDS))
    columns = {name: (kinds if name == "kind" else table[name].fill_null(-1)).to_numpy() for name in COLUMNS}
    columns = {name: column if name in TIMES else column.astype(np.int64, copy=False) for name, column in columns.items()}
    rows = Rows(**columns, num_workers=num_workers, num_updates=int(num_updates), seconds=float(seconds))
    return rows if rows.of(GRADIENT).any() else None
