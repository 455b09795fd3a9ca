"""How a delay is corrected before a gradient is applied, and what the server sends in place of W."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hetsim.effects import Contribution
from hetsim.vector import Vector


class Compensation(ABC):
    """Decides what a late gradient would have been."""

    @abstractmethod
    def initial(self, weights: Vector, num_workers: int) -> Any:
        """The state before anything was applied."""

    @abstractmethod
    def correct(self, state: Any, contribution: Contribution, now: Vector) -> tuple[Any, Vector]:
        """The gradient to apply at the weights `now`, computed at `contribution.used`; and the state after it."""

    def outgoing(self, state: Any, weights: Vector) -> Vector:
        """What the server sends for others to compute at."""
        return weights


@dataclass(frozen=True)
class NoCompensation(Compensation):
    """A gradient is applied as it came."""

    def initial(self, weights: Vector, num_workers: int) -> None:
        return None

    def correct(self, state: None, contribution: Contribution, now: Vector) -> tuple[None, Vector]:
        return None, contribution.gradient
