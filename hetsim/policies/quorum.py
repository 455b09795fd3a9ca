"""The rule of a syncer's wait for workers: a quorum, and further workers within a grace window that local steps hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.admission import Admission, Decision


@dataclass(frozen=True)
class QuorumState:
    """Moving averages in seconds (None before the first): a local step, the wait for a quorum, and an exchange without its grace."""

    step: float | None = None
    quorum: float | None = None
    exchange: float | None = None


@dataclass(frozen=True, kw_only=True)
class Quorum(Admission):
    """K reports begin an exchange. The rule waits for their answers and then for a grace window, and drops later answers.

    Decoupled DiLoCo, arXiv 2604.21428. The grace is γ (τ ξ_step − ξ_quorum − ξ_exchange), where the ξ are moving averages. So on average,
    the whole exchange ends within τ local steps. The grace is zero if this value is negative, and before the first exchange.
    """

    lets_gradients_be_late: ClassVar[bool] = False

    size: int
    """K"""
    overlap: float
    """τ, in local steps"""
    grace: float
    """γ, below 1"""
    smoothing: float
    """The weight of past values in the moving averages, below 1."""

    def __post_init__(self) -> None:
        checks.whole("admission.size", self.size)
        checks.number("admission.overlap", self.overlap, zero=True)
        checks.fraction("admission.grace", self.grace)
        checks.fraction("admission.smoothing", self.smoothing)

    def group_size(self, num_workers: int) -> int:
        return self.size

    def initial(self, num_workers: int) -> QuorumState:
        if self.size > num_workers:
            raise ValueError(f"admission.size={self.size} is more than the cluster's {num_workers} workers: give at most {num_workers}")
        return QuorumState()

    def arrived(self, state: QuorumState, contribution: Contribution) -> tuple[QuorumState, Decision]:
        """Count an answer that arrived in time."""
        group = (contribution,)
        return state, Decision(drop=group) if contribution.staleness else Decision(apply=group)

    def grace_seconds(self, state: QuorumState) -> float:
        """How long to wait for further answers after the quorum's answers have arrived."""
        if state.step is None or state.quorum is None or state.exchange is None:
            return 0.0
        return self.grace * max(0.0, self.overlap * state.step - state.quorum - state.exchange)

    def update_averages(self, state: QuorumState, *, step: float, quorum: float, exchange: float) -> QuorumState:
        """The averages after one more exchange."""
        return QuorumState(self._average(state.step, step), self._average(state.quorum, quorum), self._average(state.exchange, exchange))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """An equal share of the group, which is the global batch of its version."""
        return sum(contribution.samples for contribution in group) / len(group)

    def _average(self, old: float | None, new: float) -> float:
        return new if old is None else self.smoothing * old + (1 - self.smoothing) * new
