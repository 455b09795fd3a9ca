"""The parts that both forms of a one-step delay share: a warm-up, and the local step that bridges the delay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Contribution, LocalUpdate, Program
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import Vector, with_tail

AGAINST_CHOICES = ("previous", "used")


@dataclass(frozen=True, kw_only=True)
class OneStepDelay(Coordination):
    """OD-SGD, arXiv 2005.06728: a warm-up of synchronous SGD; then each worker continues from w_i(t+1) = W(t) + u(g_i(t)).

    W(t) are the worker's newest global weights, which are one step old. u is a step of its local optimizer. Without a local optimizer,
    the worker computes the next gradient at W(t): Pipe-SGD (NeurIPS 2018, arXiv 1811.03619). The global steps are synchronous:
    W(t+1) = W(t) − η (1/N) Σ g_i(t).

    A compensation corrects g_i only in the local step: from W(t−1) to W(t) (`against=previous`), as the authors' code does, or from the
    weights at which g_i was computed (`against=used`).
    """

    takes_local_steps: ClassVar[bool] = True

    warm_up: int
    """The number of updates of synchronous SGD before the delay begins."""
    against: str = "previous"

    def __post_init__(self) -> None:
        checks.whole("coordination.warm_up", self.warm_up, least=0)
        checks.choice("coordination.against", self.against, AGAINST_CHOICES)
        reason = "in a one-step delay all workers wait for one another, one step later: leave this axis as the method sets it"
        self.only(reason, admission=Barrier, discount=NoDiscount)
        if not self.compensation.corrects_locally:
            self.only("a worker cannot correct its local step by it: take dc, dc_adaptive or none", compensation=NoCompensation)

    @property
    def needs_local_steps(self) -> str | None:
        corrects = not isinstance(self.compensation, NoCompensation)
        return f"{type(self.compensation).__name__} corrects a worker's local step" if corrects else None

    def remark(self, last: State) -> str | None:
        if last.version > self.warm_up:
            return None
        return f"all {last.version} updates were warm-up, so the delay never began: raise the budget, or lower coordination.warm_up"

    def step(
        self, plan: Plan, memory: object, *, g: Contribution, base: Vector, previous: Vector, at: Vector, version: int, epoch: int
    ) -> Program[tuple[object, Vector]]:
        """Take the local step u from `base` along this worker's gradient `g`, which was computed at `at`.

        Returns the compensation's next state, and the weights.
        """
        used = previous if self.against == "previous" else at
        memory, gradient = self.compensation.correct(memory, replace(g, used=used), base)
        gradient = with_tail(gradient, g.gradient, plan.num_parameters)
        weights = yield from LocalUpdate(at=base, gradient=gradient, version=version, epoch=epoch)
        return memory, weights
