"""What every coordination shares: what is to be done, how far it has come, who takes which range, and what they add up to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, overload

from hetsim.effects import Batch, Contribution, Node, PeerLost, Program, Regroup
from hetsim.policies.admission import Admission
from hetsim.policies.allocation import Allocation, proportional
from hetsim.policies.compensation import Compensation
from hetsim.policies.compression import Compression
from hetsim.policies.weighting import Discount, Weighting
from hetsim.vector import Vector, scaled, weighted_sum

_new, _set = object.__new__, object.__setattr__

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
    most: tuple[int, ...] | None = None
    """What fits into each worker's memory, in samples (None: everything)."""
    absent: frozenset[int] = frozenset()
    """Workers that are not there: the others take their shares too."""
    _by_identity: dict[int, tuple[Sequence[int], Layout]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _by_value: dict[tuple[int, ...], Layout] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def here(self) -> list[int]:
        """Workers that are there."""
        return [rank for rank in range(self.num_workers) if rank not in self.absent]

    def epoch(self, num_samples: int) -> int:
        """Whole passes over the data in so many samples."""
        return 0 if self.samples_per_epoch is None else num_samples // self.samples_per_epoch

    def left(self, start: int, samples: int) -> Batch:
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

    def rounds(self, start: int, shares: Sequence[int], most: int) -> list[Split]:
        """The ranges of each of the next `most` global batches; fewer where the last epoch ends."""
        rounds: list[Split] = []
        while len(rounds) < most and start != self.num_positions:
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
            layout = self._by_value[samples] = Layout.of(self._of_those_here(self._checked(samples)))
        if samples is shares:  # any other sequence might change; as long as it is held here, nothing else has its id
            self._by_identity[id(shares)] = (shares, layout)
        return layout

    def _checked(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        if len(shares) != self.num_workers or sum(shares) != self.batch_size:
            raise ValueError(f"the allocation gave shares {shares}: {self.num_workers} whole numbers with sum {self.batch_size} are needed")
        for share, most in zip(shares, self.most or shares, strict=True):
            self.left(0, share)
            if share > most:
                raise ValueError(f"the allocation gave a worker {share} samples, but {most} fit into its memory: let it heed `most`")
        return shares

    def _of_those_here(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """Whoever is here takes the shares of those who are not, in proportion to one's own, as far as memory allows."""
        if not self.absent:
            return shares
        here = self.here
        most = None if self.most is None else [self.most[rank] for rank in here]
        if most is not None and sum(most) < self.batch_size:
            raise ValueError(
                f"with {len(self.absent)} nodes gone the others' max_samples hold {sum(most)} samples in all, but "
                f"batch_size={self.batch_size}: lower it, or raise them"
            )
        taken = dict(zip(here, proportional([shares[rank] for rank in here], self.batch_size, most=most), strict=True))
        return tuple(taken.get(rank, 0) for rank in range(self.num_workers))


@dataclass(frozen=True, kw_only=True)
class State:
    """A run at a commit: all that is needed to go on from here.

    A synchronous run goes on as if it had never stopped. What belongs to a rank and to no version begins afresh: gradients
    under way, a local optimizer's memory, what a compression left out, what was measured since the last re-allocation.
    """

    version: int = 0
    weights: Vector
    next_sample: int = 0
    num_samples: int = 0
    num_samples_discarded: int = 0
    allocation: Any = None
    compensation: Any = None
    admission: Any = None
    outstanding: Collection[Batch] = ()
    """Ranges that were taken and not brought back: handed out again on a new start."""
    num_gradients: tuple[int, ...] = ()
    """Filled in by the backend: by rank, gradients applied so far, which is where the rank's stream of chance stands."""
    optimizer: Any = None
    """Filled in by the backend, which owns the optimizer."""

    def but(self, **changes: Any) -> State:
        """A copy with these changes: `dataclasses.replace`, several times as fast, for what happens at every gradient."""
        other = _new(State)
        _set(other, "__dict__", self.__dict__ | changes)
        return other

    def rewound(self) -> State:
        """Before the ranges that were handed out and not applied: they are handed out again, to whoever is there now."""
        return replace(self, next_sample=min([self.next_sample, *(batch.start for batch in self.outstanding)]), outstanding=())

    @property
    def num_samples_in_flight(self) -> int:
        """Positions handed out that were neither applied nor discarded."""
        return self.next_sample - self.num_samples - self.num_samples_discarded


class Round(NamedTuple):
    """A global batch that was computed, with one's own seconds and loss."""

    batches: Split
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class Together(Sequence[Contribution]):
    """Everyone's part in a version, round by round and in rank order, made into contributions where they are looked at.

    A rank does not know the others' seconds and loss, so they are its own, but for whom `timings` tells of as many samples.
    """

    version: int
    rounds: tuple[Round, ...] = ()
    staleness: int = 0
    timings: Sequence[Contribution] = field(default=(), repr=False)

    def and_on(self, batches: Split, seconds: float, loss: float) -> Together:
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


@dataclass(frozen=True, kw_only=True)
class Coordination(ABC):
    """One method: a program for each rank, with the policies that decide for it."""

    allocation: Allocation
    weighting: Weighting
    discount: Discount
    compensation: Compensation
    admission: Admission
    compression: Compression

    needs_server: ClassVar[bool]
    """Whether there is a server, on the rank behind the last worker."""
    regroups: ClassVar[bool] = True
    """Whether a worker that goes or comes makes everyone begin anew; otherwise the server's program sees to it."""
    takes_local_steps: ClassVar[bool] = False
    """Whether a worker may take steps of its own, with the local optimizer."""
    same_on_every_rank: ClassVar[bool] = False
    """Whether all ranks ask the same questions in the same order, and the rank does no more than to pick its own range.

    A rank whose range is empty may leave out the gradient and the local step along it. Each class says it for itself: one
    that it is derived from cannot know. Then a backend may play all ranks as one.
    """

    @property
    def needs_local_steps(self) -> str | None:
        """Why it would make no sense without a local optimizer; None: it does."""
        return None

    def remark(self, last: State) -> str | None:
        """What a user should know of a run that ended here, such as that the method's own phase was never entered."""
        return None

    @property
    def num_ahead(self) -> int:
        """How many gradients a worker may still compute behind the last commit."""
        return 1

    def check(self, num_workers: int) -> None:  # noqa: B027
        """Raise ValueError, with one sentence, if its policies do not go together among so many workers."""

    def relies_on_scale(self, num_workers: int) -> bool:
        """Whether its weights act only through the scale of a single gradient, which Adam's family does not feel."""
        return False

    def initial(self, plan: Plan, weights: Vector, profile: Sequence[Contribution] = ()) -> State:
        """The state before the first step; `profile` is what each worker's gradients before the run took, if there were any."""
        allocation = self.allocation.begun(plan.num_workers, plan.batch_size, plan.most)
        return State(
            weights=weights,
            allocation=self.allocation.profiled(allocation, profile) if profile else allocation,
            compensation=self.compensation.initial(weights, plan.num_workers),
            admission=self.admission.initial(plan.num_workers),
        )

    def resilient(self, node: Node, plan: Plan, state: State | None, last: State) -> Program[State | None]:
        """This rank's program; where who takes part changes, anew from the last commit among those who are there.

        Without a `state` it joins others who are at work: it begins with the regroup, or, where none is needed, at `last`.
        """
        return self.regrouping(node, plan, state) if self.regroups else self.program(node, plan, last if state is None else state)

    def regrouping(self, node: Node, plan: Plan, state: State | None) -> Program[State | None]:
        """The program from this state on, and from that of the last commit as often as who takes part changes."""
        if len(plan.absent) == plan.num_workers:  # a server waits for the first worker
            state = None
        while True:
            try:
                if state is None:
                    regrouped = yield from Regroup()
                    plan, state = replace(plan, absent=regrouped.absent), regrouped.state
                return (yield from self.program(node, plan, state))
            except PeerLost:
                state = None

    @abstractmethod
    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        """What this rank does, from this state on. A leader may return its last state, if it dropped samples behind the last commit."""

    def factors(self, group: Sequence[Contribution], plan: Plan) -> list[float]:
        """w_i d(τ_i) / c of each contribution of a group of c."""
        fair_share = self.admission.fair_share(group, plan.batch_size, plan.num_workers)
        weights = self.weighting.weights(group, fair_share)
        return [w * self.discount.factor(c.staleness) / len(group) for w, c in zip(weights, group, strict=True)]

    def factor(self, group: Sequence[Contribution], plan: Plan, rank: int) -> float:
        """This rank's factor in a group."""
        return part(group, self.factors(group, plan), rank)

    def term(self, g: Vector, group: Sequence[Contribution], plan: Plan, rank: int) -> Vector:
        """This rank's term of (1/c) Σ w_i d(τ_i) g_i. Its factor, which takes a look at everyone, is asked for by numbers alone."""
        return scaled(g, lambda: self.factor(group, plan, rank))

    def total(self, group: Sequence[Contribution], plan: Plan) -> Vector:
        """(1/c) Σ w_i d(τ_i) g_i."""
        return weighted_sum([c.gradient for c in group], lambda: self.factors(group, plan))

    def only(self, axis: str, kind: type, why: str) -> None:
        """Refuse a policy that would do nothing, or that makes no sense, in this coordination."""
        given = getattr(self, axis)
        if not isinstance(given, kind):
            raise ValueError(f"{axis} is {type(given).__name__}, but {why}")


def part(group: Sequence[Contribution], factors: Sequence[float], rank: int) -> float:
    """This rank's factor in a group; a rank with an empty range has no part in it."""
    return sum(factor for c, factor in zip(group, factors, strict=True) if c.rank == rank)
