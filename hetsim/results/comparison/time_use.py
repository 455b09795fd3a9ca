"""How one run used its time, from its trace: by component and by kind of interval, and the staleness of its contributions.

Each moment of a worker belongs to one of five components, so a worker's components add up to the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsim.files.reading import REMEDY
from hetsim.memory import check_fits
from hetsim.results.reading.intervals import after_last_entry, read_trace
from hetsim.runtime.recording.recorder import APPLY, DOWN, GRADIENT, INTERVAL_KINDS, KINDS, MESSAGE, UPDATE
from hetsim.runtime.recording.trace import COLUMNS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TIMES = ("start", "end")
BYTES_OF_A_ROW, BYTES_OF_A_WORKER = 500, 500
"""The bytes of memory for each row, and for each worker, while the seconds of a run are added up."""
COMPONENTS = ("compute", "communication", "server", "waiting", "absent")
COMPUTE, COMMUNICATION, SERVER, WAITING, ABSENT = range(len(COMPONENTS))
INTERVALS = {
    name: (kind, of_workers)
    for kind, row in enumerate(INTERVAL_KINDS)
    for name, of_workers in ((row.of_workers, True), (row.of_servers, False))
    if name is not None
}
"""The names of intervals in a comparison: the kind of each, and whether it is of workers."""
COLLECTIVES = [kind for kind, row in enumerate(INTERVAL_KINDS) if row.is_collective]


@dataclass(frozen=True)
class TraceRows:
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
        receivers = np.full(len(self.rank), -1)
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
                receivers[message] = self.rank[gradients[place]]
                place += 1
        return receivers


def read_rows(run: Path, summary: Mapping[str, Any]) -> TraceRows | None:
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
    rows = TraceRows(**columns, num_workers=num_workers, num_updates=int(num_updates), seconds=float(seconds))
    return rows if rows.of(GRADIENT).any() else None


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


def _total(rows: TraceRows, kind: int, *, of_workers: bool) -> Total:
    if kind in COLLECTIVES:
        _, start, end = transfers(rows, kind)
    else:
        which = rows.of(kind) & (rows.of_workers == of_workers)
        start, end = rows.start[which], rows.end[which]
    ended = end <= rows.seconds
    return Total(int(ended.sum()), float((end - start)[ended].sum()))


def _staleness(rows: TraceRows) -> dict[int, int]:
    values, counts = np.unique(rows.staleness[rows.of(APPLY)], return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


class Spans(NamedTuple):
    """Intervals: the worker, start and end of each."""

    rank: Integers
    start: Floats
    end: Floats


def seconds_by_worker(rows: TraceRows) -> Floats:
    """The seconds of each worker in each component until the last commit, shape (workers, components). Each row adds up to the run's time.

    - compute: the worker computes gradients or updates
    - communication: messages from or to the worker are in transit, or collectives after their last rank's entry
    - server: none of these, and the server updates
    - waiting: none of these, and the server does not update
    - absent: the worker's node is absent

    A moment in several components counts once: absent comes before compute, compute before communication, and communication before the
    rest.
    """
    workers = rows.of_workers
    rank, start, end, component = _partition(
        rows,
        {
            ABSENT: _spans(rows, workers & rows.of(DOWN)),
            COMPUTE: _spans(rows, workers & rows.of(GRADIENT, UPDATE)),
            COMMUNICATION: _communication(rows),
        },
    )
    seconds = np.zeros((rows.num_workers, len(COMPONENTS)))
    idle = component == WAITING
    served = np.zeros(len(rank))
    served[idle] = np.clip(_busy(rows, end[idle]) - _busy(rows, start[idle]), 0.0, (end - start)[idle])
    np.add.at(seconds, (rank, component), end - start - served)
    np.add.at(seconds[:, SERVER], rank, served)
    return seconds


def _partition(rows: TraceRows, spans: Mapping[int, Spans]) -> tuple[Integers, Floats, Floats, Integers]:
    """Divide each worker's time into consecutive pieces: rank, start, end, and component of each.

    A piece gets the first of these components that contains it, or `WAITING`.
    """
    everyone, none = np.arange(rows.num_workers), np.zeros(rows.num_workers)
    ranks, moments = [everyone, everyone], [none, none + rows.seconds]
    changes = [np.zeros((2 * rows.num_workers, len(spans)), np.int64)]
    for place, (rank, *bounds) in enumerate(spans.values()):
        start, end = (np.clip(bound, 0.0, rows.seconds) for bound in bounds)
        inside = start < end
        change = np.zeros((2 * inside.sum(), len(spans)), np.int64)
        change[:, place] = np.repeat([1, -1], inside.sum())
        ranks += [rank[inside], rank[inside]]
        moments += [start[inside], end[inside]]
        changes.append(change)
    rank, moment = np.concatenate(ranks), np.concatenate(moments)
    order = np.lexsort((moment, rank))
    rank, moment, active = rank[order], moment[order], np.concatenate(changes)[order].cumsum(axis=0) > 0
    follows = rank[1:] == rank[:-1]
    component = np.select(list(active[:-1][follows].T), list(spans), default=WAITING)
    return rank[:-1][follows], moment[:-1][follows], moment[1:][follows], component


def _spans(rows: TraceRows, which: NDArray[np.bool_]) -> Spans:
    return Spans(rows.rank[which], rows.start[which], rows.end[which])


def _communication(rows: TraceRows) -> Spans:
    """The messages from and to each worker, and the transfers of collectives."""
    to = rows.receiver >= 0
    sent = _spans(rows, rows.of_workers & rows.of(MESSAGE))
    received = Spans(rows.receiver[to], rows.start[to], rows.end[to])
    spans = (sent, received, *(transfers(rows, kind) for kind in COLLECTIVES))
    return Spans(*(np.concatenate(column) for column in zip(*spans, strict=True)))


def transfers(rows: TraceRows, kind: int) -> Spans:
    """The collectives of this kind, each from its last rank's entry on.

    The k-th collective of one rank is the k-th of every other rank. If nodes join or leave, collectives with the same end are the same.
    """
    rank, entry, end = _spans(rows, rows.of_workers & rows.of(kind))
    order = np.lexsort((end, rank))
    rank, entry, end = rank[order], entry[order], end[order]
    members, counts = np.unique(rank, return_counts=True)
    if len({*counts.tolist()}) <= 1:
        last = entry.reshape(len(members), -1).max(axis=0) if len(members) else entry
        return Spans(rank, np.minimum(np.tile(last, len(members)), end), end)
    entered = {int(member): list(zip(entry[rank == member].tolist(), end[rank == member].tolist(), strict=True)) for member in members}
    spans = [(member, *span) for member, member_spans in after_last_entry(entered, until=rows.seconds).items() for span in member_spans]
    columns = np.array(spans, np.float64).reshape(-1, 3).T
    return Spans(columns[0].astype(np.int64), columns[1], columns[2])


def _busy(rows: TraceRows, moments: Floats) -> Floats:
    """The server's total seconds of updates until each of these moments."""
    _, start, end = _spans(rows, ~rows.of_workers & rows.of(UPDATE))
    if not len(start):
        return np.zeros(len(moments))
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    begin = np.concatenate([start[:1], np.maximum(start[1:], end[:-1])])
    length = np.maximum(end - begin, 0.0)
    cumulative = length.cumsum()
    edges = np.column_stack([begin, begin + length])
    until: Floats = np.interp(moments, edges.ravel(), np.column_stack([cumulative - length, cumulative]).ravel())
    return until
