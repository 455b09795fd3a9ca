"""Pools of samples that belong to workers: the progress in each pool, and the positions that may be assigned next."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hetsim.effects import Batch


class Cursors(int):
    """The number of positions assigned over all pools, and the cursor of each pool: its first position that is not assigned.

    Programs use it in place of a plain position, and it has the value of that number. Arithmetic returns a plain number.
    """

    of: tuple[int, ...]
    """The cursor of each pool."""
    _fields = ("of",)

    def __new__(cls, of: Iterable[int]) -> Cursors:
        of = tuple(of)
        cursors = super().__new__(cls, sum(of))
        cursors.of = of
        return cursors

    def advanced(self, samples: Sequence[int]) -> Cursors:
        """The cursors after `samples[i]` further positions of pool i."""
        return Cursors((*(map(int.__add__, self.of, samples)), *self.of[len(samples) :]))

    def rewound(self, outstanding: Collection[Batch]) -> Cursors:
        """The cursors before these ranges, so that they are assigned again. They must be the last ranges of their pools."""
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
    """Each worker's own samples. It goes through them in its own epochs (`epochs=independent`), so no worker waits for another.

    A budget of epochs counts samples over all pools, so a fast worker may go through its pool more often than a slow one.
    """

    sizes: tuple[int, ...]
    """The number of samples in each worker's pool."""
    num_positions: int | None = None
    """The number of positions to assign over all pools; None: no limit."""

    def has_next(self, cursors: Sequence[int], present: Iterable[int]) -> bool:
        """Whether a position is left for any present worker."""
        return self._left(cursors) != 0

    def room(self, rank: int, cursors: Sequence[int], held: Iterable[Batch], present: Iterable[int]) -> float:
        """The number of positions that a worker may take now; inf: no limit.

        `cursors` are the pools' cursors. `held` contains the assigned ranges whose gradients have not arrived.
        """
        return self._left(cursors)

    def samples(self, cursors: Sequence[int], shares: Sequence[int], present: Iterable[int]) -> tuple[int, ...]:
        """Each worker's samples of a global batch: its share. At the end of the budget, the last ranks have fewer or none."""
        num_left = self._left(cursors)
        if num_left >= sum(shares):
            return tuple(shares)
        offsets = accumulate(shares, initial=0)
        return tuple(int(max(0, min(share, num_left - offset))) for share, offset in zip(shares, offsets, strict=False))

    def epoch(self, cursors: Sequence[int], present: Iterable[int]) -> int | None:
        """The epoch that all workers share; None if each has its own."""
        return None

    def _left(self, cursors: Sequence[int]) -> float:
        return math.inf if self.num_positions is None else max(0, self.num_positions - sum(cursors))


@dataclass(frozen=True)
class AlignedPools(Pools):
    """`Pools` in which no worker begins its pool's next epoch before all present workers have ended theirs (`epochs=aligned`).

    No range crosses the end of an epoch. A budget of E epochs contains each pool E times. No worker waits for an absent one. A worker that
    returns resumes its own epoch, and the others wait until it has caught up.
    """

    limits: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """The end of each pool's part of the budget."""

    def __post_init__(self) -> None:
        limits = (math.inf,) * len(self.sizes) if self.num_positions is None else divide_proportionally(self.num_positions, self.sizes)
        object.__setattr__(self, "limits", limits)

    def has_next(self, cursors: Sequence[int], present: Iterable[int]) -> bool:
        return self.epoch(cursors, present) is not None

    def room(self, rank: int, cursors: Sequence[int], held: Iterable[Batch], present: Iterable[int]) -> float:
        ended = list(cursors)
        for batch in held:
            ended[batch.pool] = batch.start
        return self._room(rank, cursors, self.epoch(ended, present))

    def samples(self, cursors: Sequence[int], shares: Sequence[int], present: Iterable[int]) -> tuple[int, ...]:
        """Each worker's samples: its share, or the rest of its pool's epoch. So a global batch is smaller at the end of an epoch."""
        epoch = self.epoch(cursors, present)
        return tuple(int(min(share, self._room(rank, cursors, epoch))) for rank, share in enumerate(shares))

    def epoch(self, cursors: Sequence[int], present: Iterable[int]) -> int | None:
        """The earliest epoch that a present worker has not ended; None if all have used up the budget."""
        return min((cursors[rank] // self.sizes[rank] for rank in present if cursors[rank] < self.limits[rank]), default=None)

    def _room(self, rank: int, cursors: Sequence[int], epoch: int | None) -> float:
        return 0 if epoch is None else max(0, min((epoch + 1) * self.sizes[rank], self.limits[rank]) - cursors[rank])


def divide_proportionally(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Divide `total` into whole parts in proportion to `sizes`, by largest remainder. Ties go to the lower rank."""
    quotas = [divmod(total * size, sum(sizes)) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda rank: (-quotas[rank][1], rank))
    more = frozenset(by_remainder[: total - sum(quotient for quotient, _ in quotas)])
    return tuple(quotient + (rank in more) for rank, (quotient, _) in enumerate(quotas))
