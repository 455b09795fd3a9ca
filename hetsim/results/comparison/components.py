"""Where the workers' time went: each moment of each worker is one of five components, so that they add up to the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsim.results.comparison.traced import Floats, Integers, Rows
from hetsim.results.reading.intervals import after_last_entry
from hetsim.runtime.recorder import ALL_REDUCE, DOWN, GATHER, GRADIENT, MESSAGE, UPDATE

COMPONENTS = ("compute", "communication", "server", "waiting", "absent")
COMPUTE, COMMUNICATION, SERVER, WAITING, ABSENT = range(len(COMPONENTS))


class Spans(NamedTuple):
    """Intervals: of each its worker, its start and its end."""

    rank: Integers
    start: Floats
    end: Floats


def seconds_by_worker(rows: Rows) -> Floats:
    """The seconds of each worker in each component until the last commit, shape (workers, components): a worker's add up to the run's.

    - compute: the worker's gradients and updates
    - communication: its messages, from sending to delivery, and collectives from the last entry on
    - server: neither of these, and the server updates
    - waiting: neither of these, and the server does not update
    - absent: the worker's node is absent

    A moment in several components counts once: as absent before compute before communication before the others.
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
    """Each worker's time in pieces that follow one another, by rank, start, end, and the first of these components that it lies in.

    A piece that lies in none of them is of the component `WAITING`.
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
    """Messages of each worker, those to it, and transfers of collectives."""
    to = rows.receiver >= 0
    sent = _spans(rows, rows.of_workers & rows.of(MESSAGE))
    received = Spans(rows.receiver[to], rows.start[to], rows.end[to])
    parts = (sent, received, transfers(rows, ALL_REDUCE), transfers(rows, GATHER))
    return Spans(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def transfers(rows: Rows, kind: int) -> Spans:
    """The collectives of this kind, from their last rank's entry on.

    The k-th that ends on a rank is the k-th on every other; where nodes come and go, those are the same that end at the same time.
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
    """For how many seconds the server has updated until each of these moments."""
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
