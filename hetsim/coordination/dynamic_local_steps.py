"""Asynchronous local SGD in which each worker's number of local steps depends on its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hetsim.coordination.async_local_steps import AsyncLocalSteps
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.policies.admission import Decision
from hetsim.policies.local_steps import DynamicLocalSteps
from hetsim.vector import Vector


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

    def observed(self, plan: Plan, state: State, decision: Decision) -> State:
        state = super().observed(plan, state, decision)
        return state.evolve(measured=self.local_steps.observed(state.measured, decision.apply + decision.drop))

    def worker_left(self, state: State, rank: int) -> tuple[State, Decision]:
        state, decision = super().worker_left(state, rank)
        return state.evolve(measured=self.local_steps.left(state.measured, rank)), decision
