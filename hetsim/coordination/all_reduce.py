"""Synchronous data-parallel SGD without a server: every rank holds the weights, and an all-reduce adds the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from hetsim.coordination.base import Coordination
from hetsim.coordination.bookkeeping.contributions import ComputedSplit, SynchronousContributions
from hetsim.coordination.bookkeeping.timings import UnreportedTimings, gather_timings
from hetsim.coordination.plan import Plan, Split
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Computed, Contribution, Gradient, Node, Program, Update
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import Vector, zeros_like

REASON_SYNCHRONOUS = (
    "an all-reduce waits for all workers and no gradient in it is late: add coordination=parameter_server, "
    "or leave this axis as the method sets it"
)
REASON_UNCOMPRESSED = (
    "only pushes to a server and changes by local steps are compressed: take compression=none, or a coordination with a server or with "
    "local steps"
)


@dataclass(frozen=True, kw_only=True)
class SynchronousAllReduce(Coordination):
    """SSGD: W ← W − η (1/c) Σ w_i g_i, where all workers wait for one another."""

    needs_server: ClassVar[bool] = False
    may_leave_out: ClassVar[bool] = True
    same_on_every_rank: ClassVar[bool] = True
    begins_at_commits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.only(REASON_SYNCHRONOUS, admission=Barrier, compensation=NoCompensation, discount=NoDiscount)
        self.only(REASON_UNCOMPRESSED, compression=NoCompression)

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from self.synchronous(node, plan, state)

    def synchronous(
        self, node: Node, plan: Plan, state: State, *, until: int | None = None
    ) -> Program[tuple[State, UnreportedTimings, bool]]:
        """Compute this rank's share, all-reduce, step, commit; repeat `until` a version or the end of the run.

        Returns the last state, the timings that are not reported yet, and whether to continue.
        """
        unreported = node.own.get("unreported") or UnreportedTimings()
        going = True
        while going and state.version != until and plan.has_next(state.next_sample):
            batches = plan.split(state.next_sample, self.allocation.shares(state.allocation))
            computed, group, gradient = yield from self.gradient_and_sum(node, plan, state, batches)
            state = state.evolve(next_sample=batches.stop, num_samples=state.num_samples + batches.num_samples)
            unreported = unreported.appended(batches, computed.seconds)
            epoch = plan.epoch(state.num_samples)
            timings, unreported = yield from gather_timings(unreported, state.version, asked=self.allocation.asks(state.allocation, epoch))
            group = add_timings(group, timings)
            weights = yield from Update(at=state.weights, gradient=gradient, in_place=True)
            allocation = self.allocation.observe(state.allocation, timings, epoch)
            state = state.evolve(version=state.version + 1, weights=weights, allocation=allocation)
            node.own["unreported"] = unreported
            going = yield from Commit(state.version, state, group)
        return state, unreported, going and plan.has_next(state.next_sample)

    def gradient_and_sum(
        self, node: Node, plan: Plan, state: State, batches: Split
    ) -> Program[tuple[Computed, SynchronousContributions, Vector]]:
        """This rank's gradient, all ranks' contributions, and their weighted sum, which is overwritten by the step along it."""
        computed = yield from self.compute(state.weights, batches[node.rank], state.version)
        group = contributions(batches, state.version, computed)
        factor = partial(self.factor, group, plan, node.rank)
        gradient = yield from AllReduce(computed.gradient, in_place=True, factor=factor)
        return computed, group, gradient

    def compute(self, at: Vector, batch: Batch, version: int) -> Program[Computed]:
        """The mean gradient over this rank's range. The gradient of an empty range is zero."""
        if not batch:
            return Computed(zeros_like(at), 0.0, 0, 0.0)
        return (yield from Gradient(at=at, batch=batch, version=version))


def add_timings(group: SynchronousContributions, timings: Sequence[Contribution]) -> SynchronousContributions:
    """The group with the gathered seconds of all ranks, where a contribution has as many samples as the timings."""
    return replace(group, timings=timings) if timings else group


def contributions(batches: Split, version: int, computed: Computed, staleness: int = 0) -> SynchronousContributions:
    """All ranks' contributions to an update. Their seconds and loss are this rank's, because it does not know other ranks' values."""
    return SynchronousContributions(version, (ComputedSplit(batches, computed.seconds, computed.loss),), staleness=staleness)
