"""The error of a simulation in which no rank can continue. Twin of `hetsim.distributed.rank.standstill`."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim import effects as fx
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.rank_process import RankProcess, Started

MAX_NAMED = 8
"""The maximum number of ranks in one list of the error."""


def sentence(processes: Sequence[RankProcess], collectives: PendingCollectives, *, leader: int) -> str:
    """The effect and ranks for which each waiting rank waits."""
    waiting = [process for process in processes if not process.done and not process.lost]
    named = [f"rank {process.rank} waits {_what(process.waits_for, process.rank, collectives, leader)}" for process in waiting[:MAX_NAMED]]
    more = [f"and {len(waiting) - MAX_NAMED} more"] if len(waiting) > MAX_NAMED else []
    return f"the simulation can make no progress: {'; '.join([*named, *more])}"


def _what(effect: fx.Effect[object] | None, rank: int, collectives: PendingCollectives, leader: int) -> str:
    """The effect for which this rank waits, and the missing ranks."""
    if isinstance(effect, fx.Wait):
        assert isinstance(effect.pending, Started)
        return _what(effect.pending.effect, rank, collectives, leader)
    if isinstance(effect, fx.Receive):
        return "for a message from " + ("anyone" if effect.source is None else f"rank {effect.source}")
    if isinstance(effect, fx.Commit):
        return f"for the decision of rank {leader}"
    missing = collectives.missing(type(effect), rank)
    if not missing:
        return f"in a {type(effect).__name__}"
    names = ", ".join(map(str, missing[:MAX_NAMED])) + (f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else "")
    return f"in a {type(effect).__name__} for rank{'s' if len(missing) > 1 else ''} {names}"
