"""What every coordination shares: what is to be done, how far it has come, who takes which range, and what they add up to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim.effects import Batch, Contribution, Node, Program
from hetsim.policies.admission import Admission
from hetsim.policies.allocation import Allocation
from hetsim.policies.compensation import Compensation
from hetsim.policies.compression import Compression
from hetsim.policies.weighting import Discount, Weighting
from hetsim.vector import Vector


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

    def split(self, start: int, shares: Sequence[int]) -> Iterator[Batch]:
        """The ranges of one global batch, in rank order."""
        if len(shares) != self.num_workers or sum(shares) != self.batch_size:
            raise ValueError(
                f"the allocation gave shares {tuple(shares)}: {self.num_workers} whole numbers with sum {self.batch_size} are needed"
            )
        for share in shares:
            batch = self.left(start, share)
            yield batch
            start = batch.stop

    def rounds(self, start: int, shares: Sequence[int], most: int) -> list[list[Batch]]:
        """The ranges, in rank order, of each of the next `most` global batches; fewer where the last epoch ends."""
        rounds: list[list[Batch]] = []
        while len(rounds) < most and start != self.num_positions:
            rounds.append(list(self.split(start, shares)))
            start = rounds[-1][-1].stop
        return rounds


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
    outstanding: tuple[Batch, ...] = ()
    """Ranges that were taken and not brought back: handed out again on a new start."""
    num_gradients: tuple[int, ...] = ()
    """Filled in by the backend: by rank, gradients applied so far, which is where the rank's stream of chance stands."""
    optimizer: Any = None
    """Filled in by the backend, which owns the optimizer."""

    def rewound(self) -> State:
        """Before the ranges that were handed out and not applied: they are handed out again, to whoever is there now."""
        return replace(self, next_sample=min([self.next_sample, *(batch.start for batch in self.outstanding)]), outstanding=())

    @property
    def num_samples_in_flight(self) -> int:
        """Positions handed out that were neither applied nor discarded."""
        return self.next_sample - self.num_samples - self.num_samples_discarded


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
    takes_local_steps: ClassVar[bool] = False
    """Whether a worker may take steps of its own, with the local optimizer."""

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
        allocation = self.allocation.initial(plan.num_workers, plan.batch_size)
        return State(
            weights=weights,
            allocation=self.allocation.profiled(allocation, profile) if profile else allocation,
            compensation=self.compensation.initial(weights, plan.num_workers),
            admission=self.admission.initial(plan.num_workers),
        )

    @abstractmethod
    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        """What this rank does, from this state on. A leader may return its last state, if it dropped samples behind the last commit."""

    def factors(self, group: Sequence[Contribution], plan: Plan) -> list[float]:
        """w_i d(τ_i) / c of each contribution of a group of c."""
        fair_share = self.admission.fair_share(group, plan.batch_size, plan.num_workers)
        weights = self.weighting.weights(group, fair_share)
        return [w * self.discount.factor(c.staleness) / len(group) for w, c in zip(weights, group, strict=True)]

    def total(self, group: Sequence[Contribution], plan: Plan) -> Vector:
        """(1/c) Σ w_i d(τ_i) g_i."""
        total: Vector = None
        for c, factor in zip(group, self.factors(group, plan), strict=True):
            term = c.gradient if factor == 1.0 else c.gradient * factor
            total = term if total is None else total + term
        return total

    def only(self, axis: str, kind: type, why: str) -> None:
        """Refuse a policy that would do nothing, or that makes no sense, in this coordination."""
        given = getattr(self, axis)
        if not isinstance(given, kind):
            raise ValueError(f"{axis} is {type(given).__name__}, but {why}")


def part(group: Sequence[Contribution], factors: Sequence[float], rank: int) -> float:
    """This rank's factor in a group; a rank with an empty range has no part in it."""
    return sum(factor for c, factor in zip(group, factors, strict=True) if c.rank == rank)
