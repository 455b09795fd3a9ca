"""A discount, an allocation, an admission and a coordination outside the package. docs/guide/own-method.md explains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetsim import checks
from hetsim.coordination.all_reduce import SynchronousAllReduce, contributions
from hetsim.coordination.bookkeeping.contributions import part
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.coordination.bookkeeping.timings import UnreportedTimings, gather_timings
from hetsim.effects import AllReduce, Commit, Contribution, Node, Program, Update
from hetsim.policies.admission import Admission, Decision
from hetsim.policies.allocation import Allocation, proportional
from hetsim.policies.weighting import Discount
from hetsim.vector import zeros_like


@dataclass(frozen=True, kw_only=True)
class Polynomial(Discount):
    """d(τ) = (1 + τ)^−a: FedAsync, arXiv 1903.03934."""

    exponent: float

    def __post_init__(self) -> None:
        checks.number("discount.exponent", self.exponent)

    def factor(self, staleness: int) -> float:
        """d(τ)."""
        return float((1 + staleness) ** -self.exponent)


@dataclass(frozen=True)
class BySpeed(Allocation):
    """b_i in proportion to the speeds of the latest gradients."""

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> tuple[int, ...]:
        """Equal shares, which are the state."""
        return proportional([1.0] * num_workers, batch_size, max_samples=max_samples)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The state."""
        return state

    def observe(self, state: tuple[int, ...], timings: Sequence[Contribution], epoch: int = 0) -> tuple[int, ...]:
        """The shares by the measured speeds, if all workers were measured."""
        speeds = {timing.rank: timing.samples / timing.seconds for timing in timings}
        return proportional([speeds[rank] for rank in sorted(speeds)], sum(state)) if len(speeds) == len(state) else state


@dataclass(frozen=True)
class EverySecond(Admission):
    """Apply every second gradient, drop the others; no worker waits."""

    def initial(self, num_workers: int) -> int:
        """The number of gradients that have arrived."""
        return 0

    def arrived(self, state: int, contribution: Contribution) -> tuple[int, Decision]:
        """Apply or drop it, and release its worker."""
        one, rank = (contribution,), (contribution.rank,)
        return state + 1, Decision(apply=one, release=rank) if state % 2 else Decision(drop=one, release=rank)


@dataclass(frozen=True, kw_only=True)
class Accumulate(SynchronousAllReduce):
    """Synchronous SGD that adds up k global batches before each all-reduce, as DistributedDataParallel does under no_sync."""

    period: int
    """k"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("coordination.period", self.period)

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Compute k gradients at the same weights, then add up, step and commit; the same on every rank."""
        unreported = node.own.get("unreported") or UnreportedTimings()
        going = True
        while going and plan.has_next(state.next_sample):
            rounds = plan.rounds(state.next_sample, self.allocation.shares(state.allocation), self.period)
            total = zeros_like(state.weights)
            group: list[Contribution] = []
            for batches in rounds:
                computed = yield from self.compute(state.weights, batches[node.rank], state.version)
                all_ranks = contributions(batches, state.version, computed)
                factor = part(all_ranks, self.factors(all_ranks, plan), node.rank)
                total = total + computed.gradient * (factor / len(rounds))
                unreported = unreported.appended(batches, computed.seconds)
                group += all_ranks
            gradient = yield from AllReduce(total)
            state = replace(state, next_sample=rounds[-1].stop, num_samples=state.num_samples + sum(c.samples for c in group))
            epoch = plan.epoch(state.num_samples)
            timings, unreported = yield from gather_timings(unreported, state.version, asked=self.allocation.asks(state.allocation, epoch))
            weights = yield from Update(at=state.weights, gradient=gradient)
            allocation = self.allocation.observe(state.allocation, timings, epoch)
            state = replace(state, version=state.version + 1, weights=weights, allocation=allocation)
            node.own["unreported"] = unreported
            going = yield from Commit(state.version, state, tuple(group))
