"""How one run used its time, from its trace: by component and by kind of interval, and the staleness of its contributions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.results.comparison.components import seconds_by_worker, transfers
from hetsim.results.comparison.traced import Floats, Rows, read_rows
from hetsim.runtime.recording.recorder import ALL_REDUCE, APPLY, GATHER, GRADIENT, MESSAGE, REGROUP, UPDATE

INTERVALS = {
    # what a kind of interval is called in a comparison: its kind in the trace, and whether it is of workers
    "gradient": (GRADIENT, True),
    "update of a worker": (UPDATE, True),
    "update of the server": (UPDATE, False),
    "message of a worker": (MESSAGE, True),
    "message of the server": (MESSAGE, False),
    "all-reduce": (ALL_REDUCE, True),
    "gather": (GATHER, True),
    "regroup": (REGROUP, True),
}


@dataclass(frozen=True)
class Total:
    """The number and total seconds of the intervals of a kind that ended by the last commit."""

    count: int
    seconds: float


@dataclass(frozen=True)
class TimeUse:
    """The sums over one run's trace."""

    seconds: float
    num_updates: int
    by_worker: Floats
    """Seconds, shape (workers, components)."""
    intervals: Mapping[str, Total]
    """The totals by their names in `INTERVALS`. Kinds without intervals are left out."""
    staleness: Mapping[int, int]
    """The number of applied contributions for each staleness."""

    @property
    def shares(self) -> list[float]:
        """Each component's share of the workers' time. The shares add up to 1."""
        return [float(share) for share in self.by_worker.sum(axis=0) / (len(self.by_worker) * self.seconds)]


def time_use(run: Path, summary: Mapping[str, Any]) -> TimeUse | None:
    """How a run used its time; None if its trace has no intervals."""
    rows = read_rows(run, summary)
    if rows is None:
        return None
    totals = {name: _total(rows, kind, of_workers=of_workers) for name, (kind, of_workers) in INTERVALS.items()}
    return TimeUse(
        seconds=rows.seconds,
        num_updates=rows.num_updates,
        by_worker=seconds_by_worker(rows),
        intervals={name: total for name, total in totals.items() if total.count},
        staleness=_staleness(rows),
    )


def _total(rows: Rows, kind: int, *, of_workers: bool) -> Total:
    if kind in (ALL_REDUCE, GATHER):
        _, start, end = transfers(rows, kind)
    else:
        which = rows.of(kind) & (rows.of_workers == of_workers)
        start, end = rows.start[which], rows.end[which]
    ended = end <= rows.seconds
    return Total(int(ended.sum()), float((end - start)[ended].sum()))


def _staleness(rows: Rows) -> dict[int, int]:
    values, counts = np.unique(rows.staleness[rows.of(APPLY)], return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
