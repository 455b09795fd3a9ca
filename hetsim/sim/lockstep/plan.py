"""The object that stands for all ranks, and splits of a global batch as arrays by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np

from hetsim import effects as fx
from hetsim.coordination.plan import Layout, Plan, PooledSplit, Split, cursors
from hetsim.sim.lockstep.times import Counts


class AllRanks:
    """Stands for all ranks. Indexing with it returns all ranges, and comparing it raises TypeError."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("this program compares its rank, so it is not the same on every rank: same_on_every_rank must be False")

    def __repr__(self) -> str:
        return "all"


ALL_RANKS: Final[Any] = AllRanks()


class VectorizedBatch(fx.Batch):
    """The ranges of all ranks. `start` and `samples` are arrays by rank. It is true if any rank has samples."""

    __slots__ = ()
    start: Any
    samples: Any
    pool: Any

    def __bool__(self) -> bool:
        return bool(self.samples.any())


@dataclass(frozen=True, slots=True)
class VectorizedSplit(Split):
    """A split that can be indexed by `ALL_RANKS`. `arrays` contains the samples and offsets of its layout."""

    arrays: tuple[Counts, Counts] = field(repr=False, compare=False)

    def __getitem__(self, rank: Any) -> Any:
        if rank is not ALL_RANKS:
            return Split.__getitem__(self, rank)
        samples, offsets = self.arrays
        start: Any = np.minimum(self.start + offsets, self.stop)
        return VectorizedBatch(start, np.minimum(samples, self.stop - start))


@dataclass(frozen=True, slots=True)
class VectorizedPooledSplit(PooledSplit):
    """The same for a split of pools."""

    arrays: tuple[Counts, Counts] = field(repr=False, compare=False)

    def __getitem__(self, rank: Any) -> Any:
        if rank is not ALL_RANKS:
            return PooledSplit.__getitem__(self, rank)
        start: Any = np.array(cursors(self.start).of[: len(self)], np.int64)
        samples: Any = self.arrays[0]
        pool: Any = np.arange(len(self))
        return VectorizedBatch(start, samples, pool)


@dataclass(frozen=True, slots=True)
class VectorizedPlan(Plan):
    """A plan whose splits can be indexed by `ALL_RANKS`."""

    _latest: list[tuple[Layout, tuple[Counts, Counts]]] = field(default_factory=list, init=False, repr=False, compare=False)

    def split(self, start: int, shares: Sequence[int]) -> VectorizedSplit | VectorizedPooledSplit:
        split = Plan.split(self, start, shares)
        if not self._latest or self._latest[0][0] is not split.layout:
            self._latest[:] = [(split.layout, (np.array(split.layout.samples, np.int64), np.array(split.layout.offsets, np.int64)))]
        kind = VectorizedSplit if self.pools is None else VectorizedPooledSplit
        return kind(split.start, split.stop, split.layout, self._latest[0][1])
