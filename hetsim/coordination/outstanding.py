"""The ranges that a server has assigned, and those that it can assign next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from hetsim.coordination.plan import Plan, check_share, cursors
from hetsim.coordination.pools import Cursors, Pools
from hetsim.coordination.state import State
from hetsim.effects import Batch
from hetsim.vector import Vector


class Holding(NamedTuple):
    """What the server sent a worker: a range, the weights to compute at, and their version."""

    batch: Batch
    weights: Vector
    version: int


class Outstanding(Collection[Batch]):
    """The ranges that were assigned and whose gradient has not arrived: those to assign again, then those of each worker.

    It is a view: it changes as the server continues.
    """

    def __init__(self, state: State) -> None:
        self.next_sample = state.next_sample
        """The first position that was never assigned."""
        self.requeued = deque(state.outstanding)
        self.holding: dict[Any, Holding] = {}
        """By worker; or by any key, if a worker holds several."""

    @classmethod
    def of(cls, plan: Plan, state: State, present: Collection[int]) -> Outstanding:
        """Those of a state, while these workers are present; `present` changes as the server continues."""
        return Outstanding(state) if plan.pools is None else OutstandingInPools(state, plan.pools, present)

    def has_next(self, plan: Plan) -> bool:
        """Whether there is a range for the next worker that asks."""
        return bool(self.requeued or plan.clip(self.next_sample, 1))

    def take(self, plan: Plan, rank: int, share: int, num_steps: int = 1) -> Batch:
        """A worker's next range: one to assign again, as far as it fits into the worker's memory, or its share of new positions.

        With `num_steps` the worker computes one such range after the other, and takes the positions of all at once.
        """
        if not self.requeued:
            batch = plan.clip(self.next_sample, num_steps * share)
            self.next_sample += batch.samples
            return batch
        batch = self.requeued.popleft()
        fits = batch.samples if plan.max_samples is None else min(batch.samples, num_steps * plan.max_samples[rank])
        if fits < batch.samples:
            self.requeued.appendleft(Batch(batch.start + fits, batch.samples - fits))
        return Batch(batch.start, fits)

    def lose(self, holder: Any) -> None:
        """The range of a lost worker is to be assigned again."""
        if holder in self.holding:
            self.requeued.append(self.holding.pop(holder).batch)

    def ready(self, idle: Collection[int]) -> Sequence[int]:
        """Those workers without a range for which there is one now."""
        return sorted(idle)[: len(self.requeued)] if self.requeued else ()

    def __iter__(self) -> Iterator[Batch]:
        yield from self.requeued
        for held in self.holding.values():
            yield held.batch

    def __len__(self) -> int:
        return len(self.requeued) + len(self.holding)

    def __contains__(self, batch: object) -> bool:
        return any(batch == held for held in self)


class OutstandingInPools(Outstanding):
    """Each worker takes ranges of its own pool, one at a time, so a lost range is the last one of its pool: the cursor goes back.

    It waits there for the pool's owner. The samples that others may take instead, in a budget of all pools, are theirs.
    """

    def __init__(self, state: State, pools: Pools, present: Collection[int]) -> None:
        self.pools = pools
        self.present = present
        self.cursors = list(cursors(state.next_sample).before(state.outstanding).of)
        """The first position of each pool that nobody was given, or whose gradient is lost."""
        self.requeued = deque()
        self.holding = {}

    @property
    def next_sample(self) -> int:  # type: ignore[override]
        """How many positions were assigned, with the cursor of each pool."""
        return Cursors(self.cursors)

    def has_next(self, plan: Plan) -> bool:
        return self.pools.has_next(self.cursors, self.present or range(plan.num_workers))

    def take(self, plan: Plan, rank: int, share: int, num_steps: int = 1) -> Batch:
        """A worker's next range of its pool: its share, as far as the budget and aligned epochs allow."""
        check_share(share)
        batch = Batch(self.cursors[rank], int(min(num_steps * share, self._room(rank))), rank)
        self.cursors[rank] = batch.stop
        return batch

    def lose(self, holder: Any) -> None:
        if holder in self.holding:
            batch = self.holding.pop(holder).batch
            self.cursors[batch.pool] = min(self.cursors[batch.pool], batch.start)

    def ready(self, idle: Collection[int]) -> Sequence[int]:
        return [rank for rank in sorted(idle) if self._room(rank)]

    def _room(self, rank: int) -> float:
        return self.pools.room(rank, self.cursors, self, self.present)
