"""A server that keeps a table of every worker's mean gradient, and steps along the mean of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.weighting import NoDiscount, PerWorker
from hetsim.vector import Vector, operations_of_sum, weighted_sum


class Tabled(list[Contribution]):
    """The new contributions since the last version. The step follows the mean gradients in the table."""

    def __init__(self, new: Sequence[Contribution], means: Mapping[int, Vector]) -> None:
        super().__init__(new)
        self.means = means


@dataclass(frozen=True, kw_only=True)
class TableServer(ParameterServer):
    """W ← W − η (1/n) Σ μ_i over the workers' mean gradients in a table that the admission keeps. Ringleader ASGD, arXiv 2509.22860.

    A version's contributions are the gradients since the last version, so each sample counts once. But each worker weighs 1/n in every
    version: a worker without a new mean counts by its old one.
    """

    keeps_table: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "a step is along the table of all workers' means: leave this axis as the method sets it"
        self.only(why, weighting=PerWorker, discount=NoDiscount, compensation=NoCompensation)

    def correct_group(self, plan: Plan, state: State, group: tuple[Contribution, ...]) -> tuple[Any, list[Contribution]]:
        """The new contributions, with the current table."""
        compensation, applied = super().correct_group(plan, state, group)
        current = state.admission.current
        return compensation, Tabled(applied, {rank: current[rank].gradient for rank in sorted(current)})

    def total(self, group: Sequence[Contribution], plan: Plan) -> Vector:
        """(1/n) Σ μ_i."""
        assert isinstance(group, Tabled)
        return weighted_sum([*group.means.values()], lambda: [1 / len(group.means)] * len(group.means))

    def num_operations(self, group: Sequence[Contribution]) -> int:
        assert isinstance(group, Tabled)
        return operations_of_sum(len(group.means))

    def weights(self, group: Sequence[Contribution], plan: Plan) -> list[tuple[int, float]]:
        """1/n for each worker in the table."""
        return [(rank, 1 / len(group.means)) for rank in group.means] if isinstance(group, Tabled) else super().weights(group, plan)
