"""Local steps: each worker trains alone for H steps, then an all-reduce averages the changes of the weights for an outer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.base import Coordination
from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.bookkeeping.timings import UnreportedTimings, gather_timings
from hetsim.coordination.plan import Plan, Split
from hetsim.coordination.state import State
from hetsim.effects import AllGather, AllReduce, Commit, Contribution, Gradient, LocalUpdate, Node, Program, Update
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import Vector, weighted_sum, with_tail

MAX_PERIOD = 100_000
"""The maximum number of steps of each worker before the first version, because a run reports nothing before it."""


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Coordination):
    """H local steps from W to x_i, then W ← outer step along Δ = (1/N) Σ w_i (W − x_i).

    With plain SGD of rate 1 as outer optimizer, W becomes the mean of the x_i: local SGD (Stich, arXiv 1805.09767). With outer Nesterov SGD
    and local AdamW, the method is DiLoCo (arXiv 2311.08105). With changes W − x_i that are compressed by top-k, it is SparseLoCo (arXiv
    2508.15706).

    Each average makes a version. Each local step is an iteration of its worker, over the worker's share of one global batch. A local
    optimizer and a compression keep their memory between rounds and over a resume, and lose it in a crash or a regroup.
    """

    needs_server: ClassVar[bool] = False
    takes_local_steps: ClassVar[bool] = True
    trains_locally: ClassVar[bool] = True
    same_on_every_rank: ClassVar[bool] = True
    begins_at_commits: ClassVar[bool] = True

    period: int
    """H"""

    def __post_init__(self) -> None:
        checks.whole("coordination.period", self.period, most=MAX_PERIOD)
        reason = "at each average all workers wait for one another: leave this axis as the method sets it"
        self.only(reason, admission=Barrier, compensation=NoCompensation, discount=NoDiscount)

    @property
    def needs_local_steps(self) -> str | None:
        return "between two averages the workers take local steps"

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """The program of every rank: H local steps from the common weights, an all-reduce of the changes, a global step."""
        unreported = node.own.get("unreported") or UnreportedTimings()
        going = True
        while going and plan.has_next(state.next_sample):
            rounds = plan.rounds(state.next_sample, self.allocation.shares(state.allocation), self.period)
            x, timings_of_round, group = yield from self.local_steps(node, plan, state, state.weights, rounds)
            difference = with_tail(state.weights - x, x, plan.num_parameters)
            delta = yield from self.mean_change(node, plan, difference, group)
            num_samples = state.num_samples + sum(batches.num_samples for batches in rounds)
            state = replace(state, next_sample=rounds[-1].stop, num_samples=num_samples)
            unreported = unreported + timings_of_round
            epoch = plan.epoch(state.num_samples)
            timings, unreported = yield from gather_timings(unreported, state.version, asked=self.allocation.asks(state.allocation, epoch))
            weights = yield from Update(at=state.weights, gradient=delta, in_place=True)
            allocation = self.allocation.observe(state.allocation, timings, epoch)
            state = replace(state, version=state.version + 1, weights=weights, allocation=allocation)
            node.own["unreported"] = unreported
            going = yield from Commit(state.version, state, group)

    def mean_change(self, node: Node, plan: Plan, difference: Vector, group: SynchronousContributions) -> Program[Vector]:
        """(1/N) Σ w_i Δ_i, by an all-reduce. Compressed Δ_i are gathered instead.

        A rank without samples in this round still sends a part of its residual, with the factor of an average rank.
        """
        if isinstance(self.compression, NoCompression):
            return (yield from AllReduce(self.term(difference, group, plan, node.rank), in_place=True))

        def combine(payloads: Mapping[int, Vector]) -> Vector:
            vectors = [self.compression.unpack(payload, difference, plan.num_parameters) for payload in payloads.values()]
            return weighted_sum(vectors, lambda: self.factors_of(list(payloads), group, plan))

        pushes = node.own.get("compression") or Pushes(self.compression.initial(difference))
        packing, payload = self.compression.pack(pushes.after, difference, plan.num_parameters)
        node.own["compression"] = Pushes(packing)
        return (yield from AllGather(payload, combine))

    def factors_of(self, ranks: Sequence[int], group: SynchronousContributions, plan: Plan) -> list[float]:
        """The factor of each rank's Δ."""
        factors = dict(self.weights(group, plan))
        return [factors.get(rank, 1 / len(factors)) for rank in ranks]

    def local_steps(
        self, node: Node, plan: Plan, state: State, x: Vector, rounds: Sequence[Split]
    ) -> Program[tuple[Vector, UnreportedTimings, SynchronousContributions]]:
        """Take this rank's local steps from x. Returns the final weights, this rank's timings, and all ranks' contributions."""
        epoch = plan.epoch(state.num_samples)
        unreported = UnreportedTimings()
        group = SynchronousContributions(state.version)
        for batches in rounds:
            loss = seconds = 0.0
            if batches[node.rank]:
                computed = yield from Gradient(at=x, batch=batches[node.rank], version=state.version)
                x = yield from LocalUpdate(at=x, gradient=computed.gradient, version=state.version, epoch=epoch, in_place=True)
                loss, seconds = computed.loss, computed.seconds
            unreported = unreported.appended(batches, seconds)
            group = group.appended(batches, seconds, loss)
        return x, unreported, group

    def grouped(self, group: Sequence[Contribution]) -> Sequence[Contribution]:
        """One contribution for each rank, over the samples of all its local steps."""
        return group.by_rank() if isinstance(group, SynchronousContributions) else group
