"""Collectives in virtual time: who has entered, who is waited for, and how long it takes from the last entry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.collectives import Collectives
from hetsim.cluster.model import Cluster
from hetsim.runtime.trace import ALL_REDUCE, GATHER, REGROUP, Trace
from hetsim.sim.clock import SUSPENDED, Callback, Clock
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Vector, nbytes


@dataclass(slots=True)
class PendingCollective:
    """A collective that not everyone has entered yet: what each rank brings, since when, at which version, and how to answer it."""

    entered: dict[int, tuple[Any, float, int, Callback]] = field(default_factory=dict)


class PendingCollectives:
    """Performs AllReduce and Gather among the workers, and Regroup among all programs of a run."""

    def __init__(self, env: Clock, cluster: Cluster, processes: Sequence[RankProcess], trace: Trace) -> None:
        self.env = env
        self.cluster = cluster
        self.processes = processes
        self.trace = trace
        self.join(set(range(cluster.num_workers)))
        self._meetings: dict[type, deque[PendingCollective]] = {fx.AllReduce: deque(), fx.Gather: deque(), fx.Regroup: deque()}
        self._round = 0  # begun anew so many times

    def all_reduce(self, process: RankProcess, effect: fx.AllReduce, callback: Callback) -> Any:
        """From the last entry, what the network's algorithm takes; the sum is in rank order."""
        met = self._meet(process, fx.AllReduce, effect.value, callback, len(self.members))
        if met:
            values = iter(met.values())
            total: Vector = next(values)
            for value in values:
                total = total + value
            size = nbytes(total)
            self._part(fx.AllReduce, self._collectives.all_reduce_seconds(size), total, ALL_REDUCE, size)
        return SUSPENDED

    def gather(self, process: RankProcess, effect: fx.Gather, callback: Callback) -> Any:
        """From the last entry, a number of eight bytes from everyone to everyone; nothing, 0, from those who are not there."""
        met = self._meet(process, fx.Gather, effect.number, callback, len(self.members))
        if met:
            numbers = tuple(met.get(rank, 0.0) for rank in range(self.cluster.num_workers))
            self._part(fx.Gather, self._collectives.gather_seconds(), numbers, GATHER, 8)
        return SUSPENDED

    def regroup(
        self, process: RankProcess, callback: Callback, *, num_players: int, seconds: float, answer: Callable[[], fx.Regrouped]
    ) -> Any:
        """From the last entry, so many seconds."""
        met = self._meet(process, fx.Regroup, None, callback, num_players)
        if met:
            self._part(fx.Regroup, seconds, answer(), REGROUP, 0)
        return SUSPENDED

    def join(self, members: set[int]) -> None:
        """These workers take part from now on."""
        self.members = members
        self._collectives = Collectives(self.cluster, sorted(members))

    @property
    def is_regrouping(self) -> bool:
        """Whether anyone waits for others to begin anew with."""
        return bool(self._meetings[fx.Regroup])

    def leave(self, rank: int) -> None:
        """A rank is not in any collective any more."""
        for collective_ops in self._meetings.values():
            for collective in collective_ops:
                collective.entered.pop(rank, None)

    def dissolve(self) -> None:
        """Nobody is in a collective any more: who takes part has changed."""
        self._round += 1
        for collective_ops in self._meetings.values():
            collective_ops.clear()

    def missing(self, kind: type, rank: int) -> list[int]:
        """Whom a rank waits for in a collective."""
        collective = next((collective for collective in self._meetings[kind] if rank in collective.entered), None)
        return [] if collective is None else sorted(self.members - collective.entered.keys())

    def _meet(self, process: RankProcess, kind: type, brought: Any, callback: Callback, num_players: int) -> dict[int, Any] | None:
        """Enter the first collective of this kind that the rank is not in yet; everyone's values, in rank order, once all are there."""
        collective_ops = self._meetings[kind]
        collective = next((collective for collective in collective_ops if process.rank not in collective.entered), None)
        if collective is None:
            collective = PendingCollective()
            collective_ops.append(collective)
        collective.entered[process.rank] = (brought, self.env.now, process.version, callback)
        if len(collective.entered) < num_players:
            return None
        return {rank: collective.entered[rank][0] for rank in sorted(collective.entered)}

    def _part(self, kind: type, seconds: float, answer: Any, row: int, size: int) -> None:
        """Answer everyone, in rank order, when the collective's time has passed, unless it is dissolved before."""
        entered = sorted(self._meetings[kind].popleft().entered.items())
        begun = self._round

        def release(answer: Any) -> None:
            if begun != self._round:
                return
            if self.trace.full:
                for rank, (_, since, version, _) in entered:
                    self.trace.add(since, self.env.now, rank, row, version, 0, 0, size)
            for _, (_, _, _, callback) in entered:
                callback(answer)

        self.env.after(seconds, release, answer)
