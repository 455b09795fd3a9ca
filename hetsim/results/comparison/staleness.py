"""The distributions of staleness of both sides' contributions, and their distance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Counts = Mapping[int, int]
"""The number of applied contributions for each staleness."""


@dataclass(frozen=True)
class Staleness:
    """Both distributions, each over all runs of its side, and their distance."""

    first: Counts
    second: Counts
    distance: float
    """The Wasserstein distance: the mean number of versions by which one side's contributions would have to shift."""
    spread: float | None
    """The largest distance between two runs of the second side; None for a single run."""

    @property
    def means(self) -> tuple[float, float]:
        """The means of both sides."""
        one, other = (sum(value * count for value, count in counts.items()) / sum(counts.values()) for counts in (self.first, self.second))
        return one, other

    @property
    def relative_distance(self) -> float | None:
        """The distance divided by the second side's mean; None if that mean is 0."""
        return self.distance / self.means[1] if self.means[1] else None

    @property
    def within_spread(self) -> bool | None:
        """Whether the distance of the sides is no larger than the distance between runs of the second side; None for a single run."""
        return None if self.spread is None else self.distance <= self.spread


def staleness(first: Sequence[Counts], second: Sequence[Counts]) -> Staleness | None:
    """The distributions over both sides' runs; None if a run applied no contribution."""
    if not all([*first, *second]):
        return None
    one, other = _together(first), _together(second)
    spread = max((wasserstein(*pair) for pair in combinations(second, 2)), default=None)
    return Staleness(one, other, wasserstein(one, other), spread)


def _together(runs: Sequence[Counts]) -> Counts:
    counts: Counter[int] = Counter()
    for run in runs:
        counts.update(run)
    return dict(sorted(counts.items()))


def wasserstein(one: Counts, other: Counts) -> float:
    """The area between the two cumulative distributions, in versions."""
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance([*one], [*other], [*one.values()], [*other.values()]))
