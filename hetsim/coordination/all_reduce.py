"""Synchronous data-parallel SGD without a server: every rank holds the weights, an all-reduce adds the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.coordination.plan import Coordination, Plan, State, part
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
class Spent:
    """Samples by rank and this rank's own seconds since the last measurement, in how many gradients of everyone."""

    samples: tuple[int, ...]
    seconds: float = 0.0
    num_gradients: int = 0

    def and_on(self, batches: Sequence[Batch], seconds: float) -> Spent:
        """With one more gradient of everyone."""
        samples = tuple(b + batch.samples for b, batch in zip(self.samples, batches, strict=True))
        return Spent(samples, self.seconds + seconds, self.num_gradients + 1)

    def __add__(self, other: Spent) -> Spent:
        samples = tuple(a + b for a, b in zip(self.samples, other.samples, strict=True))
        return Spent(samples, self.seconds + other.seconds, self.num_gradients + other.num_gradients)

    @classmethod
    def nothing(cls, num_workers: int) -> Spent:
        """Just after a measurement."""
        return cls((0,) * num_workers)

    def timings(self, version: int, everyones: Sequence[float]) -> tuple[Contribution, ...]:
        """What was measured, for an allocation: a mean gradient of each rank, in samples and in its gathered seconds."""
        count = self.num_gradients
        return tuple(
            Contribution(rank, Batch(0, round(b / count)), version, everyones[rank] / count, 0.0)
            for rank, b in enumerate(self.samples)
            if b
        )


@dataclass(frozen=True, kw_only=True)
class SynchronousAllReduce(Coordination):
    """SSGD: W ← W − η (1/c) Σ w_i g_i, where everyone waits for everyone."""

    needs_server: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.only("admission", Barrier, TOGETHER)
        self.only("compensation", NoCompensation, TOGETHER)
        self.only("discount", NoDiscount, TOGETHER)
        self.only("compression", NoCompression, UNCOMPRESSED)

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from self.synchronous(node, plan, state)

    def synchronous(self, node: Node, plan: Plan, state: State, *, until: int | None = None) -> Program[tuple[State, Spent, bool]]:
        """Compute one's share, add up, step; the same on every rank. The last state, what is not measured yet, and whether to go on."""
        spent = Spent.nothing(plan.num_workers)
        going = True
        while going and state.version != until and state.next_sample != plan.num_positions:
            batches = list(plan.split(state.next_sample, self.allocation.shares(state.allocation)))
            computed = yield from self.compute(state.weights, batches[node.rank])
            group = contributions(batches, state.version, computed)
            gradient = yield from AllReduce(computed.gradient * part(group, self.factors(group, plan), node.rank))
            state = replace(state, next_sample=batches[-1].stop, num_samples=batches[-1].stop)
            spent = spent.and_on(batches, computed.seconds)
            epoch = plan.epoch(state.num_samples)
            timings, spent = yield from measured(spent, state.version, asked=self.allocation.asks(state.allocation, epoch))
            group = told(group, timings)
            weights = yield from Update(at=state.weights, gradient=gradient)
            allocation = self.allocation.observe(state.allocation, timings, epoch)
            state = replace(state, version=state.version + 1, weights=weights, allocation=allocation)
            going = yield from Commit(state.version, state, group)
        return state, spent, going and state.next_sample != plan.num_positions

    def compute(self, at: Vector, batch: Batch) -> Program[Computed]:
        """The mean gradient of one's range; behind the end of the last epoch a range is empty, and its gradient zero."""
        if not batch:
            return Computed(zeros_like(at), 0.0, 0, 0.0)
        return (yield from Gradient(at=at, batch=batch))


def measured(spent: Spent, version: int, *, asked: bool) -> Program[tuple[tuple[Contribution, ...], Spent]]:
    """If the allocation asked, what everyone has spent since the last measurement; and what is spent since this one."""
    if not asked:
        return (), spent
    everyones = yield from Gather(spent.seconds)
    return spent.timings(version, everyones), Spent.nothing(len(everyones))


def told(group: tuple[Contribution, ...], timings: Sequence[Contribution]) -> tuple[Contribution, ...]:
    """A group with everyone's seconds, where they were measured for just this step."""
    seconds = {(timing.rank, timing.samples): timing.seconds for timing in timings}
    return tuple(replace(c, seconds=seconds.get((c.rank, c.samples), c.seconds)) for c in group)


def contributions(batches: Sequence[Batch], version: int, computed: Computed, staleness: int = 0) -> tuple[Contribution, ...]:
    """Everyone's part in an update; seconds and loss are one's own, a rank does not know the others'."""
    return tuple(
        Contribution(rank, batch, version, computed.seconds, computed.loss, staleness) for rank, batch in enumerate(batches) if batch
    )
