"""The samples that a run assigns, and which rank takes which range of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, overload

from hetsim.coordination.bookkeeping.pools import Cursors, Pools
from hetsim.coordination.bookkeeping.regions import Regions
from hetsim.effects import Batch, ProgramError
from hetsim.policies.allocation.base import proportional

MAX_CACHED_LAYOUTS = 3
"""The number of cached layouts. Several splits are in use at once, because some ranks have observed newer timings than others."""


class Layout(NamedTuple):
    """The layout of a whole global batch: each rank's samples, their offsets in the batch, and the ranks that have any."""

    samples: tuple[int, ...]
    offsets: tuple[int, ...]
    ranks: Sequence[int]

    @classmethod
    def of(cls, samples: tuple[int, ...]) -> Layout:
        """The layout that places the samples of each rank after those of the previous rank."""
        ranks = range(len(samples)) if all(samples) else tuple(rank for rank, share in enumerate(samples) if share)
        return cls(samples, tuple(accumulate(samples[:-1], initial=0)), ranks)


@dataclass(frozen=True, slots=True)
class Split(Sequence[Batch]):
    """The ranges of one global batch in rank order, from `start` to `stop`. Each range is computed when it is read.

    The last global batch of an epoch budget is shorter than its layout: the ranks after its end have an empty range.
    """

    start: int
    stop: int
    layout: Layout = field(repr=False)

    @property
    def num_samples(self) -> int:
        """The samples of all ranks together."""
        return self.stop - self.start

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that have samples, in order."""
        _, offsets, ranks = self.layout
        if offsets[ranks[-1]] < self.num_samples:
            return ranks
        return ranks[: bisect_left(ranks, self.num_samples, key=offsets.__getitem__)]

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples of each rank."""
        complete = self.num_samples == self.layout.offsets[-1] + self.layout.samples[-1]
        return self.layout.samples if complete else tuple(batch.samples for batch in self)

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
class PooledSplit(Split):
    """The ranges of one global batch if each rank takes samples from its own pool. `start` and `stop` are Cursors."""

    @property
    def ranks(self) -> Sequence[int]:
        return self.layout.ranks

    @property
    def samples(self) -> tuple[int, ...]:
        return self.layout.samples

    @overload
    def __getitem__(self, rank: int) -> Batch: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Batch]: ...
    def __getitem__(self, rank: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(rank, slice):
            return tuple(self)[rank]
        return Batch(cursors(self.start).of[rank], self.layout.samples[rank], rank)


@dataclass(frozen=True, slots=True)
class Plan:
    """N workers (`num_workers`), a global batch of B samples (`batch_size`), and the positions of a run.

    `num_positions` is the total number of positions to assign (None: no limit). `samples_per_epoch` is the number of positions in one
    pass over the data. The first `num_parameters` entries of a vector are parameters (None: all are); the other entries are averaged.
    """

    num_workers: int
    batch_size: int
    num_positions: int | None = None
    samples_per_epoch: int | None = None
    num_parameters: int | None = None
    max_samples: tuple[int, ...] | None = None
    """The maximum number of samples in each worker's memory, in rank order (None: no limit)."""
    absent: frozenset[int] = frozenset()
    """The absent workers. The active ranks compute their shares."""
    pools: Pools | None = None
    """The samples that belong to each worker; None: all workers share one pool."""
    regions: Regions | None = None
    """The local server of each worker; None in methods without local servers."""
    least_share: int = 1
    """The fewest samples of a worker in a whole global batch: 0 if the allocation `leaves_out` workers."""
    _by_identity: dict[int, tuple[Sequence[int], Layout]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _by_value: dict[tuple[int, ...], Layout] = field(default_factory=dict, init=False, repr=False, compare=False)
    _pooled: list[tuple[Layout, PooledSplit]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def active_ranks(self) -> list[int]:
        """The workers that are present."""
        return [rank for rank in range(self.num_workers) if rank not in self.absent]

    @property
    def first(self) -> int:
        """The first position of a run: 0, or Cursors if data belong to workers."""
        return 0 if self.pools is None else Cursors((0,) * self.num_workers)

    def has_next(self, start: int) -> bool:
        """Whether any position is left for a present worker.

        Args:
            start: a position: `State.next_sample`.
        """
        if self.pools is None:
            return start != self.num_positions
        return self.pools.has_next(cursors(start).of, self.active_ranks)

    def epoch(self, num_samples: int) -> int:
        """The number of whole passes over the data.

        Args:
            num_samples: the samples so far.
        """
        return 0 if self.samples_per_epoch is None else num_samples // self.samples_per_epoch

    def clip(self, start: int, samples: int) -> Batch:
        """A range of the shared pool. It is shorter at the last position, and empty after it.

        Args:
            start: the first position.
            samples: the maximum number of samples in the range.

        Raises:
            ProgramError: the data belong to workers, so there is no shared pool.
        """
        check_share(samples)
        if self.pools is not None:
            raise ProgramError("a program clips ranges of a pool that all workers share, but data=owned: let it split, or take data=shared")
        if self.num_positions is None:
            return Batch(start, samples)
        return Batch(start, max(0, min(samples, self.num_positions - start)))

    def split(self, start: int, shares: Sequence[int]) -> Split:
        """The ranges of one global batch, in rank order. If you pass the same tuple of shares again, the cost does not depend on N.

        Args:
            start: the first position: `State.next_sample`, or `stop` of the last split.
            shares: the samples of each worker, in rank order, with sum B.

        Raises:
            ValueError: the shares are not N whole numbers of at least `least_share` with sum B, or exceed a worker's memory.
        """
        if self.pools is not None:
            return self._split_pools(self.pools, cursors(start), self._layout(shares))
        stop = start + self.batch_size if self.num_positions is None else min(start + self.batch_size, self.num_positions)
        return Split(start, max(start, stop), self._layout(shares))

    def rounds(self, start: int, shares: Sequence[int], max_rounds: int) -> list[Split]:
        """The ranges of each of the next global batches. There are fewer at the end of the last epoch, and of aligned epochs.

        Args:
            start: the first position.
            shares: the samples of each worker, in rank order, with sum B.
            max_rounds: the maximum number of global batches.
        """
        rounds: list[Split] = []
        while len(rounds) < max_rounds and self.has_next(start) and not (rounds and self._ends_epoch(rounds[0].start, start)):
            rounds.append(self.split(start, shares))
            start = rounds[-1].stop
        return rounds

    def _ends_epoch(self, start: int, stop: int) -> bool:
        """Whether these positions contain the end of an aligned epoch."""
        if self.pools is None:
            return False
        first, last = (self.pools.epoch(cursors(position).of, self.active_ranks) for position in (start, stop))
        return first != last

    def _split_pools(self, pools: Pools, start: Cursors, layout: Layout) -> PooledSplit:
        """Make a split of pools. Cached by the identity of start and layout, because all ranks of a simulation make the same call."""
        for cached_layout, split in self._pooled:
            if split.start is start and cached_layout is layout:
                return split
        samples = pools.samples(start.of, layout.samples, self.active_ranks)
        split = PooledSplit(start, start.advanced(samples), layout if samples == layout.samples else Layout.of(samples))
        self._pooled[:] = [*self._pooled[1 - MAX_CACHED_LAYOUTS :], (layout, split)]
        return split

    def _layout(self, shares: Sequence[int]) -> Layout:
        """The layout of these shares, cached by the identity of the tuple. Equal tuples share a layout, as each rank may hold its own."""
        cached = self._by_identity.get(id(shares))
        if cached is not None:
            return cached[1]
        if len(self._by_value) > MAX_CACHED_LAYOUTS or len(self._by_identity) > MAX_CACHED_LAYOUTS * self.num_workers:
            self._by_identity.clear()
            self._by_value.clear()
        samples = tuple(shares)
        layout = self._by_value.get(samples)
        if layout is None:
            layout = self._by_value[samples] = Layout.of(self._redistribute(self._check_shares(samples)))
        if samples is shares:  # another sequence might change; while this tuple is kept active, no other object has its id
            self._by_identity[id(shares)] = (shares, layout)
        return layout

    def _check_shares(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        if len(shares) != self.num_workers or sum(shares) != self.batch_size:
            raise ValueError(f"the allocation gave shares {shares}: {self.num_workers} whole numbers with sum {self.batch_size} are needed")
        for share, max_samples in zip(shares, self.max_samples or shares, strict=True):
            check_share(share, self.least_share)
            if share > max_samples:
                raise ValueError(
                    f"the allocation gave a worker {share} samples, but {max_samples} fit into its memory: let it respect `max_samples`"
                )
        return shares

    def _redistribute(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """The active ranks take the shares of the absent ones, in proportion to their shares, as far as their memory allows."""
        if not self.absent:
            return shares
        active = self.active_ranks
        max_samples = None if self.max_samples is None else [self.max_samples[rank] for rank in active]
        if max_samples is not None and sum(max_samples) < self.batch_size:
            raise ValueError(
                f"with {len(self.absent)} nodes absent, the others' max_samples hold {sum(max_samples)} samples in all, but "
                f"batch_size={self.batch_size}: lower it, or raise them"
            )
        weights = [shares[rank] for rank in active]
        weights = weights if any(weights) else [1] * len(active)  # all samples were for absent ranks
        split = proportional(weights, self.batch_size, least=self.least_share, max_samples=max_samples)
        by_rank = dict(zip(active, split, strict=True))
        return tuple(by_rank.get(rank, 0) for rank in range(self.num_workers))


def cursors(position: int) -> Cursors:
    """A position of a run whose data belong to workers."""
    if not isinstance(position, Cursors):
        raise ProgramError(
            f"a program splits a global batch from {position!r} on, but data=owned: let it begin at State.next_sample, and keep there the "
            "`stop` of the split before"
        )
    return position


def check_share(samples: int, least: int = 1) -> None:
    """Raise ValueError if a share is invalid."""
    if samples < least:
        raise ValueError(f"the allocation gave a worker {samples} samples: shares must be whole numbers of at least {least}")
