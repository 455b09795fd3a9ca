"""What a rank has measured and not reported yet, and how everyone's measurements are gathered for an allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.coordination.plan import Split
from hetsim.effects import Batch, Contribution, Gather, Program


@dataclass(frozen=True)
class UnreportedTimings:
    """What all ranks have computed since the allocation last asked, and the seconds that it took this rank."""

    splits: tuple[tuple[Split, int], ...] = ()
    """Splits, each with how many gradients in a row it was used for."""
    seconds: float = 0.0

    def appended(self, batches: Split, seconds: float) -> UnreportedTimings:
        """With one more gradient of each rank."""
        return self + UnreportedTimings(((batches, 1),), seconds)

    def __add__(self, other: UnreportedTimings) -> UnreportedTimings:
        """These measurements, and then the others."""
        before, after = self.splits, other.splits
        if before and after and same_shares(before[-1][0], after[0][0]):
            after = ((after[0][0], before[-1][1] + after[0][1]), *after[1:])
            before = before[:-1]
        return UnreportedTimings(before + after, self.seconds + other.seconds)

    def timings(self, version: int, everyones: Sequence[float]) -> tuple[Contribution, ...]:
        """For an allocation: each rank's mean number of samples per gradient, and its mean gathered seconds."""
        num_gradients = sum(count for _, count in self.splits)
        samples = [0] * len(everyones)
        for batches, count in self.splits:
            samples = [b + count * more for b, more in zip(samples, batches.samples, strict=True)]
        return tuple(
            Contribution(rank, Batch(0, round(b / num_gradients)), version, everyones[rank] / num_gradients, 0.0)
            for rank, b in enumerate(samples)
            if b
        )


def same_shares(one: Split, other: Split) -> bool:
    """Whether each rank has as many samples in one split as in the other; does not look at the ranks."""
    return one.layout is other.layout and one.num_samples == other.num_samples


def gather_timings(
    unreported: UnreportedTimings, version: int, *, asked: bool
) -> Program[tuple[tuple[Contribution, ...], UnreportedTimings]]:
    """If the allocation asks: the timings of all ranks since it last asked; and what is unreported after that."""
    if not asked:
        return (), unreported
    everyones = yield from Gather(unreported.seconds)
    return unreported.timings(version, everyones), UnreportedTimings()
