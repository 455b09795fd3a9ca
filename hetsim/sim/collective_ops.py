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
from hetsim.sim.clock import LATER, Clock, Then
from hetsim.sim.rank_process import Player
from hetsim.vector import Vector, nbytes


@dataclass(slots=True)
class Meeting:
    """A collective that not everyone has entered yet: what each rank brings, since when, at which version, and how to answer it."""

    entered: dict[int, tuple[Any, float, int, Then]] = field(default_factory=dict)


class Meetings:
    """Performs AllReduce and Gather among the workers, and Regroup among all programs of a run."""

    def __init__(self, env: Clock, cluster: Cluster, players: Sequence[Player], trace: Trace) -> None:
        self.env = env
        self.cluster = cluster
        self.players = players
        self.trace = trace
        self.join(set(range(cluster.num_workers)))
        self._meetings: dict[type, deque[Meeting]] = {fx.AllReduce: deque(), fx.Gather: deque(), fx.Regroup: deque()}
        self._round = 0  # begun anew so many times

    def all_reduce(self, player: Player, effect: fx.AllReduce, then: Then) -> Any:
        """From the last entry, what the network's algorithm takes; the sum is in rank order."""
        met = self._meet(player, fx.AllReduce, effect.value, then, len(self.members))
        if met:
            values = iter(met.values())
            total: Vector = next(values)
            for value in values:
                total = total + value
            size = nbytes(total)
            self._part(fx.AllReduce, self._collectives.all_reduce_seconds(size), total, ALL_REDUCE, size)
        return LATER

    def gather(self, player: Player, effect: fx.Gather, then: Then) -> Any:
        """From the last entry, a number of eight bytes from everyone to everyone; nothing, 0, from those who are not there."""
        met = self._meet(player, fx.Gather, effect.number, then, len(self.members))
        if met:
            numbers = tuple(met.get(rank, 0.0) for rank in range(self.cluster.num_workers))
            self._part(fx.Gather, self._collectives.gather_seconds(), numbers, GATHER, 8)
        return LATER

    def regroup(self, player: Player, then: Then, *, num_players: int, seconds: float, answer: Callable[[], fx.Regrouped]) -> Any:
        """From the last entry, so many seconds."""
        met = self._meet(player, fx.Regroup, None, then, num_players)
        if met:
            self._part(fx.Regroup, seconds, answer(), REGROUP, 0)
        return LATER

    def join(self, members: set[int]) -> None:
        """These workers take part from now on."""
        self.members = members
        self._collectives = Collectives(self.cluster, sorted(members))

    @property
    def regrouping(self) -> bool:
        """Whether anyone waits for others to begin anew with."""
        return bool(self._meetings[fx.Regroup])

    def leave(self, rank: int) -> None:
        """A rank is not in any collective any more."""
        for meetings in self._meetings.values():
            for meeting in meetings:
                meeting.entered.pop(rank, None)

    def dissolve(self) -> None:
        """Nobody is in a collective any more: who takes part has changed."""
        self._round += 1
        for meetings in self._meetings.values():
            meetings.clear()

    def missing(self, kind: type, rank: int) -> list[int]:
        """Whom a rank waits for in a collective."""
        meeting = next((meeting for meeting in self._meetings[kind] if rank in meeting.entered), None)
        return [] if meeting is None else sorted(self.members - meeting.entered.keys())

    def _meet(self, player: Player, kind: type, brought: Any, then: Then, num_players: int) -> dict[int, Any] | None:
        """Enter the first collective of this kind that the rank is not in yet; everyone's values, in rank order, once all are there."""
        meetings = self._meetings[kind]
        meeting = next((meeting for meeting in meetings if player.rank not in meeting.entered), None)
        if meeting is None:
            meeting = Meeting()
            meetings.append(meeting)
        meeting.entered[player.rank] = (brought, self.env.now, player.version, then)
        if len(meeting.entered) < num_players:
            return None
        return {rank: meeting.entered[rank][0] for rank in sorted(meeting.entered)}

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
            for _, (_, _, _, then) in entered:
                then(answer)

        self.env.after(seconds, release, answer)
