"""Means over runs with 95 % intervals by Student's t, and ratios of runs that are paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetsim.results.writing.describe import formatted

Number = float | None


@dataclass(frozen=True)
class Estimate:
    """A mean, its 95 % interval, and the number of runs that have this number. Each of the first three may be None."""

    mean: Number
    low: Number
    high: Number
    num_known: int
    num_runs: int

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval; None if it is unknown, for example for a single run."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def wider(self, factor: float) -> Estimate:
        """Divide the lower bound and multiply the upper one by `factor`. Without an interval, both bounds start at the mean."""
        if self.mean is None:
            return self
        low, high = self.bounds or (self.mean, self.mean)
        return replace(self, low=low / factor, high=high * factor)

    def in_unit(self, size: float) -> Estimate:
        """The same numbers in a unit of this size."""
        mean, low, high = (None if value is None else value / size for value in (self.mean, self.low, self.high))
        return replace(self, mean=mean, low=low, high=high)

    def __str__(self) -> str:
        if self.mean is None:
            return "–" if not self.num_known else f"in {self.num_known} of {self.num_runs}"
        if self.low is None or self.high is None or formatted(self.low) == formatted(self.high):
            return formatted(self.mean)
        return f"{formatted(self.mean)} ({_brief(self.low)} … {_brief(self.high)})"


def _brief(value: float) -> str:
    """Three significant digits."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


def estimate(values: Sequence[Number], *, scale: str) -> Estimate:
    """The mean over runs, on a scale that is "logarithmic", "linear", "from zero" (linear), or "share" (linear from 0 to 1).

    On a logarithmic scale the mean is geometric. The interval is computed from logarithms, so it is above zero. If a value is not above
    zero, the scale is linear from zero. Then the lower bound is at least zero, unless a value is negative.

    There is no mean if a run has no number, because leaving that run out would favour its config. A single run has no interval.
    """
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return Estimate(None, None, None, len(present), len(values))
    if min(present) == max(present):  # its own mean, to the last bit
        bound = present[0] if len(present) > 1 else None
        return Estimate(present[0], bound, bound, len(present), len(present))
    if scale == "logarithmic" and min(present) > 0:
        mean, half = _mean_and_half([math.log(value) for value in present])
        middle, low, high = (_exponential(bound) for bound in (mean, mean - half, mean + half))
    else:
        middle, half = _mean_and_half(present)
        low, high = middle - half, middle + half
        if scale != "linear" and min(present) >= 0:
            low = max(low, 0.0)
        if scale == "share" and max(present) <= 1:
            high = min(high, 1.0)
    return Estimate(middle, low, high, len(present), len(present))


def _exponential(value: float) -> float:
    return math.exp(min(value, 700.0))  # an interval of two runs may be wider than any float


def _mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean of several values, and half the width of its interval."""
    from scipy.special import stdtrit

    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    return mean, float(stdtrit(len(values) - 1, 0.975)) * deviation


def paired_ratio(above: Mapping[int, Sequence[Number]], below: Mapping[int, Sequence[Number]]) -> Estimate:
    """The ratio of two configs' numbers, by seed. Several runs of one seed count by their geometric mean.

    Runs of one seed share initial weights and the order of samples, so their ratios vary far less than their numbers. A seed that only one
    config has is left out. If a run's number is missing or not above zero, its seed has no ratio.
    """
    seeds = sorted(above.keys() & below.keys())
    ratios = [_ratio(above[seed], below[seed]) for seed in seeds]
    return estimate(ratios, scale="logarithmic") if ratios else Estimate(None, None, None, 0, 0)


def _ratio(above: Sequence[Number], below: Sequence[Number]) -> Number:
    if any(value is None or value <= 0 for value in (*above, *below)):
        return None
    logarithms = [math.fsum(math.log(value) for value in values if value) / len(values) for values in (above, below)]
    return _exponential(logarithms[0] - logarithms[1])
