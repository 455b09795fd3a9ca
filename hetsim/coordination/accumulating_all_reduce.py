"""Accumulate while you communicate: workers compute micro-batches until the previous all-reduce is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.all_reduce import REASON_SYNCHRONOUS, REASON_UNCOMPRESSED
from hetsim.coordination.base import Coordination
from hetsim.coordination.bookkeeping.held import HeldRanges
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Contribution, Done, Gather, Gradient, Node, Pending, Program, Start, Update, Wait
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount, PerSample, PerWorker
from hetsim.vector import Vector, weighted_sum, zeros_like

MAX_PER_ROUND = 64
"""The maximum number of micro-batches of one worker in one round."""


@dataclass(frozen=True)
class MicroBatchSum:
    """This worker's micro-batches between two exchanges: the weighted `sum` of `count` gradients, a flat vector, at weights of a `version`.

    `seconds` and `loss` are sums over its micro-batches.
    """

    sum: Vector
    count: int
    seconds: float
    loss: float
    version: int


@dataclass(frozen=True)
class Exchange:
    """A round while its sums and counts are exchanged, and its mean seconds if the allocation asks for them."""

    round: MicroBatchSum
    sum: Pending[Vector]
    counts: Pending[tuple[float, ...]]
    seconds: Pending[tuple[float, ...]] | None


@dataclass(frozen=True)
class RoundSum:
    """A round of all workers: the `sum` of all weighted gradients, and the contributions in it."""

    exchange: Exchange
    sum: Vector
    group: tuple[Contribution, ...]


class Ahead:
    """The ranges that workers hold for rounds whose counts are not known yet. All ranks compute the same object.

    In each round, a worker takes at most twice its last known number of micro-batches, at least two, and one in the first round. So all
    ranks know, without a message, which ranges no worker can have begun. These are assigned again each time, because speeds may have
    changed.
    """

    def __init__(self, plan: Plan, state: State) -> None:
        self.plan = plan
        self.ranks = plan.active_ranks
        self.held = HeldRanges.of(plan, state, self.ranks)
        self.max_now = dict.fromkeys(self.ranks, 0)
        """The maximum number of micro-batches of each worker in the current round."""
        self.max_next = dict.fromkeys(self.ranks, 1)
        """The maximum number of micro-batches of each worker in the next round."""

    def __bool__(self) -> bool:
        """Whether any worker holds a range."""
        return any(self.held.held.values())

    def settle(self, counts: Sequence[float]) -> Mapping[int, list[Batch]]:
        """Remove and return the ranges that each worker computed in a round. `counts` are the workers' numbers of micro-batches."""
        return {rank: self.held.settle(rank, int(counts[rank])) for rank in self.ranks}

    def begin(self, counts: Sequence[float] | None) -> None:
        """Begin the next round. `counts` are the micro-batches of each rank in the last round that all ranks know; None: no such round."""
        self.max_now = self.max_next
        self.max_next = {rank: min(MAX_PER_ROUND, max(2, 2 * int(counts[rank] if counts else 0))) for rank in self.ranks}

    def assign(self, shares: Sequence[int]) -> None:
        """Assign ranges for the current and the next round, to one worker after another, while there are positions."""
        self.held.retract(self.max_now)
        wanted = {rank: self.max_now[rank] + self.max_next[rank] - len(self.held.held.get(rank, ())) for rank in self.ranks}
        while wanted:
            for rank in list(wanted):
                batch = self.held.take(self.plan, rank, shares[rank])
                wanted[rank] -= 1
                if batch:
                    self.held.hold(rank, [batch])
                if not batch or not wanted[rank]:
                    del wanted[rank]

    def next_ranges(self, rank: int, begun: int) -> list[Batch]:
        """The ranges that a worker may compute in the next round, after the first `begun` of its ranges."""
        return list(self.held.held.get(rank, ()))[begun : begun + self.max_next[rank]]


