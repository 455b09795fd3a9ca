"""One-step delay without a server: an all-reduce overlaps with the next gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.coordination.all_reduce import REASON_UNCOMPRESSED, SynchronousAllReduce, contributions
from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.bookkeeping.timings import UnreportedTimings
from hetsim.coordination.delayed_base import OneStepDelay
from hetsim.coordination.plan import Plan, Split
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Commit, Contribution, Gather, Node, Pending, Program, Start, Update, Wait
from hetsim.policies.compression import NoCompression
from hetsim.vector import Vector


@dataclass(frozen=True)
class PendingReduction:
    """A started reduction, the gather of timings that started with it (None without one), and the gradients in both."""

    gradient: Pending[Vector]
    seconds: Pending[tuple[float, ...]] | None
    unreported: UnreportedTimings
    batches: Split
    group: SynchronousContributions


@dataclass(frozen=True, kw_only=True)
class DelayedAllReduce(OneStepDelay, SynchronousAllReduce):
    """One-step delay without a server: every rank also takes the global step.

    An iteration takes the maximum of gradient + global update + local update, and reduction.
    """

    same_on_every_rank: ClassVar[bool] = True
    may_leave_out: ClassVar[bool] = False

    def __post_init__(self) -> None:
        OneStepDelay.__post_init__(self)
        self.only(REASON_UNCOMPRESSED, compression=NoCompression)

    @property
    def num_ahead(self) -> int:
        return 2

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        state, unreported, going = yield from self.synchronous(node, plan, state.rewound(), until=max(self.warm_up, state.version))
        if going:
            yield from self.delayed(node, plan, state, unreported)

    def delayed(self, node: Node, plan: Plan, state: State, unreported: UnreportedTimings) -> Program[None]:
        """Compute, wait for the last reduction, start the next one, step globally and locally; repeat."""
        node.own.pop("unreported", None)  # what is under way is measured again after a resume
        at = previous = state.weights
        version = state.version
        memory = self.compensation.initial(state.weights, 1)
        current: PendingReduction | None = None
        while True:
            batches = plan.split(state.next_sample, self.allocation.shares(state.allocation))
            computed = yield from self.compute(at, batches[node.rank], version)
            group = contributions(batches, version, computed, staleness=state.version + (current is not None) - version)
            unreported = unreported.appended(batches, computed.seconds)
            gradient: Vector = None
            if current is not None:
                gradient = yield from Wait(current.gradient)
                state = yield from self.observe_reduction(plan, state, current)
            following: PendingReduction | None = None
            if batches.num_samples:
                seconds = None
                if self.allocation.asks(state.allocation, plan.epoch(state.num_samples + batches.num_samples)):
                    seconds = yield from Start(Gather(unreported.seconds))
                term = self.term(computed.gradient, group, plan, node.rank)
                pending = yield from Start(AllReduce(term, in_place=True))
                following = PendingReduction(pending, seconds, unreported, batches, group)
                unreported = unreported if seconds is None else UnreportedTimings()
            if current is not None:
                weights = yield from Update(at=state.weights, gradient=gradient, in_place=True)
                previous = state.weights
                state = replace(state, version=state.version + 1, weights=weights, next_sample=batches.stop)
                state = replace(state, outstanding=() if following is None else batches)
                if not (yield from Commit(state.version, state, current.group)) or following is None:
                    if following is not None:  # otherwise other ranks would wait in it for ever
                        if following.seconds is not None:
                            yield from Wait(following.seconds)
                        yield from Wait(following.gradient)
                    return
            state = replace(state, next_sample=batches.stop)
            version = state.version
            if batches[node.rank]:
                c = Contribution(node.rank, batches[node.rank], version, computed.seconds, computed.loss, gradient=computed.gradient)
                memory, at = yield from self.step(
                    plan, memory, g=c, base=state.weights, previous=previous, at=at, version=version, epoch=plan.epoch(state.num_samples)
                )
            current = following

    def observe_reduction(self, plan: Plan, state: State, reduced: PendingReduction) -> Program[State]:
        """The state after a reduction: its samples are counted, and the allocation has observed its gathered timings."""
        state = replace(state, num_samples=state.num_samples + reduced.batches.num_samples)
        timings: tuple[Contribution, ...] = ()
        if reduced.seconds is not None:
            gathered = yield from Wait(reduced.seconds)
            timings = reduced.unreported.timings(state.version, gathered)
        epoch = plan.epoch(state.num_samples)
        return replace(state, allocation=self.allocation.observe(state.allocation, timings, epoch))
