"""How much a contribution counts. A group of c contributions is applied as (1/c) Σ w_i d(τ_i) g_i."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, exp, pi
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution


class Weighting(ABC):
    """Decides w_i from the number of samples in each mean gradient."""

    equal: ClassVar[bool] = False
    """Whether every contribution has the same weight, for any number of samples."""

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
    """Every worker's mean counts the same, however many gradients it averages: w_j = c / (n · m_j).

    The group of c gradients has n workers. The worker of gradient j sent m_j gradients. So the group is applied as (1/n) Σ_i μ_i, where μ_i
    is the mean of worker i's gradients. Malenia SGD (arXiv 2305.12387).
    """

    equal: ClassVar[bool] = True

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        m = Counter(contribution.rank for contribution in contributions)
        return tuple(len(contributions) / (len(m) * m[contribution.rank]) for contribution in contributions)


@dataclass(frozen=True)
class PerLocalStep(Weighting):
    """Every worker's mean local step counts the same: w_i = 1 / H_i, for a weight change by H_i steps.

    So workers that take more steps do not count more. FedNova, arXiv 2007.07481, without its common factor.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return tuple(1.0 / contribution.num_gradients for contribution in contributions)


@dataclass(frozen=True)
class PerSample(Weighting):
    """Every sample counts the same: w_i = N · b_i / B. Moreno-Álvarez et al. 2022 (10.1007/s11227-022-04399-2).

    With a barrier, this is the exact gradient of the global batch. Without a barrier, it scales each step by the worker's share.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        return tuple(contribution.samples / fair_share for contribution in contributions)


@dataclass(frozen=True)
class Tokens(Weighting):
    """Weight by samples and by samples per step: w_i ∝ s_i · (s_i / n_i), for s_i samples in n_i local steps, with Σ w_i = c in a group
    of c.

    Decoupled DiLoCo, arXiv 2604.21428, where samples are tokens. If all steps have equally many samples, w_i ∝ n_i.
    """

    def weights(self, contributions: Sequence[Contribution], fair_share: float) -> tuple[float, ...]:
        w = [c.samples * c.samples / c.num_gradients for c in contributions]
        return tuple(len(w) * w_i / sum(w) for w_i in w)


class Discount(ABC):
    """Decides d(τ), the factor that reduces an old gradient."""

    applied_on_arrival: ClassVar[bool] = False
    """Whether the discount is valid only if every gradient makes a version on arrival and its worker continues at once."""
    weighs_moments: ClassVar[bool] = False
    """Whether the discount weights the moments of optimizers such as Adam, whose steps ignore a gradient's scale."""

    @abstractmethod
    def factor(self, staleness: int) -> float:
        """d(τ) for a gradient. If d depends on the number of workers, this is d for one worker.

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
    """d(τ) = 1/τ, and 1 for a gradient of the current version: Zhang, Gupta, Lian, Liu, arXiv 1511.05950, "α = α0/τ"."""

    def factor(self, staleness: int) -> float:
        return 1.0 / max(1, staleness)


@dataclass(frozen=True, kw_only=True)
class Polynomial(Discount):
    """d(τ) = (1 + τ)^−a: FedAsync, arXiv 1903.03934, and FedBuff with a = ½, arXiv 2106.06639."""

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
    """d(τ) = γ(τ) e^(−a τ), which multiplies a gradient before Adam updates its moments: CGAD, arXiv 2605.09126. At τ = 0 it is Adam.

    Scaling all gradients alike would not change Adam's steps. Here, late gradients count less in the moments than other gradients. γ is a
    cosine gate: (1 + cos(π τ / c)) / 2 up to the cutoff c, and 0 after it. Without a cutoff γ is 1, the paper's Adam-Decay. The paper's
    abstract names the gate, and its form is ours.
    """

    weighs_moments: ClassVar[bool] = True

    rate: float
    """a"""
    cutoff: int | None = None
    """c, in versions; None for no gate."""

    def __post_init__(self) -> None:
        checks.number("discount.rate", self.rate, zero=True)
        if self.cutoff is not None:
            checks.whole("discount.cutoff", self.cutoff)

    def factor(self, staleness: int) -> float:
        gate = 1.0 if self.cutoff is None else (1 + cos(pi * min(staleness / self.cutoff, 1))) / 2
        return gate * exp(-self.rate * staleness)


@dataclass(frozen=True)
class Rescaled(Discount):
    """d(τ) = (τ + 1) / N: over k versions, each worker's factors d(τ) add up to k/N, whatever its speed. Rescaled ASGD, arXiv 2605.13434.

    If two successive gradients of a worker are applied at versions v and u, the second has τ = u − v − 1. So the factors telescope if the
    worker continues at once and the server drops nothing. N is the number of workers in the cluster.

    The paper scales each worker's rate by its seconds, γ_i ∝ T_i. This form needs no T_i. It is derived from the abstract. With equal
    speeds, τ = N − 1, and the rule is asynchronous SGD.
    """

    applied_on_arrival: ClassVar[bool] = True

    def factor(self, staleness: int) -> float:
        return self.factor_among(staleness, 1)

    def factor_among(self, staleness: int, num_workers: int) -> float:
        return (staleness + 1) / num_workers


@dataclass(frozen=True)
class DelayAdaptive(Discount):
    """d(τ) = N / max(N, τ): full steps up to a delay of N versions, shorter ones beyond. Mishchenko et al. 2022, arXiv 2206.07638.

    As in the code of Ringmaster's authors, who use it as a baseline. N is the number of workers in the cluster.
    """

    def factor(self, staleness: int) -> float:
        return self.factor_among(staleness, 1)

    def factor_among(self, staleness: int, num_workers: int) -> float:
        return num_workers / max(num_workers, staleness)
