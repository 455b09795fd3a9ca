"""What every coordination shares: what is to be done, how far it has come, and who takes which range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hetsim.effects import Batch, Contribution, Node, Program
from hetsim.policies.admission import Admission
from hetsim.policies.allocation import Allocation
from hetsim.policies.compensation import Compensation
from hetsim.policies.weighting import Discount, Weighting
from hetsim.vector import Vector


@dataclass(frozen=True, slots=True)
class Plan:
    """N workers, a global batch of B samples, and how many positions to hand out in all (None: no end)."""

    num_workers: int
    batch_size: int
    num_positions: int | None = None

    def left(self, start: int, samples: int) -> Batch:
        """The range of at most `samples` positions from `start`: shorter at the end, and empty behind it."""
        if self.num_positions is None:
            return Batch(start, samples)
        return Batch(start, max(0, min(samples, self.num_positions - start)))

    def split(self, start: int, shares: Sequence[int]) -> Iterator[Batch]:
        """The ranges of one global batch, in rank order."""
        for share in shares:
            batch = self.left(start, share)
            yield batch
            start = batch.stop


@dataclass(frozen=True, kw_only=True)
class State:
    """A run at a commit: all that is needed to go on from here as if it had never stopped."""

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

    needs_server: ClassVar[bool]
    """Whether there is a server, on the rank behind the last worker."""

    def initial(self, plan: Plan, weights: Vector) -> State:
        """The state before the first step."""
        return State(
            weights=weights,
            allocation=self.allocation.initial(plan.num_workers, plan.batch_size),
            compensation=self.compensation.initial(weights, plan.num_workers),
            admission=self.admission.initial(plan.num_workers),
        )

    @property
    def relies_on_scale(self) -> bool:
        """Whether its weights act only through the scale of a single gradient, which Adam's family does not feel."""
        return False

    @abstractmethod
    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """What this rank does, from this state on."""

    def factors(self, group: Sequence[Contribution], plan: Plan) -> list[float]:
        """w_i d(τ_i) / c of each contribution of a group of c."""
        fair_share = self.admission.fair_share(group, plan.batch_size, plan.num_workers)
        weights = self.weighting.weights(group, fair_share)
        return [w * self.discount.factor(c.staleness) / len(group) for w, c in zip(weights, group, strict=True)]
