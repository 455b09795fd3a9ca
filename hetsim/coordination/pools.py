"""Pools of samples that belong to workers: how far each has come, and which positions of it may be assigned next."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hetsim.effects import Batch


class Cursors(int):
    """How many positions were assigned over all pools, with the cursor of each: the first position of it that was not.

    It stands where the next position of a single pool would, and counts as the same number. Arithmetic makes a plain number of it.
    """

    of: tuple[int, ...]
    """By pool."""

    def __new__(cls, of: Iterable[int]) -> Cursors:
        of = tuple(of)
        cursors = super().__new__(cls, sum(of))
        cursors.of = of
        return cursors

    def advanced(self, samples: Sequence[int]) -> Cursors:
        """The cursors after these further positions of the first pools."""
        return Cursors((*(map(int.__add__, self.of, samples)), *self.of[len(samples) :]))

    def before(self, outstanding: Collection[Batch]) -> Cursors:
        """Before these ranges, so that they are assigned again: the last ones that each pool has assigned."""
        of = list(self.of)
        for batch in outstanding:
            of[batch.pool] = min(of[batch.pool], batch.start)
        return Cursors(of)

    def __eq__(self, other: object) -> bool:
        return self.of == other.of if isinstance(other, Cursors) else int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __reduce__(self) -> Any:
        return Cursors, (self.of,)

    def __repr__(self) -> str:
        return f"Cursors({self.of})"


@dataclass(frozen=True)
class Pools:
    """Each worker's own samples, which it goes through in epochs of its own (`epochs=independent`): no worker waits for another.

    A budget of epochs is one of samples over all pools, so a fast worker may go through its pool more often than a slow one.
    """

    sizes: tuple[int, ...]
    """Samples in each worker's pool."""
    num_positions: int | None = None
    """How many positions of all pools together are assigned; None: no end."""

    def has_next(self, cursors: Sequence[int], present: Iterable[int]) -> bool:
        """Whether there is a position for one of the workers that are present."""
        return self._left(cursors) != 0

    def room(self, rank: int, cursors: Sequence[int], held: Iterable[Batch], present: Iterable[int]) -> float:
        """How many positions a worker may take now; inf: any number.

        `cursors` are how far each pool is assigned, `held` the ranges whose gradients have not come back.
        """
        return self._left(cursors)

    def samples(self, cursors: Sequence[int], shares: Sequence[int], present: Iterable[int]) -> tuple[int, ...]:
        """What each worker takes of a global batch: its share. At the end of the budget the ranks that follow have fewer, or none."""
        left = self._left(cursors)
        if left >= sum(shares):
            return tuple(shares)
        before = accumulate(shares, initial=0)
        return tuple(int(max(0, min(share, left - offset))) for share, offset in zip(shares, before, strict=False))

    def epoch(self, cursors: Sequence[int], present: Iterable[int]) -> int | None:
        """The epoch that all workers are in together; None: each has its own."""
        return None

    def _left(self, cursors: Sequence[int]) -> float:
        return math.inf if self.num_positions is None else max(0, self.num_positions - sum(cursors))


@dataclass(frozen=True)
class AlignedPools(Pools):
    """As `Pools`, but no worker begins its pool's next epoch before all others that are present have ended this one (`epochs=aligned`).

    No range goes beyond the end of an epoch, and of a budget of E epochs each pool has E times its samples. A pool whose owner is absent
    holds nobody back; a worker that comes back takes up its own epoch, and the others wait until it has caught up.
    """

    limits: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """The end of each pool's part of the budget."""

    def __post_init__(self) -> None:
        limits = (math.inf,) * len(self.sizes) if self.num_positions is None else parts(self.num_positions, self.sizes)
        object.__setattr__(self, "limits", limits)

    def has_next(self, cursors: Sequence[int], present: Iterable[int]) -> bool:
        return self.epoch(cursors, present) is not None

    def room(self, rank: int, cursors: Sequence[int], held: Iterable[Batch], present: Iterable[int]) -> float:
        ended = list(cursors)
        for batch in held:
            ended[batch.pool] = batch.start
        return self._room(rank, cursors, self.epoch(ended, present))

    def samples(self, cursors: Sequence[int], shares: Sequence[int], present: Iterable[int]) -> tuple[int, ...]:
        """Its share, or what its pool has left of the epoch: at the end of an epoch a global batch is smaller."""
        epoch = self.epoch(cursors, present)
        return tuple(int(min(share, self._room(rank, cursors, epoch))) for rank, share in enumerate(shares))

    def epoch(self, cursors: Sequence[int], present: Iterable[int]) -> int | None:
        """The earliest epoch that a worker which is present has not ended; None if all are at the end of the budget."""
        return min((cursors[rank] // self.sizes[rank] for rank in present if cursors[rank] < self.limits[rank]), default=None)

    def _room(self, rank: int, cursors: Sequence[int], epoch: int | None) -> float:
        return 0 if epoch is None else max(0, min((epoch + 1) * self.sizes[rank], self.limits[rank]) - cursors[rank])


def parts(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Whole parts of `total` in proportion to these sizes, by largest remainder; ties go to the lower rank."""
    quotas = [divmod(total * size, sum(sizes)) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda rank: (-quotas[rank][1], rank))
    more = frozenset(by_remainder[: total - sum(whole for whole, _ in quotas)])
    return tuple(whole + (rank in more) for rank, (whole, _) in enumerate(quotas))