@dataclass(frozen=True, kw_only=True)
class AccumulatingAllReduce(Coordination):
    """ACCO, arXiv 2406.02613: each worker computes micro-batches until the all-reduce of its last ones is done, so nobody waits.

    With two exchanges for each version, and sums over all workers, g₁ of n₁ and g₂ of n₂ micro-batches:

        θ̃ = Opt(θ; Σ g₁ / Σ n₁), a tentative step that leaves the optimizer's memory as it was
        θ' = Opt(θ; Σ (g₁ + g₂) / Σ (n₁ + n₂))

    g₂ is computed at θ while g₁ is added up; the g₁ of the next version is computed at θ̃ while g₂ is. θ̃ is of the version before, so
    g₁ has a staleness of one, and g₂ of none. With one exchange there is no tentative step: the delayed update that the paper compares
    with, and Pipe-SGD (arXiv 1811.03619) where each worker computes one micro-batch in each round.

    A micro-batch is a worker's share of the global batch. The rule is that of the authors' code, without its first synchronous steps.
    An allocation that measures learns the mean micro-batch of the version for which it asks.
    """

    needs_server: ClassVar[bool] = False
    aligns_epochs: ClassVar[bool] = False

    exchanges: int
    """The number of all-reduces for each version. Each one except the last makes a tentative step along the sum so far."""

    def __post_init__(self) -> None:
        checks.whole("coordination.exchanges", self.exchanges, most=MAX_PER_ROUND)
        self.only(REASON_SYNCHRONOUS, admission=Barrier, compensation=NoCompensation, discount=NoDiscount)
        self.only(REASON_UNCOMPRESSED, compression=NoCompression)
        if not isinstance(self.weighting, PerWorker | PerSample):
            name = type(self.weighting).__name__
            raise ValueError(f"weighting is {name}, but each rank adds up its micro-batches by itself: take per_worker or per_sample")

    @property
    def num_ahead(self) -> int:
        return MAX_PER_ROUND

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Compute until the last exchange is done, start the next exchange, and step along the exchanged sum; repeat."""
        ahead = Ahead(plan, state)
        ahead.assign(self.allocation.shares(state.allocation))
        at, going = state.weights, True
        micro_batches = yield from self.compute_round(at, ahead.next_ranges(node.rank, 0), state.version, None)
        current: Exchange | None = None
        sums: tuple[RoundSum, ...] = ()
        while ahead or current is not None:
            counts: Sequence[float] | None = None
            if current is not None:
                total = yield from Wait(current.sum)
                counts = yield from Wait(current.counts)
                sums = (*sums, self.round_sum(current, total, ahead.settle(counts), state.version))
            following: Exchange | None = None
            if ahead:
                following = yield from self.start_exchange(plan, state, micro_batches, sums)
            if sums:
                tentative = following is not None and len(sums) < self.exchanges
                at, state, going = yield from self.step(plan, state, sums, ahead, tentative=tentative)
                sums = sums if tentative else ()
            if not going:
                if following is not None:  # otherwise other ranks would wait in it for ever
                    for pending in (following.seconds, following.counts, following.sum):
                        if pending is not None:
                            yield from Wait(pending)
                return
            current = following
            if following is not None:
                ahead.begin(counts)
                ahead.assign(self.allocation.shares(state.allocation))
                micro_batches = yield from self.compute_round(
                    at, ahead.next_ranges(node.rank, micro_batches.count), state.version, following
                )

    def compute_round(self, at: Vector, batches: Sequence[Batch], version: int, exchange: Exchange | None) -> Program[MicroBatchSum]:
        """Compute these ranges one by one, at least one, until the current exchange is done. Without an exchange, compute one range."""
        total: Vector = None
        seconds, loss, count = 0.0, 0.0, 0
        for batch in batches:
            computed = yield from Gradient(at=at, batch=batch, version=version)
            (weight,) = self.weighting.weights([Contribution(0, batch, version, computed.seconds, computed.loss)], 1.0)
            term = computed.gradient if weight == 1.0 else computed.gradient * weight
            total = term if total is None else total + term
            seconds, loss, count = seconds + computed.seconds, loss + computed.loss, count + 1
            if exchange is None or (yield from Done(exchange.sum)):
                break
        return MicroBatchSum(zeros_like(at) if total is None else total, count, seconds, loss, version)

    def start_exchange(self, plan: Plan, state: State, micro_batches: MicroBatchSum, sums: Sequence[RoundSum]) -> Program[Exchange]:
        """Start to gather the counts of a round and to add up its sums. A version's last round also gathers what the allocation needs."""
        earlier = sums[: len(sums) % self.exchanges]
        seconds = None
        if len(earlier) + 1 == self.exchanges and self.allocation.asks(state.allocation, plan.epoch(state.num_samples)):
            rounds = [*(s.exchange.round for s in earlier), micro_batches]
            count = sum(r.count for r in rounds)
            seconds = yield from Start(Gather(sum(r.seconds for r in rounds) / max(1, count)))
        counts = yield from Start(Gather(float(micro_batches.count)))
        pending = yield from Start(AllReduce(micro_batches.sum))
        return Exchange(micro_batches, pending, counts, seconds)

    def round_sum(self, exchange: Exchange, total: Vector, ranges: Mapping[int, Sequence[Batch]], version: int) -> RoundSum:
        """A round with the contributions of all workers. Seconds and loss are this rank's, because it does not know other ranks' values."""
        micro_batches = exchange.round
        seconds, loss = micro_batches.seconds / max(1, micro_batches.count), micro_batches.loss / max(1, micro_batches.count)
        staleness = version - micro_batches.version
        group = (
            Contribution(rank, b, micro_batches.version, seconds, loss, staleness) for rank, batches in ranges.items() for b in batches
        )
        return RoundSum(exchange, total, tuple(group))

    def step(
        self, plan: Plan, state: State, sums: Sequence[RoundSum], ahead: Ahead, *, tentative: bool
    ) -> Program[tuple[Vector, State, bool]]:
        """Step along the mean of these rounds, tentatively or not. Returns the weights, the next state, and whether to continue."""
        group = [c for s in sums for c in s.group]
        weight = sum(self.weighting.weights(group, 1.0))
        mean = weighted_sum([s.sum for s in sums], lambda: [1 / weight] * len(sums))
        weights = yield from Update(at=state.weights, gradient=mean, tentative=tentative)
        if tentative:
            return weights, state, True
        timings: Sequence[Contribution] = ()
        if (seconds := sums[-1].exchange.seconds) is not None:
            timings = mean_steps(group, state.version, (yield from Wait(seconds)))
        num_samples = state.num_samples + sum(c.samples for c in group)
        state = state.evolve(
            version=state.version + 1,
            weights=weights,
            num_samples=num_samples,
            next_sample=ahead.held.next_sample,
            outstanding=tuple(ahead.held),
            allocation=self.allocation.observe(state.allocation, timings, plan.epoch(num_samples)),
        )
        return weights, state, (yield from Commit(state.version, state, group))


def mean_steps(group: Sequence[Contribution], version: int, seconds: Sequence[float]) -> tuple[Contribution, ...]:
    """Each rank's mean samples of a micro-batch, and the mean seconds that were gathered. For an allocation."""
    samples: dict[int, list[int]] = {}
    for c in group:
        samples.setdefault(c.rank, []).append(c.samples)
    means = {rank: round(sum(sizes) / len(sizes)) for rank, sizes in samples.items()}
    return tuple(Contribution(rank, Batch(0, mean), version, seconds[rank], 0.0) for rank, mean in sorted(means.items()))
