"""Asynchronous local SGD in which each worker's number of local steps depends on its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor

from hetsim.coordination.async_local_steps import AsyncLocalSteps
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.policies.admission import Decision
from hetsim.vector import Vector

StepSeconds = Mapping[int, float]
"""The seconds of each participating worker's mean local step in its last round, by rank."""


@dataclass(frozen=True)
class DynamicLocalSteps:
    """H_i = max(1, ⌊H v_i / max_j v_j⌋), where worker i takes v_i steps per second: DyLU, arXiv 2401.09135.

    So all rounds take about as long as the fastest worker's round. A worker of unknown speed takes one step.
    """

    period: int
    """H"""

    def steps(self, seconds: StepSeconds, rank: int) -> int:
        """H_i."""
        if rank not in seconds:
            return 1
        share = min(seconds.values()) / seconds[rank] if seconds[rank] else 1.0
        return max(1, floor(round(self.period * share, 6)))  # rounded: a third of the speed is a third of H, whatever the last bit

    def observe(self, seconds: StepSeconds, contributions: Sequence[Contribution]) -> StepSeconds:
        """The speeds after these changes of the weights have arrived."""
        return {**seconds, **{c.rank: c.seconds / c.num_gradients for c in contributions}}

    def remove_worker(self, seconds: StepSeconds, rank: int) -> StepSeconds:
        """The speeds without this worker."""
        return {worker: step_seconds for worker, step_seconds in seconds.items() if worker != rank}


@dataclass(frozen=True, kw_only=True)
class AsyncDynamicLocalSteps(AsyncLocalSteps):
    """The fastest worker takes H local steps before a push. Slower workers take as many as they can in that time: arXiv 2401.09135.

    The server measures speeds by the seconds in each push. The speeds are part of a run's state.
    """

    @cached_property
    def local_steps(self) -> DynamicLocalSteps:
        """The policy that sets the number of local steps."""
        return DynamicLocalSteps(self.period)

    def initial(self, plan: Plan, weights: Vector, profile: Sequence[Contribution] = ()) -> State:
        """The state before the first step. No speed is known."""
        return super().initial(plan, weights, profile).evolve(measured={})

    def num_steps(self, state: State, rank: int) -> int:
        return self.local_steps.steps(state.measured, rank)

    def observe(self, plan: Plan, state: State, decision: Decision) -> State:
        state = super().observe(plan, state, decision)
        return state.evolve(measured=self.local_steps.observe(state.measured, decision.apply + decision.drop))

    def worker_left(self, state: State, rank: int) -> tuple[State, Decision]:
        state, decision = super().worker_left(state, rank)
        return state.evolve(measured=self.local_steps.remove_worker(state.measured, rank)), decision
