"""Timings that a rank has not reported yet, and the gather of all ranks' timings for an allocation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetsim.coordination.plan import Split
from hetsim.effects import Batch, Contribution, Gather, Program


class ComputedBatches(NamedTuple):
    """Consecutive global batches with `num_samples` each that have the same shares, and the number of these batches."""

    shares: tuple[int, ...]
    num_samples: int
    num_gradients: int

    def samples(self) -> Iterator[int]:
        """Each rank's total samples. The last global batch of an epoch budget is shorter than the sum of shares."""
        remaining = self.num_samples
        for share in self.shares:
            yield self.num_gradients * min(share, remaining)
            remaining -= min(share, remaining)


@dataclass(frozen=True)
class UnreportedTimings:
    """All ranks' batches since the allocation last asked for timings, and this rank's seconds for them."""

    computed: tuple[ComputedBatches, ...] = ()
    seconds: float = 0.0

    def appended(self, batches: Split, seconds: float) -> UnreportedTimings:
        """These timings and one more gradient of each rank."""
        shares, num_samples, computed = batches.layout.samples, batches.num_samples, self.computed
        if computed and computed[-1].shares is shares and computed[-1].num_samples == num_samples:
            longer = ComputedBatches(shares, num_samples, computed[-1].num_gradients + 1)
            return UnreportedTimings((*computed[:-1], longer), self.seconds + seconds)
        return self + UnreportedTimings((ComputedBatches(shares, num_samples, 1),), seconds)

    def __add__(self, other: UnreportedTimings) -> UnreportedTimings:
        """These timings followed by the others."""
        first, second = self.computed, other.computed
        if first and second and same_split(first[-1], second[0]):
            second = (second[0]._replace(num_gradients=first[-1].num_gradients + second[0].num_gradients), *second[1:])
            first = first[:-1]
        return UnreportedTimings(first + second, self.seconds + other.seconds)

    def timings(self, version: int, gathered: Sequence[float]) -> tuple[Contribution, ...]:
        """Each rank's mean number of samples per gradient, and its mean gathered seconds. For an allocation."""
        num_gradients = sum(computed.num_gradients for computed in self.computed)
        samples = [sum(of_rank) for of_rank in zip(*(computed.samples() for computed in self.computed), strict=True)]
        return tuple(
            Contribution(rank, Batch(0, round(b / num_gradients)), version, gathered[rank] / num_gradients, 0.0)
            for rank, b in enumerate(samples)
            if b
        )


def same_split(first: ComputedBatches, second: ComputedBatches) -> bool:
    """Whether each rank has the same number of samples in both. After a resume, equal shares may be different objects."""
    return first.num_samples == second.num_samples and (first.shares is second.shares or first.shares == second.shares)


def gather_timings(
    unreported: UnreportedTimings, version: int, *, asked: bool
) -> Program[tuple[tuple[Contribution, ...], UnreportedTimings]]:
    """Gather the timings of all ranks if the allocation asks for them. Returns them, and the timings that are then unreported."""
    if not asked:
        return (), unreported
    gathered = yield from Gather(unreported.seconds)
    return unreported.timings(version, gathered), UnreportedTimings()
