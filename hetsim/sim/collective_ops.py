"""Collectives in virtual time: the ranks that have entered, the missing ranks, and the time from the last entry.

A collective does not complete if a rank that has entered it crashes before its end. The others wait until the membership changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hetsim import effects as fx
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.network.lateness import Seconds
from hetsim.runtime.recording.recorder import ALL_REDUCE, GATHER, REGROUP, Recorder, interval_recorder
from hetsim.sim.clock import SUSPENDED, Callback, VirtualClock
from hetsim.sim.rank_process import LOST, RankProcess
from hetsim.vector import Vector, nbytes, scaled


@dataclass(slots=True)
class PendingCollective:
    """A collective that not all ranks have entered. For each rank: its value, the time and version of its entry, callback, process."""

    entered: dict[int, tuple[Any, float, int, Callback, RankProcess]] = field(default_factory=dict)


class PendingCollectives:
    """Answers AllReduce, AllGather and Gather among the workers, and Regroup among all programs of a run."""

    def __init__(self, env: VirtualClock, cluster: Cluster, recorders: Collection[Recorder], *, seed: int) -> None:
        self.env = env
        self.cluster = cluster
        self.seed = seed
        self._record = {kind: interval_recorder(recorders, kind) for kind in (ALL_REDUCE, GATHER, REGROUP)}
        self.join(set(range(cluster.num_workers)))
        self._pending: dict[type, deque[PendingCollective]] = {
            kind: deque() for kind in (fx.AllReduce, fx.AllGather, fx.GradientSum, fx.Gather, fx.Regroup)
        }
        self.num_dissolved = 0
        """The number of times that all collectives were dropped."""
        self._in_turn: deque[Callable[[], object]] = deque()
        """The bucket reductions: the current one, followed by waiting ones."""
        self._beside: list[tuple[int, tuple[float, float]]] = []
        """The sizes and intervals of the reductions beside the current gradients, if these are slower therefore."""

    def all_reduce(self, process: RankProcess, effect: fx.AllReduce, callback: Callback) -> Any:
        """Takes the time of the network's algorithm from the last entry on. Terms are summed in rank order."""
        number = process.state.enter_collective()
        values_by_rank = self._enter(process, fx.AllReduce, scaled(effect.value, effect.factor), callback, len(self.members))
        if values_by_rank:
            total = sum_in_rank_order(values_by_rank.values())
            size = nbytes(total)
            self._complete(fx.AllReduce, partial(self.among_members.all_reduce_seconds, size, number), total, ALL_REDUCE, size)
        return SUSPENDED

    def bucket(self, process: RankProcess, number: Sequence[int], size: int, term: Vector, callback: Callback) -> None:
        """Enter the reduction of the next bucket of a GradientSum, in bytes. It begins after the previous bucket's reduction.

        `number` identifies the reduction. The last bucket has the whole term, and the sum in rank order as answer. Other buckets have None.
        """
        values_by_rank = self._enter(process, fx.GradientSum, term, callback, len(self.members))
        if values_by_rank:
            total = None if term is None else sum_in_rank_order(values_by_rank.values())
            seconds = partial(self.among_members.all_reduce_seconds, size, number)
            slow = self.among_members.slow_gradients
            entered = self._pending[fx.GradientSum][0].entered
            if slow and term is None:
                seconds = partial(self._reduce_beside, seconds, size)
            begin = self._completion(fx.GradientSum, seconds, total, ALL_REDUCE, size, then=self._next_bucket)
            if slow and term is not None:
                begin = partial(self._begin_last, begin, np.array([entered[rank][1] for rank in sorted(entered)]))
            self._in_turn.append(begin)
            if len(self._in_turn) == 1:
                self._in_turn[0]()

    def _reduce_beside(self, seconds: Callable[[float], float], size: int, begins: float) -> float:
        """The seconds of a reduction beside the gradients. It takes some of their time."""
        lasting = seconds(begins)
        self._beside.append((size, (begins, begins + lasting)))
        return lasting

    def _begin_last(self, begin: Callable[[], object], ends: Seconds) -> None:
        """Begin the last reduction, once the ranks have made up for what earlier reductions took from their gradients."""
        sizes, intervals = [size for size, _ in self._beside], [interval for _, interval in self._beside]
        self._beside.clear()
        ready = self.among_members.gradients_end(sizes, ends, intervals)
        if ready <= self.env.now:
            begin()
            return

        def begin_late(_: Any) -> None:
            begin()

        self.env.at(ready, begin_late)

    def _next_bucket(self) -> None:
        self._in_turn.popleft()
        if self._in_turn:
            self._in_turn[0]()

    def gather(self, process: RankProcess, effect: fx.Gather, callback: Callback) -> Any:
        """Takes the time of eight bytes between each pair of ranks, from the last entry on. Absent ranks have 0."""
        number = process.state.enter_collective()
        values_by_rank = self._enter(process, fx.Gather, effect.number, callback, len(self.members))
        if values_by_rank:
            numbers = tuple(values_by_rank.get(rank, 0.0) for rank in range(self.cluster.num_workers))
            self._complete(fx.Gather, partial(self.among_members.gather_seconds, number), numbers, GATHER, 8)
        return SUSPENDED

    def all_gather(self, process: RankProcess, effect: fx.AllGather[Any], callback: Callback) -> Any:
        """Takes the time of a vector between each pair of ranks, from the last entry on. The vectors are combined once for all ranks."""
        number = process.state.enter_collective()
        values_by_rank = self._enter(process, fx.AllGather, effect.value, callback, len(self.members))
        if values_by_rank:
            size = nbytes(effect.value)
            seconds = partial(self.among_members.gather_seconds, number, nbytes=size)
            self._complete(fx.AllGather, seconds, effect.combine(values_by_rank), GATHER, size)
        return SUSPENDED

    def regroup(
        self,
        process: RankProcess,
        callback: Callback,
        *,
        num_processes: int,
        seconds: float,
        answer: Callable[[], fx.Regrouped],
        then: Callable[[], None],
    ) -> Any:
        """Takes this number of seconds after the last entry, and then calls `then`."""
        if self._enter(process, fx.Regroup, None, callback, num_processes):
            self._completion(fx.Regroup, lambda _: seconds, answer(), REGROUP, 0, then)()
        return SUSPENDED

    def join(self, members: set[int]) -> None:
        """Set the workers that take part."""
        self.members = members
        self.among_members = Collectives(self.cluster, sorted(members), seed=self.seed)
        """The times of collectives among the members."""

    @property
    def is_regrouping(self) -> bool:
        """Whether a rank has entered an incomplete Regroup."""
        return bool(self._pending[fx.Regroup])

    def leave(self, rank: int) -> None:
        """Remove a rank from all collectives."""
        for pending in self._pending.values():
            for collective in pending:
                collective.entered.pop(rank, None)

    def dissolve(self) -> None:
        """Drop all collectives after a change of the membership."""
        self.num_dissolved += 1
        self._in_turn.clear()
        self._beside.clear()
        for pending in self._pending.values():
            pending.clear()

    def missing_ranks(self, kind: type, rank: int) -> list[int]:
        """The ranks that a rank waits for in a collective of this kind."""
        collective = next((collective for collective in self._pending.get(kind, ()) if rank in collective.entered), None)
        return [] if collective is None else sorted(self.members - collective.entered.keys())

    def _enter(self, process: RankProcess, kind: type, value: Any, callback: Callback, num_processes: int) -> dict[int, Any] | None:
        """Enter the first collective of this kind that the rank is not in yet. If all ranks have entered, returns their values."""
        pending = self._pending[kind]
        collective = next((collective for collective in pending if process.rank not in collective.entered), None)
        if collective is None:
            collective = PendingCollective()
            pending.append(collective)
        collective.entered[process.rank] = (value, self.env.now, process.state.version, callback, process)
        if len(collective.entered) < num_processes:
            return None
        return {rank: collective.entered[rank][0] for rank in sorted(collective.entered)}

    def _complete(self, kind: type, seconds: Callable[[float], float], answer: Any, row_kind: int, size: int) -> None:
        """Answer all ranks, in rank order, after the collective's seconds, unless it is dissolved or a rank crashes before."""
        self._completion(kind, seconds, answer, row_kind, size)()

    def _completion(
        self, kind: type, seconds: Callable[[float], float], answer: Any, row_kind: int, size: int, then: Callable[[], None] = lambda: None
    ) -> Callable[[], object]:
        """The function that begins a collective after the last entry. After its seconds, it calls `then` and all ranks."""
        entered = sorted(self._pending[kind].popleft().entered.items())
        num_dissolved, record = self.num_dissolved, self._record[row_kind]

        def release(answer: Any) -> None:
            if num_dissolved != self.num_dissolved or any(process.status == LOST for _, (*_, process) in entered):
                return
            if record is not None:
                for rank, (_, since, version, *_) in entered:
                    record((since, self.env.now, rank, row_kind, version, 0, 0, size))
            then()
            for _, (_, _, _, callback, _) in entered:
                callback(answer)

        return lambda: self._schedule_release(seconds(self.env.now), row_kind, size, [rank for rank, _ in entered], release, answer)

    def _schedule_release(self, seconds: float, kind: int, size: int, ranks: list[int], release: Callback, answer: Any) -> None:
        self.env.after(seconds, release, answer)


def sum_in_rank_order(values: Iterable[Vector]) -> Vector:
    """The sum of these values, in rank order."""
    first, *others = values
    for value in others:
        first = first + value
    return first
