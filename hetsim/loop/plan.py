"""The samples of an epoch of a user's loop, and the ranges that a rank will probably be asked for next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from hetsim.coordination.plan import Layout, Plan, Split
from hetsim.effects import Batch
from hetsim.policies.allocation.base import proportional
from hetsim.workloads.tasks.sequence import Sequence as SampleSequence


@dataclass(frozen=True, slots=True)
class EpochPlan(Plan):
    """A plan that ends with an epoch. Its short last batch is divided among all workers, because each rank's loop makes each step.

    Fewer samples than workers are added to the batch before.
    """

    def split(self, start: int, shares: Sequence[int]) -> Split:
        """The ranges of the next global batch.

        Args:
            start: the first position.
            shares: the samples of each worker in a whole global batch.
        """
        whole = Plan.split(self, start, shares)
        assert self.num_positions is not None
        samples = self.num_positions - start
        if samples >= self.batch_size + self.num_workers or samples == self.batch_size:
            return whole
        least = min(self.least_share, samples // self.num_workers)
        weights = [max(share, 1e-9) for share in whole.layout.samples]
        return Split(start, self.num_positions, Layout.of(proportional(weights, samples, least=least)))

    def of_epoch(self, epoch: int) -> EpochPlan:
        """The plan that ends with this epoch."""
        return replace(self, num_positions=(epoch + 1) * self.per_epoch)

    @property
    def per_epoch(self) -> int:
        """The number of positions of an epoch."""
        assert self.samples_per_epoch is not None
        return self.samples_per_epoch


def num_steps(num_samples: int, batch_size: int, num_workers: int) -> int:
    """The number of global batches of an epoch of an EpochPlan."""
    whole, rest = divmod(num_samples, batch_size)
    return max(1, whole + (rest >= num_workers))


def foreseen(plan: Plan, rank: int, start: int, shares: Sequence[int]) -> Iterator[Batch]:
    """The ranges of a rank from this position to the end of the epoch, if the shares do not change."""
    while plan.has_next(start):
        split = plan.split(start, shares)
        start = split.stop
        if split[rank]:
            yield split[rank]


class SampledOrder:
    """The sample at each position of an epoch, as a sampler of the first worker draws it."""

    def __init__(self, sampler: Any, group: Any, per_epoch: int) -> None:
        self.per_epoch = per_epoch
        self._sampler, self._group = sampler, group
        self.drawn: tuple[int, torch.Tensor] | None = None
        """The epoch that is under way, and its samples."""

    def begin(self, epoch: int) -> None:
        """Draw an epoch, unless it is known. All workers call this method."""
        if self.drawn is None or self.drawn[0] != epoch:
            drawn = torch.zeros(self.per_epoch, dtype=torch.float64)  # gloo's sums are of floats, which are exact here
            if self._group.rank == 0:
                samples = torch.tensor([int(index) for index in islice(self._sampler, self.per_epoch)], dtype=torch.float64)
                drawn[: len(samples)] = samples + 1
            self.drawn = epoch, self._group.sum(drawn).long() - 1
            if bool((self.drawn[1] < 0).any()):
                raise ValueError(f"the sampler drew fewer samples than the {self.per_epoch} of an epoch: its __len__ must be their number")

    def indices(self, batch: Batch) -> list[int]:
        """The samples at these positions of the epoch that is under way."""
        assert self.drawn is not None
        offset = batch.start % self.per_epoch
        indices: list[int] = self.drawn[1][offset : offset + batch.samples].tolist()
        return indices


class EpochOrder:
    """The sample at each position. With `per_epoch` below the number of samples, each epoch leaves out other samples."""

    def __init__(self, num_samples: int, per_epoch: int, *, seed: int, shuffle: bool) -> None:
        self.per_epoch = per_epoch
        self.shuffle = shuffle
        self._shuffled = SampleSequence(num_samples, seed=seed)

    def indices(self, batch: Batch) -> list[int]:
        """The samples at these positions of one epoch."""
        epoch, offset = divmod(batch.start, self.per_epoch)
        if not self.shuffle:
            return list(range(offset, offset + batch.samples))
        start = epoch * self._shuffled.num_samples + offset
        indices: list[int] = self._shuffled.indices(Batch(start, batch.samples)).tolist()
        return indices
