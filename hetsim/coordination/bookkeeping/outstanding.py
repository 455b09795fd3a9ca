"""The ranges that a server has assigned, and those that it can assign next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetsim.coordination.bookkeeping.pools import Cursors, Pools
from hetsim.coordination.plan import Plan, check_share, cursors
from hetsim.coordination.state import State
from hetsim.effects import Batch
from hetsim.vector import Vector


@dataclass(frozen=True, slots=True)
class Pushes:
    """The state of a worker's compression after its last push, and before each of its latest pushes.

    A push that had not been applied at a checkpoint is lost, and its range is assigned and computed again. Then the
    compression resumes from its state before that push; otherwise its residual would be sent twice.
    """

    after: Any
    before: tuple[tuple[Batch, Any], ...] = ()
    """(range, state before its push), the latest last."""

    def appended(self, batch: Batch, after: Any, *, num_outstanding: int) -> Pushes:
        """Add a push. The server may not have applied the last `num_outstanding` pushes."""
        return Pushes(after, (*self.before, (batch, self.after))[-num_outstanding:])

    def resumed(self, outstanding: Collection[Batch]) -> Any:
        """The state to resume from if these ranges are assigned again."""
        starts = {(batch.pool, batch.start) for batch in outstanding}
        return next((state for batch, state in self.before if (batch.pool, batch.start) in starts), self.after)


class Holding(NamedTuple):
    """A range that the server assigned to a worker, the weights to compute at, and their version."""

    batch: Batch
    weights: Vector
    version: int


class Outstanding(Collection[Batch]):
    """The assigned ranges whose gradient has not arrived: first the ranges to assign again, then each worker's range.

    It is a view: it changes as the server continues.
    """

    def __init__(self, state: State) -> None:
        self.next_sample = state.next_sample
        """The first position that was never assigned."""
        self.requeued = deque(state.outstanding)
        self.holding: dict[Any, Holding] = {}
        """The range of each worker, by rank. If a worker holds several ranges, the keys identify ranges instead."""

    @classmethod
    def of(cls, plan: Plan, state: State, present: Collection[int]) -> Outstanding:
        """The outstanding ranges of a state. The server may change `present` as it continues."""
        return Outstanding(state) if plan.pools is None else OutstandingInPools(state, plan.pools, present)

    def has_next(self, plan: Plan) -> bool:
        """Whether there is a range for the next worker that asks."""
        return bool(self.requeued or plan.clip(self.next_sample, 1))

    def take(self, plan: Plan, rank: int, share: int, num_steps: int = 1) -> Batch:
        """A worker's next range: a range to assign again, up to the worker's memory limit, or its share of new positions.

        With `num_steps`, the worker takes the positions of this number of steps at once, and computes one share in each step.
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
        """Queue the range of a lost worker, so that it is assigned again."""
        if holder in self.holding:
            self.requeued.append(self.holding.pop(holder).batch)

    def ready(self, idle: Collection[int]) -> Sequence[int]:
        """The idle workers for which a range is available now."""
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
    """Ranges in pools: each worker takes ranges of its own pool, one at a time.

    A lost range is the last one of its pool, so the pool's cursor moves back, and the range waits for the pool's owner. In a budget of all
    pools, other workers may take as many samples of their own pools instead.
    """

    def __init__(self, state: State, pools: Pools, present: Collection[int]) -> None:
        self.pools = pools
        self.present = present
        self.cursors = list(cursors(state.next_sample).rewound(state.outstanding).of)
        """The first position of each pool that was never assigned or whose gradient is lost."""
        self.requeued = deque()
        self.holding = {}

    @property
    def next_sample(self) -> int:  # type: ignore[override]
        """The total number of assigned positions, with the cursor of each pool."""
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
