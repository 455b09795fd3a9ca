"""Ranges that a server assigns ahead: a worker holds several, and reports from time to time how many it has computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from hetsim.coordination.bookkeeping.outstanding import Outstanding, OutstandingInPools
from hetsim.coordination.bookkeeping.pools import Pools
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch


class HeldRanges(Outstanding):
    """The ranges that were assigned and not settled yet: first the ranges to assign again, then each worker's ranges in step order."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.held: dict[int, deque[Batch]] = {}

    @classmethod
    def of(cls, plan: Plan, state: State, present: Collection[int]) -> HeldRanges:
        """The ranges that no worker has computed at this state. The server may change `present` as it continues."""
        return HeldRanges(state) if plan.pools is None else HeldRangesInPools(state, plan.pools, present)

    def hold(self, rank: int, batches: Iterable[Batch]) -> None:
        """Add these ranges after the worker's other ranges."""
        self.held.setdefault(rank, deque()).extend(batches)

    def settle(self, rank: int, count: int) -> list[Batch]:
        """Remove and return the first `count` ranges of a worker, which it has computed, so that they are not assigned again."""
        held = self.held.get(rank, deque())
        return [held.popleft() for _ in range(count)]

    def lose(self, rank: int) -> None:
        """Queue the ranges of a lost worker, so that they are assigned again. Adjacent ranges are joined."""
        self.requeued.extend(join_adjacent(self.held.pop(rank, ())))

    def retract(self, keep: Mapping[int, int]) -> None:
        """Keep the first `keep[rank]` ranges of each worker. All its other ranges are assigned again, the lowest positions first."""
        retracted = [batch for rank, count in keep.items() for batch in self._retract_ranges(rank, count)]
        self.requeued = deque(sorted((*self.requeued, *retracted), key=lambda batch: batch.start))

    def _retract_ranges(self, rank: int, keep: int) -> list[Batch]:
        held = self.held.get(rank, deque())
        return [held.pop() for _ in range(len(held) - keep)]

    def __iter__(self) -> Iterator[Batch]:
        yield from self.requeued
        for batches in self.held.values():
            yield from batches

    def __len__(self) -> int:
        return len(self.requeued) + sum(map(len, self.held.values()))


class HeldRangesInPools(HeldRanges, OutstandingInPools):
    """HeldRanges for workers with their own pools."""

    def __init__(self, state: State, pools: Pools, present: Collection[int]) -> None:
        OutstandingInPools.__init__(self, state, pools, present)
        self.held = {}

    def lose(self, rank: int) -> None:
        """Move the pool's cursor back, so that the pool's owner gets the ranges again."""
        if batches := self.held.pop(rank, None):
            self.cursors[rank] = batches[0].start

    def retract(self, keep: Mapping[int, int]) -> None:
        """Keep the first `keep[rank]` ranges of each worker, and move the pools' cursors back before the other ranges."""
        for rank, count in keep.items():
            for batch in self._retract_ranges(rank, count):
                self.cursors[rank] = batch.start


def join_adjacent(batches: Iterable[Batch]) -> list[Batch]:
    """Join adjacent ranges."""
    ranges: list[Batch] = []
    for batch in batches:
        if ranges and ranges[-1].stop == batch.start:
            ranges[-1] = Batch(ranges[-1].start, ranges[-1].samples + batch.samples, batch.pool)
        else:
            ranges.append(batch)
    return ranges
