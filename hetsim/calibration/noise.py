"""The noise of measured times after the fit: its distribution, and the correlation of consecutive times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

AS_GOOD = 0.005
"""The gamma distribution is preferred to the measured factors unless their error is smaller by at least this."""
LEAST_NOISE = 0.005
"""The smallest noise that counts, as the standard deviation divided by the mean."""
LEAST_FACTORS = 50
"""The minimum number of factors for meaningful quantiles."""
MAX_WRITTEN = 2000
"""The maximum number of factors in a file. More factors are replaced by as many quantiles."""
QUANTILES = np.array([*np.arange(0.05, 0.96, 0.05), 0.99])
LEAST_SPELL, SLOW = 5, 1.5
"""A slow spell consists of at least this many consecutive times, each above this many medians."""


@dataclass(frozen=True)
class Noise:
    """Factors with mean 1 on fitted times, in order of time, and the errors of two distributions on held-out quantiles."""

    deviation: float = 0.0
    """The standard deviation."""
    factors: tuple[float, ...] = ()
    error_of_gamma: float = 0.0
    """The mean relative error of the quantiles of one half of the factors, with the gamma distribution that is fitted to the other half."""
    error_of_measured: float = 0.0
    """The same error with the quantiles of the other half."""

    @classmethod
    def fit(cls, factors: Sequence[float]) -> Noise:
        """Fit to factors with mean 1. Each half of the factors, taken alternately, is held out once."""
        deviation = fmean((factor - 1) ** 2 for factor in factors) ** 0.5
        if deviation < LEAST_NOISE or len(factors) < LEAST_FACTORS:
            return cls(deviation, tuple(factors))
        halves = [np.array(factors[place::2]) for place in range(2)]
        errors = [
            [_error(law(fitted), held_out) for fitted, held_out in (halves, halves[::-1])] for law in (_gamma_quantiles, _own_quantiles)
        ]
        return cls(deviation, tuple(factors), *map(fmean, errors))

    @property
    def takes_measured(self) -> bool:
        """Whether the measured factors are clearly better than the gamma law."""
        return self.error_of_measured < self.error_of_gamma - AS_GOOD

    @property
    def autocorrelation(self) -> float:
        """The correlation of each factor with the next one, from −1 to 1; 0 if all factors are equal."""
        if self.deviation < LEAST_NOISE or len(self.factors) < 3:
            return 0.0
        longer = np.array(self.factors) - 1
        return float((longer[:-1] * longer[1:]).mean() / (longer**2).mean())

    @property
    def slow_spells(self) -> list[float]:
        """The mean time of each slow spell, relative to the median."""
        return [fmean(spell) for spell in self._spells()]

    @property
    def share_in_slow_spells(self) -> float:
        """The share of the gradients that are in slow spells, from 0 to 1."""
        return sum(map(len, self._spells())) / len(self.factors) if self.factors else 0.0

    def _spells(self) -> list[list[float]]:
        """The factors of each slow spell, divided by the median."""
        slow = np.array(self.factors) / np.median(self.factors) if self.factors else np.array([])
        runs = (list(run) for is_slow, run in groupby(slow.tolist(), key=lambda factor: factor > SLOW) if is_slow)
        return [run for run in runs if len(run) >= LEAST_SPELL]

    def as_row(self, file: str | None) -> dict[str, Any]:
        """The key `noise` for factors with mean 1. Measured factors are written to `file`; None if that is impossible."""
        if self.deviation < LEAST_NOISE:
            return {}
        if self.takes_measured and file is not None:
            return {"noise": {"distribution": "empirical", "file": file}}
        variance = self.deviation**2
        return {"noise": {"distribution": "gamma", "a": float(f"{1 / variance:.4g}"), "scale": float(f"{variance:.4g}")}}

    def as_csv(self) -> str:
        """The measured factors as a CSV file."""
        factors = np.array(self.factors)
        if len(factors) > MAX_WRITTEN:
            factors = np.quantile(factors, (np.arange(MAX_WRITTEN) + 0.5) / MAX_WRITTEN)
        return "factor\n" + "".join(f"{factor:.5g}\n" for factor in factors)

    def describe(self) -> str:
        """The noise in words."""
        spells = self.slow_spells
        slow = f"{len(spells)} slow spell{'s' * (len(spells) > 1)}, {fmean(spells):.2g} times as long" if spells else "no slow spells"
        text = f"noise {100 * self.deviation:.1f} %, autocorrelation {self.autocorrelation:.2f}, {slow}"
        if self.deviation < LEAST_NOISE or len(self.factors) < LEAST_FACTORS:
            return text
        used = "measured factors" if self.takes_measured else "gamma law"
        errors = f"gamma law {100 * self.error_of_gamma:.1f} %, measured factors {100 * self.error_of_measured:.1f} %"
        return f"{text}; error at held-out quantiles: {errors}; the cluster uses the {used}"


def _gamma_quantiles(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import gammaincinv

    variance = max(float((factors / factors.mean()).var()), LEAST_NOISE**2)
    quantiles: NDArray[np.float64] = factors.mean() * variance * gammaincinv(1 / variance, QUANTILES)
    return quantiles


def _own_quantiles(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    quantiles: NDArray[np.float64] = np.quantile(factors, QUANTILES)
    return quantiles


def _error(predicted: NDArray[np.float64], held_out: NDArray[np.float64]) -> float:
    return float(np.abs(predicted / np.quantile(held_out, QUANTILES) - 1).mean())
