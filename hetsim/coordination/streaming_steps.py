"""Streaming local steps: an all-reduce averages one fragment of the weights at a time, while workers continue with local steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.bookkeeping.contributions import ComputedSplit, SynchronousContributions
from hetsim.coordination.bookkeeping.fragments import check_fragments, difference, divide_into_fragments, fragment_entries, merge_fragment
from hetsim.coordination.bookkeeping.timings import UnreportedTimings, gather_timings
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Commit, Contribution, Node, Program, Start, Update, Wait
from hetsim.policies.compression import NoCompression
from hetsim.vector import Vector


@dataclass(frozen=True, kw_only=True)
class StreamingSteps(LocalSteps):
    """Streaming DiLoCo, arXiv 2501.18512: the weights have P fragments; every h = H/P local steps, one fragment is averaged.

    For fragment p of the global weights Θ, a period has four parts:

    1. h − τ local steps.
    2. The all-reduce of Δ_p = (1/N) Σ w_i (Θ_p − x_i,p) starts. Meanwhile workers take τ steps of *all* parameters.
    3. Θ_p ← an outer step along Δ_p, with an optimizer's memory for each fragment.
    4. x_i,p ← (1 − α) Θ_p + α x_i,p.

    P = 1, τ = 0, α = 0 is DiLoCo.

    Each outer step makes a version of Θ. Its contributions are the h steps before it, including steps during the all-reduce. Each worker
    keeps its own x_i, also after a resume. After a crash or a regroup it starts from Θ. A period that the end of the data cuts short has
    at least one step before its all-reduce.
    """

    same_on_every_rank: ClassVar[bool] = True
    begins_at_commits: ClassVar[bool] = True

    fragments: int
    """P, which divides H"""
    delay: int
    """τ, less than h"""
    local_share: float
    """α"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.only("fragments are added up by an all-reduce: take compression=none, or coordination=local_steps", compression=NoCompression)
        check_fragments(self.period, self.fragments)
        checks.whole("coordination.delay", self.delay, least=0)
        if checks.number("coordination.local_share", self.local_share, zero=True) > 1:
            raise ValueError(f"coordination.local_share must be at most 1, not {checks.shown(self.local_share)}")
        if self.delay >= self.steps_per_fragment:
            raise ValueError(
                f"coordination.delay={self.delay} must be less than coordination.period/coordination.fragments={self.steps_per_fragment}, "
                "the steps from one all-reduce to the next: lower it"
            )

    @property
    def steps_per_fragment(self) -> int:
        """h"""
        return self.period // self.fragments

    def initial(self, plan: Plan, weights: Vector, profile: Sequence[Contribution] = ()) -> State:
        divide_into_fragments(weights, plan, self.fragments)
        return super().initial(plan, weights, profile)

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """The program of every rank: h − τ local steps, the all-reduce of a fragment during τ more steps, a global step of the fragment."""
        fragments = divide_into_fragments(state.weights, plan, self.fragments)
        unreported = node.own.get("unreported") or UnreportedTimings()
        x = node.own.get("x", state.weights)
        going = True
        while going and plan.has_next(state.next_sample):
            p = fragments[state.version % self.fragments]
            rounds = plan.rounds(state.next_sample, self.allocation.shares(state.allocation), self.steps_per_fragment)
            num_alone = max(1, len(rounds) - self.delay)
            x, timings_alone, group = yield from self.local_steps(node, plan, state, x, rounds[:num_alone])
            contributions = SynchronousContributions(state.version, tuple(ComputedSplit(batches, 0.0, 0.0) for batches in rounds))
            term = self.term(difference(state.weights, fragment_entries(x, p), p, plan), contributions, plan, node.rank)
            pending = yield from Start(AllReduce(term, in_place=True))
            x, timings_overlapped, overlapped = yield from self.local_steps(node, plan, state, x, rounds[num_alone:])
            delta = yield from Wait(pending)
            num_samples = state.num_samples + sum(batches.num_samples for batches in rounds)
            state = replace(state, next_sample=rounds[-1].stop, num_samples=num_samples)
            unreported = unreported + timings_alone + timings_overlapped
            epoch = plan.epoch(state.num_samples)
            timings, unreported = yield from gather_timings(unreported, state.version, asked=self.allocation.asks(state.allocation, epoch))
            weights = yield from Update(at=state.weights, gradient=delta, fragment=p)
            x = merge_fragment(x, weights, p, self.local_share)
            allocation = self.allocation.observe(state.allocation, timings, epoch)
            state = replace(state, version=state.version + 1, weights=weights, allocation=allocation)
            node.own["unreported"], node.own["x"] = unreported, x
            going = yield from Commit(state.version, state, replace(group, rounds=group.rounds + overlapped.rounds))
