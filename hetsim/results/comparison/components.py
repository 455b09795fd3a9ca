"""Where the workers' time went. Each moment of a worker belongs to one of five components, so a worker's components add up to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsim.results.comparison.traced import Floats, Integers, Rows
from hetsim.results.reading.intervals import after_last_entry
from hetsim.runtime.recording.recorder import ALL_REDUCE, DOWN, GATHER, GRADIENT, MESSAGE, UPDATE

COMPONENTS = ("compute", "communication", "server", "waiting", "absent")
COMPUTE, COMMUNICATION, SERVER, WAITING, ABSENT = range(len(COMPONENTS))


class Spans(NamedTuple):
    """Intervals: the worker, start and end of each."""

    rank: Integers
    start: Floats
    end: Floats


def seconds_by_worker(rows: Rows) -> Floats:
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
    found = np.zeros((rows.num_workers, len(COMPONENTS)))
    idle = component == WAITING
    served = np.zeros(len(rank))
    served[idle] = np.clip(_busy(rows, end[idle]) - _busy(rows, start[idle]), 0.0, (end - start)[idle])
    np.add.at(found, (rank, component), end - start - served)
    np.add.at(found[:, SERVER], rank, served)
    return found


def _partition(rows: Rows, spans: Mapping[int, Spans]) -> tuple[Integers, Floats, Floats, Integers]:
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


def _spans(rows: Rows, which: NDArray[np.bool_]) -> Spans:
    return Spans(rows.rank[which], rows.start[which], rows.end[which])


def _communication(rows: Rows) -> Spans:
    """The messages from and to each worker, and the transfers of collectives."""
    to = rows.receiver >= 0
    sent = _spans(rows, rows.of_workers & rows.of(MESSAGE))
    received = Spans(rows.receiver[to], rows.start[to], rows.end[to])
    parts = (sent, received, transfers(rows, ALL_REDUCE), transfers(rows, GATHER))
    return Spans(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def transfers(rows: Rows, kind: int) -> Spans:
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
    spans = [(member, *span) for member, its in after_last_entry(entered, until=rows.seconds).items() for span in its]
    columns = np.array(spans, np.float64).reshape(-1, 3).T
    return Spans(columns[0].astype(np.int64), columns[1], columns[2])


def _busy(rows: Rows, moments: Floats) -> Floats:
    """The server's total seconds of updates until each of these moments."""
    _, start, end = _spans(rows, ~rows.of_workers & rows.of(UPDATE))
    if not len(start):
        return np.zeros(len(moments))
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    begin = np.concatenate([start[:1], np.maximum(start[1:], end[:-1])])
    length = np.maximum(end - begin, 0.0)
    done = length.cumsum()
    edges = np.column_stack([begin, begin + length])
    until: Floats = np.interp(moments, edges.ravel(), np.column_stack([done - length, done]).ravel())
    return until
