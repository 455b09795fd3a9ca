"""Synchronous data-parallel SGD without a server: every rank holds the weights, an all-reduce adds the gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.coordination.plan import Coordination, Plan, State
from hetsim.effects import AllReduce, Batch, Commit, Computed, Contribution, Gather, Gradient, Node, Program, Update
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import zeros_like


@dataclass(frozen=True, kw_only=True)
class SynchronousAllReduce(Coordination):
    """SSGD: W ← W − η (1/c) Σ w_i g_i, where everyone waits for everyone."""

    needs_server: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for axis, given, only in (
            ("admission", self.admission, Barrier),
            ("compensation", self.compensation, NoCompensation),
            ("discount", self.discount, NoDiscount),
        ):
            if not isinstance(given, only):
                raise ValueError(
                    f"{axis} is {type(given).__name__}, but an all-reduce waits for everyone and nothing in it is late: "
                    "add coordination=parameter_server, or leave this axis as the method sets it"
                )

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Compute one's share, add up, step; the same on every rank."""
        going = True
        while going and state.next_sample != plan.num_positions:
            batches = list(plan.split(state.next_sample, self.allocation.shares(state.allocation)))
            computed = yield from self.compute(state, batches[node.rank])
            group = tuple(
                Contribution(rank, batch, state.version, computed.seconds, computed.loss) for rank, batch in enumerate(batches) if batch
            )
            factor = dict(zip((c.rank for c in group), self.factors(group, plan), strict=True)).get(node.rank, 0.0)
            gradient = yield from AllReduce(computed.gradient * factor)
            if self.allocation.measures:
                seconds = yield from Gather(computed.seconds)
                group = tuple(replace(c, seconds=seconds[c.rank]) for c in group)
            weights = yield from Update(at=state.weights, gradient=gradient)
            state = replace(
                state,
                version=state.version + 1,
                weights=weights,
                next_sample=batches[-1].stop,
                num_samples=batches[-1].stop,
                allocation=self.allocation.observe(state.allocation, group),
            )
            going = yield from Commit(state.version, state, group)

    def compute(self, state: State, batch: Batch) -> Program[Computed]:
        """The mean gradient of one's range; behind the end of the last epoch a range is empty, and its gradient zero."""
        if not batch:
            return Computed(zeros_like(state.weights), 0.0, 0, 0.0)
        return (yield from Gradient(at=state.weights, batch=batch))
