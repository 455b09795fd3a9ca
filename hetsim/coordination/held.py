"""Ranges that a server assigns ahead: a worker holds several, and tells now and then how far it has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from hetsim.coordination.outstanding import Outstanding, OutstandingInPools
from hetsim.coordination.plan import Plan
from hetsim.coordination.pools import Pools
from hetsim.coordination.state import State
from hetsim.effects import Batch


class HeldRanges(Outstanding):
    """The ranges that were assigned and not settled yet: those to assign again, then those of each worker in the order of its steps."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.held: dict[int, deque[Batch]] = {}

    @classmethod
    def of(cls, plan: Plan, state: State, present: Collection[int]) -> HeldRanges:
        """Those of a state, while these workers are present; `present` changes as the server continues."""
        return HeldRanges(state) if plan.pools is None else HeldRangesInPools(state, plan.pools, present)

    def hold(self, rank: int, batches: Iterable[Batch]) -> None:
        """A worker takes these one after the other, after what it has."""
        self.held.setdefault(rank, deque()).extend(batches)

    def settle(self, rank: int, count: int) -> list[Batch]:
        """Remove and return the first `count` ranges of a worker, which it has computed: they are not assigned again."""
        held = self.held.get(rank, deque())
        return [held.popleft() for _ in range(count)]

    def lose(self, rank: int) -> None:
        """The ranges of a lost worker are to be assigned again, as long as they were."""
        self.requeued.extend(joined(self.held.pop(rank, ())))

    def retract(self, keep: Mapping[int, int]) -> None:
        """Keep the first ranges of each worker. All its other ranges are assigned again, the lowest positions first."""
        retracted = [batch for rank, count in keep.items() for batch in self._retracted(rank, count)]
        self.requeued = deque(sorted((*self.requeued, *retracted), key=lambda batch: batch.start))

    def _retracted(self, rank: int, keep: int) -> list[Batch]:
        held = self.held.get(rank, deque())
        return [held.pop() for _ in range(len(held) - keep)]

    def __iter__(self) -> Iterator[Batch]:
        yield from self.requeued
        for batches in self.held.values():
            yield from batches

    def __len__(self) -> int:
        return len(self.requeued) + sum(map(len, self.held.values()))


class HeldRangesInPools(HeldRanges, OutstandingInPools):
    """The same where each worker has a pool of its own."""

    def __init__(self, state: State, pools: Pools, present: Collection[int]) -> None:
        OutstandingInPools.__init__(self, state, pools, present)
        self.held = {}

    def lose(self, rank: int) -> None:
        """The pool's cursor goes back; the range waits for the pool's owner."""
        if batches := self.held.pop(rank, None):
            self.cursors[rank] = batches[0].start

    def retract(self, keep: Mapping[int, int]) -> None:
        """The pools' cursors go back."""
        for rank, count in keep.items():
            for batch in self._retracted(rank, count):
                self.cursors[rank] = batch.start


def joined(batches: Iterable[Batch]) -> list[Batch]:
    """The same positions in as few ranges."""
    ranges: list[Batch] = []
    for batch in batches:
        if ranges and ranges[-1].stop == batch.start:
            ranges[-1] = Batch(ranges[-1].start, ranges[-1].samples + batch.samples, batch.pool)
        else:
            ranges.append(batch)
    return ranges
