"""Synchronous data-parallel SGD without a server: every rank holds the weights, an all-reduce adds the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.coordination.base import Coordination
from hetsim.coordination.contributions import SynchronousContributions
from hetsim.coordination.plan import Plan, Split
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Computed, Contribution, Gather, Gradient, Node, Program, Update
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import Vector, zeros_like

TOGETHER = (
    "an all-reduce waits for everyone and nothing in it is late: add coordination=parameter_server, "
    "or leave this axis as the method sets it"
)
UNCOMPRESSED = "only what is pushed to a server is compressed: take compression=none, or a coordination with a server"


@dataclass(frozen=True)
class UnreportedTimings:
    """What everyone has computed since the last measurement, and this rank's own seconds in it."""

    splits: tuple[tuple[Split, int], ...] = ()
    """Each with how many gradients in a row were over as many samples."""
    seconds: float = 0.0

    def appended(self, batches: Split, seconds: float) -> UnreportedTimings:
        """With one more gradient of everyone."""
        return self + UnreportedTimings(((batches, 1),), seconds)

    def __add__(self, other: UnreportedTimings) -> UnreportedTimings:
        """One after the other."""
        before, after = self.splits, other.splits
        if before and after and same_shares(before[-1][0], after[0][0]):
            after = ((after[0][0], before[-1][1] + after[0][1]), *after[1:])
            before = before[:-1]
        return UnreportedTimings(before + after, self.seconds + other.seconds)

    def timings(self, version: int, everyones: Sequence[float]) -> tuple[Contribution, ...]:
        """What was measured, for an allocation: a mean gradient of each rank, in samples and in its gathered seconds."""
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
    """Whether all ranks have as many samples in the one as in the other, told without a look at the ranks."""
    return one.layout is other.layout and one.num_samples == other.num_samples


@dataclass(frozen=True, kw_only=True)
class SynchronousAllReduce(Coordination):
    """SSGD: W ← W − η (1/c) Σ w_i g_i, where everyone waits for everyone."""

    needs_server: ClassVar[bool] = False
    same_on_every_rank: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.only("admission", Barrier, TOGETHER)
        self.only("compensation", NoCompensation, TOGETHER)
        self.only("discount", NoDiscount, TOGETHER)
        self.only("compression", NoCompression, UNCOMPRESSED)

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from self.synchronous(node, plan, state)

    def synchronous(
        self, node: Node, plan: Plan, state: State, *, until: int | None = None
    ) -> Program[tuple[State, UnreportedTimings, bool]]:
        """Compute one's share, add up, step; the same on every rank. The last state, what is not measured yet, and whether to go on."""
        unreported = UnreportedTimings()
        going = True
        while going and state.version != until and state.next_sample != plan.num_positions:
            batches = plan.split(state.next_sample, self.allocation.shares(state.allocation))
            computed = yield from self.compute(state.weights, batches[node.rank])
            group = contributions(batches, state.version, computed)
            gradient = yield from AllReduce(self.term(computed.gradient, group, plan, node.rank))
            state = replace(state, next_sample=batches.stop, num_samples=batches.stop)
            unreported = unreported.appended(batches, computed.seconds)
            epoch = plan.epoch(state.num_samples)
            timings, unreported = yield from gather_timings(unreported, state.version, asked=self.allocation.asks(state.allocation, epoch))
            group = with_timings(group, timings)
            weights = yield from Update(at=state.weights, gradient=gradient)
            allocation = self.allocation.observe(state.allocation, timings, epoch)
            state = replace(state, version=state.version + 1, weights=weights, allocation=allocation)
            going = yield from Commit(state.version, state, group)
        return state, unreported, going and state.next_sample != plan.num_positions

    def compute(self, at: Vector, batch: Batch) -> Program[Computed]:
        """The mean gradient of one's range; behind the end of the last epoch a range is empty, and its gradient zero."""
        if not batch:
            return Computed(zeros_like(at), 0.0, 0, 0.0)
        return (yield from Gradient(at=at, batch=batch))


def gather_timings(
    unreported: UnreportedTimings, version: int, *, asked: bool
) -> Program[tuple[tuple[Contribution, ...], UnreportedTimings]]:
    """If the allocation asked, what everyone has spent since the last measurement; and what is spent since this one."""
    if not asked:
        return (), unreported
    everyones = yield from Gather(unreported.seconds)
    return unreported.timings(version, everyones), UnreportedTimings()


def with_timings(group: SynchronousContributions, timings: Sequence[Contribution]) -> SynchronousContributions:
    """A group with everyone's seconds, where they were measured for just this step."""
    return replace(group, timings=timings)


def contributions(batches: Split, version: int, computed: Computed, staleness: int = 0) -> SynchronousContributions:
    """Everyone's part in an update; seconds and loss are one's own, a rank does not know the others'."""
    return SynchronousContributions(version, staleness=staleness).appended(batches, computed.seconds, computed.loss)
