"""How much a contribution counts: a group of c is applied as (1/c) Σ w_i d(τ_i) g_i."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution


class Weighting(ABC):
    """Decides w_i from the number of samples that each mean gradient is over."""

    equal: ClassVar[bool] = False
    """Whether every contribution counts the same, however many samples it is over."""

    @abstractmethod
    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        """One w_i for each contribution, in their order.

        Args:
            contributions: a group that makes a version.
            fair_share: an equal share of the global batch, B/N samples.
        """


@dataclass(frozen=True)
class PerWorker(Weighting):
    """Every worker's mean counts the same: w_i = 1."""

    equal: ClassVar[bool] = True

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return (1.0,) * len(contributions)


@dataclass(frozen=True)
class PerWorkerMean(Weighting):
    """Every worker's mean counts the same, of however many gradients: w_j = c / (n · m_j), for n workers of which j's has m_j in the group.

    So the group of c is applied as (1/n) Σ_i μ_i. Malenia SGD (arXiv 2305.12387).
    """

    equal: ClassVar[bool] = True

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        m = Counter(contribution.rank for contribution in contributions)
        return tuple(len(contributions) / (len(m) * m[contribution.rank]) for contribution in contributions)


@dataclass(frozen=True)
class PerLocalStep(Weighting):
    """Every worker's mean local step counts the same: w_i = 1 / H_i, for a change of the weights by H_i steps.

    So workers that take more steps do not count for more. FedNova, arXiv 2007.07481, without its common factor.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return tuple(1.0 / contribution.num_gradients for contribution in contributions)


@dataclass(frozen=True)
class PerSample(Weighting):
    """Every sample counts the same: w_i = N · b_i / B. Moreno-Álvarez et al. 2022 (10.1007/s11227-022-04399-2).

    With a barrier this is the exact gradient of the global batch; without one it scales the learning rate by the share.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return tuple(contribution.samples / fair_share for contribution in contributions)


@dataclass(frozen=True)
class Tokens(Weighting):
    """By samples and samples per step: w_i ∝ s_i · (s_i / n_i), for s_i samples in n_i local steps, with Σ w_i = c in a group of c.

    Decoupled DiLoCo, arXiv 2604.21428, where samples are tokens. Workers whose steps are over equally many samples count by their steps.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        w = [c.samples * c.samples / c.num_gradients for c in contributions]
        return tuple(len(w) * w_i / sum(w) for w_i in w)


class Discount(ABC):
    """Decides d(τ), by how much an old gradient counts less."""

    applied_on_arrival: ClassVar[bool] = False
    """Whether it means what it says only where every gradient makes a version when it arrives, and its worker continues at once."""
    weighs_moments: ClassVar[bool] = False
    """Whether it is made for optimizers such as Adam, whose moments it weighs, although their steps do not depend on a gradient's scale."""

    @abstractmethod
    def factor(self, staleness: int) -> float:
        """d(τ) for a gradient. If it depends on the number of workers, d(τ) among one.

        Args:
            staleness: τ, in versions.
        """

    def factor_among(self, staleness: int, num_workers: int) -> float:
        """d(τ) among N workers.

        Args:
            staleness: τ, in versions.
            num_workers: N.
        """
        return self.factor(staleness)


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


@dataclass(frozen=True, kw_only=True)
class Polynomial(Discount):
    """d(τ) = (1 + τ)^−a: FedAsync, arXiv 1903.03934, and with a = ½ FedBuff, arXiv 2106.06639."""

    exponent: float
    """a"""

    def __post_init__(self) -> None:
        checks.number("discount.exponent", self.exponent, zero=True)

    def factor(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.exponent)


@dataclass(frozen=True, kw_only=True)
class Hinge(Discount):
    """d(τ) = 1 up to a staleness of b, then 1 / (a (τ − b) + 1): FedAsync, arXiv 1903.03934."""

    slope: float
    """a"""
    bound: int
    """b"""

    def __post_init__(self) -> None:
        checks.number("discount.slope", self.slope, zero=True)
        checks.whole("discount.bound", self.bound, least=0)

    def factor(self, staleness: int) -> float:
        return 1.0 / (self.slope * max(0, staleness - self.bound) + 1)


@dataclass(frozen=True, kw_only=True)
class Exponential(Discount):
    """d(τ) = γ(τ) e^(−a τ), before both of Adam's moments: CGAD, arXiv 2605.09126. At τ = 0 it is Adam.

    A single scale of all gradients would not change Adam's steps. Here late gradients count less in the moments than others do. The rule is
    from a secondary source, which does not say what γ is: here it is (1 + τ)^−b, and 1 with b = 0.
    """

    weighs_moments: ClassVar[bool] = True

    rate: float
    """a"""
    exponent: float = 0.0
    """b"""

    def __post_init__(self) -> None:
        checks.number("discount.rate", self.rate, zero=True)
        checks.number("discount.exponent", self.exponent, zero=True)

    def factor(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.exponent) * exp(-self.rate * staleness)


@dataclass(frozen=True)
class Rescaled(Discount):
    """d(τ) = (τ + 1) / N: the weights of any worker add up to k/N over k versions, whatever its speed. Rescaled ASGD, arXiv 2605.13434.

    If two successive gradients of a worker are applied at versions v and u, the second has τ = u − v − 1. So the factors telescope, if the
    worker continues at once and nothing is dropped. N are all workers of the cluster.

    The paper scales each worker's rate by its seconds, γ_i ∝ T_i. This form needs no T_i, and is derived from the abstract. With equal
    speeds τ = N − 1, and it is asynchronous SGD.
    """

    applied_on_arrival: ClassVar[bool] = True

    def factor(self, staleness: int) -> float:
        return self.factor_among(staleness, 1)

    def factor_among(self, staleness: int, num_workers: int) -> float:
        return (staleness + 1) / num_workers


@dataclass(frozen=True)
class DelayAdaptive(Discount):
    """d(τ) = N / max(N, τ): full steps up to a delay of N versions, shorter ones beyond. Mishchenko et al. 2022, arXiv 2206.07638.

    As in the code of Ringmaster's authors, which has it as a baseline. N are all workers of the cluster.
    """

    def factor(self, staleness: int) -> float:
        return self.factor_among(staleness, 1)

    def factor_among(self, staleness: int, num_workers: int) -> float:
        return num_workers / max(num_workers, staleness)
