"""What is to be done, and who takes which range of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, overload

from hetsim.effects import Batch
from hetsim.policies.allocation.base import proportional

AT_ONCE = 3  # splits that are in force at the same time, as some ranks have decided again and others not yet


class Layout(NamedTuple):
    """How a whole global batch is laid out: each rank's samples, where they begin in it, and who has any."""

    samples: tuple[int, ...]
    offsets: tuple[int, ...]
    ranks: Sequence[int]

    @classmethod
    def of(cls, samples: tuple[int, ...]) -> Layout:
        """One rank behind the other."""
        ranks = range(len(samples)) if all(samples) else tuple(rank for rank, share in enumerate(samples) if share)
        return cls(samples, tuple(accumulate(samples[:-1], initial=0)), ranks)


@dataclass(frozen=True, slots=True)
class Split(Sequence[Batch]):
    """The ranges of one global batch in rank order, from `start` to `stop`, each made where it is looked at.

    The last global batch of an epoch budget is shorter than its layout: whoever lies behind its end has an empty range.
    """

    start: int
    stop: int
    layout: Layout = field(repr=False)

    @property
    def num_samples(self) -> int:
        """Of all ranks together."""
        return self.stop - self.start

    @property
    def ranks(self) -> Sequence[int]:
        """Who has any samples, in order."""
        _, offsets, ranks = self.layout
        if offsets[ranks[-1]] < self.num_samples:
            return ranks
        return ranks[: bisect_left(ranks, self.num_samples, key=offsets.__getitem__)]

    @property
    def samples(self) -> tuple[int, ...]:
        """Each rank's."""
        whole = self.num_samples == self.layout.offsets[-1] + self.layout.samples[-1]
        return self.layout.samples if whole else tuple(batch.samples for batch in self)

    def __len__(self) -> int:
        return len(self.layout.samples)

    @overload
    def __getitem__(self, rank: int) -> Batch: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Batch]: ...
    def __getitem__(self, rank: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(rank, slice):
            return tuple(self)[rank]
        start = min(self.start + self.layout.offsets[rank], self.stop)
        return Batch(start, min(self.layout.samples[rank], self.stop - start))


@dataclass(frozen=True, slots=True)
class Plan:
    """N workers, a global batch of B samples, and how many positions to hand out in all (None: no end).

    The first `num_parameters` numbers of a vector are parameters; what stands behind them is averaged (None: all are).
    """

    num_workers: int
    batch_size: int
    num_positions: int | None = None
    samples_per_epoch: int | None = None
    num_parameters: int | None = None
    max_samples: tuple[int, ...] | None = None
    """What fits into each worker's memory, in samples (None: everything)."""
    absent: frozenset[int] = frozenset()
    """Workers that are not there: the others take their shares too."""
    _by_identity: dict[int, tuple[Sequence[int], Layout]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _by_value: dict[tuple[int, ...], Layout] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def active_ranks(self) -> list[int]:
        """Workers that are there."""
        return [rank for rank in range(self.num_workers) if rank not in self.absent]

    def epoch(self, num_samples: int) -> int:
        """Whole passes over the data in so many samples."""
        return 0 if self.samples_per_epoch is None else num_samples // self.samples_per_epoch

    def clip(self, start: int, samples: int) -> Batch:
        """The range of at most `samples` positions from `start`: shorter at the end, and empty behind it."""
        if samples < 1:
            raise ValueError(f"the allocation gave a worker {samples} samples: shares must be whole numbers of at least 1")
        if self.num_positions is None:
            return Batch(start, samples)
        return Batch(start, max(0, min(samples, self.num_positions - start)))

    def split(self, start: int, shares: Sequence[int]) -> Split:
        """The ranges of one global batch. Shares that stay the same tuple are looked at once: then this takes no time in N."""
        stop = start + self.batch_size if self.num_positions is None else min(start + self.batch_size, self.num_positions)
        return Split(start, max(start, stop), self._layout(shares))

    def rounds(self, start: int, shares: Sequence[int], max_rounds: int) -> list[Split]:
        """The ranges of each of the next `max_rounds` global batches; fewer where the last epoch ends."""
        rounds: list[Split] = []
        while len(rounds) < max_rounds and start != self.num_positions:
            rounds.append(self.split(start, shares))
            start = rounds[-1].stop
        return rounds

    def _layout(self, shares: Sequence[int]) -> Layout:
        """Remembered by the tuple itself, and shared by equal ones: in a simulation each rank may hold one of its own."""
        known = self._by_identity.get(id(shares))
        if known is not None:
            return known[1]
        if len(self._by_value) > AT_ONCE or len(self._by_identity) > AT_ONCE * self.num_workers:
            self._by_identity.clear()
            self._by_value.clear()
        samples = tuple(shares)
        layout = self._by_value.get(samples)
        if layout is None:
            layout = self._by_value[samples] = Layout.of(self._redistribute(self._checked(samples)))
        if samples is shares:  # any other sequence might change; as long as it is held here, nothing else has its id
            self._by_identity[id(shares)] = (shares, layout)
        return layout

    def _checked(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        if len(shares) != self.num_workers or sum(shares) != self.batch_size:
            raise ValueError(f"the allocation gave shares {shares}: {self.num_workers} whole numbers with sum {self.batch_size} are needed")
        for share, max_samples in zip(shares, self.max_samples or shares, strict=True):
            self.clip(0, share)
            if share > max_samples:
                raise ValueError(
                    f"the allocation gave a worker {share} samples, but {max_samples} fit into its memory: let it heed `max_samples`"
                )
        return shares

    def _redistribute(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """Whoever is here takes the shares of those who are not, in proportion to one's own, as far as memory allows."""
        if not self.absent:
            return shares
        here = self.active_ranks
        max_samples = None if self.max_samples is None else [self.max_samples[rank] for rank in here]
        if max_samples is not None and sum(max_samples) < self.batch_size:
            raise ValueError(
                f"with {len(self.absent)} nodes gone the others' max_samples hold {sum(max_samples)} samples in all, but "
                f"batch_size={self.batch_size}: lower it, or raise them"
            )
        taken = dict(zip(here, proportional([shares[rank] for rank in here], self.batch_size, max_samples=max_samples), strict=True))
        return tuple(taken.get(rank, 0) for rank in range(self.num_workers))
