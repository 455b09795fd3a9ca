"""All workers' contributions to one version of a synchronous method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, overload

from hetsim.coordination.plan import Split
from hetsim.effects import Batch, Contribution


class ComputedSplit(NamedTuple):
    """A computed global batch, with the seconds and the loss of this rank."""

    batches: Split
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class SynchronousContributions(Sequence[Contribution]):
    """All workers' contributions to a version, round by round and in rank order. Each contribution is made when it is read.

    A rank does not know the others' seconds and loss, so each contribution has those of this rank, unless `timings` has the
    seconds of the same rank over as many samples.
    """

    version: int
    rounds: tuple[ComputedSplit, ...] = ()
    staleness: int = 0
    timings: Sequence[Contribution] = field(default=(), repr=False)

    def appended(self, batches: Split, seconds: float, loss: float) -> SynchronousContributions:
        """These contributions and one more gradient of every rank."""
        return replace(self, rounds=(*self.rounds, ComputedSplit(batches, seconds, loss)))

    def by_rank(self) -> list[Contribution]:
        """One contribution for each rank, over the samples of all rounds. Its seconds are the sum of this rank's seconds."""
        seconds = sum(round_.seconds for round_ in self.rounds)
        samples = [sum(of_rank) for of_rank in zip(*(round_.batches.samples for round_ in self.rounds), strict=True)]
        return [Contribution(rank, Batch(0, b), self.version, seconds, 0.0, self.staleness) for rank, b in enumerate(samples) if b]

    @property
    def mean_loss(self) -> float:
        """The mean loss over all contributions."""
        return sum(len(round_.batches.ranks) * round_.loss for round_ in self.rounds) / len(self)

    def __len__(self) -> int:
        return sum(len(round_.batches.ranks) for round_ in self.rounds)

    def __iter__(self) -> Iterator[Contribution]:
        measured = {(timing.rank, timing.samples): timing.seconds for timing in self.timings}
        for round_ in self.rounds:
            for rank in round_.batches.ranks:
                yield self._part(round_, rank, measured)

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
        round_ = next(rounds)
        while place >= len(round_.batches.ranks):
            place -= len(round_.batches.ranks)
            round_ = next(rounds)
        return self._part(round_, round_.batches.ranks[place], {})

    def _part(self, round_: ComputedSplit, rank: int, measured: Mapping[tuple[int, int], float]) -> Contribution:
        batch = round_.batches[rank]
        seconds = measured.get((rank, batch.samples), round_.seconds)
        return Contribution(rank, batch, self.version, seconds, round_.loss, self.staleness)


def ranks(group: Sequence[Contribution]) -> Iterable[int]:
    """The rank of each contribution of a group, in order."""
    if isinstance(group, SynchronousContributions):
        return chain.from_iterable(round_.batches.ranks for round_ in group.rounds)
    return (c.rank for c in group)


def part(group: Sequence[Contribution], factors: Sequence[float], rank: int) -> float:
    """This rank's factor in a group; 0 for a rank with an empty range."""
    return sum(factor for c, factor in zip(group, factors, strict=True) if c.rank == rank)


def mean_loss(applied: Sequence[Contribution]) -> float:
    """The mean loss of these contributions, at least one."""
    if isinstance(applied, SynchronousContributions):
        return applied.mean_loss
    return sum([c.loss for c in applied]) / len(applied)


def max_staleness(applied: Sequence[Contribution]) -> int:
    """The largest staleness of these contributions; 0 if there are none."""
    if isinstance(applied, SynchronousContributions):
        return applied.staleness
    return max([c.staleness for c in applied], default=0)
