"""Every worker's part in one version of a synchronous method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

from hetsim.coordination.plan import Split
from hetsim.effects import Batch, Contribution


class Round(NamedTuple):
    """A global batch that was computed, with one's own seconds and loss."""

    batches: Split
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class SynchronousContributions(Sequence[Contribution]):
    """Everyone's part in a version, round by round and in rank order, made into contributions where they are looked at.

    A rank does not know the others' seconds and loss, so they are its own, but for whom `timings` tells of as many samples.
    """

    version: int
    rounds: tuple[Round, ...] = ()
    staleness: int = 0
    timings: Sequence[Contribution] = field(default=(), repr=False)

    def appended(self, batches: Split, seconds: float, loss: float) -> SynchronousContributions:
        """With one more gradient of everyone."""
        return replace(self, rounds=(*self.rounds, Round(batches, seconds, loss)))

    def by_rank(self) -> list[Contribution]:
        """All rounds of each rank as one contribution: over so many samples, in so many of one's own seconds."""
        seconds = sum(its.seconds for its in self.rounds)
        samples = [sum(of_rank) for of_rank in zip(*(its.batches.samples for its in self.rounds), strict=True)]
        return [Contribution(rank, Batch(0, b), self.version, seconds, 0.0, self.staleness) for rank, b in enumerate(samples) if b]

    @property
    def mean_loss(self) -> float:
        """Over all contributions."""
        return sum(len(its.batches.ranks) * its.loss for its in self.rounds) / len(self)

    def __len__(self) -> int:
        return sum(len(its.batches.ranks) for its in self.rounds)

    def __iter__(self) -> Iterator[Contribution]:
        measured = {(timing.rank, timing.samples): timing.seconds for timing in self.timings}
        for its in self.rounds:
            for rank in its.batches.ranks:
                yield self._part(its, rank, measured)

    @overload
    def __getitem__(self, index: int) -> Contribution: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Contribution]: ...
    def __getitem__(self, index: int | slice) -> Contribution | Sequence[Contribution]:
        if isinstance(index, slice):
            return tuple(self)[index]
        if self.timings:
            return list(self)[index]
        place = range(len(self))[index]
        rounds = iter(self.rounds)
        its = next(rounds)
        while place >= len(its.batches.ranks):
            place -= len(its.batches.ranks)
            its = next(rounds)
        return self._part(its, its.batches.ranks[place], {})

    def _part(self, its: Round, rank: int, measured: Mapping[tuple[int, int], float]) -> Contribution:
        batch = its.batches[rank]
        seconds = measured.get((rank, batch.samples), its.seconds)
        return Contribution(rank, batch, self.version, seconds, its.loss, self.staleness)


def part(group: Sequence[Contribution], factors: Sequence[float], rank: int) -> float:
    """This rank's factor in a group; a rank with an empty range has no part in it."""
    return sum(factor for c, factor in zip(group, factors, strict=True) if c.rank == rank)


def latest(applied: Sequence[Contribution]) -> int:
    """The largest staleness among these contributions; 0 where there are none."""
    if isinstance(applied, SynchronousContributions):
        return applied.staleness
    return max([c.staleness for c in applied], default=0)
