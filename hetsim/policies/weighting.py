"""How much a contribution counts: a group of c is applied as (1/c) Σ w_i d(τ_i) g_i."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hetsim.effects import Contribution


class Weighting(ABC):
    """Decides w_i from the number of samples that each mean gradient is over."""

    equal: ClassVar[bool] = False
    """Whether every contribution counts the same, however many samples it is over."""

    @abstractmethod
    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        """One w_i for each contribution; `fair_share` is an equal share of the global batch, B/N samples."""


@dataclass(frozen=True)
class PerWorker(Weighting):
    """Every worker's mean counts the same: w_i = 1."""

    equal: ClassVar[bool] = True

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return (1.0,) * len(contributions)


@dataclass(frozen=True)
class PerSample(Weighting):
    """Every sample counts the same: w_i = N · b_i / B. Moreno-Álvarez et al. 2022 (10.1007/s11227-022-04399-2).

    With a barrier this is the exact gradient of the global batch; without one it scales the learning rate by the share.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return tuple(contribution.samples / fair_share for contribution in contributions)


class Discount(ABC):
    """Decides d(τ), by how much an old gradient counts less."""

    @abstractmethod
    def factor(self, staleness: int) -> float:
        """d(τ) for a gradient that is `staleness` versions old."""


@dataclass(frozen=True)
class NoDiscount(Discount):
    """An old gradient counts like a new one: d(τ) = 1."""

    def factor(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True)
class InverseStaleness(Discount):
    """d(τ) = 1/τ, and 1 for a gradient of the present version: Zhang, Gupta, Lian, Liu, arXiv 1511.05950, "α = α0/τ"."""

    def factor(self, staleness: int) -> float:
        return 1.0 / max(1, staleness)
