"""The staleness of both sides' contributions as distributions, and how far these are from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Counts = Mapping[int, int]
"""Applied contributions by their staleness."""


@dataclass(frozen=True)
class Staleness:
    """Both distributions, each of all runs of its side together, and their distance."""

    first: Counts
    second: Counts
    distance: float
    """The Wasserstein distance: by how many versions the contributions of one side would have to be older or newer, on average."""
    spread: float | None
    """The largest such distance between two runs of the second side; None if it has one run."""

    @property
    def means(self) -> tuple[float, float]:
        """Of both sides."""
        one, other = (sum(value * count for value, count in counts.items()) / sum(counts.values()) for counts in (self.first, self.second))
        return one, other

    @property
    def relative_distance(self) -> float | None:
        """The distance over the second side's mean; None if that is 0."""
        return self.distance / self.means[1] if self.means[1] else None

    @property
    def within_spread(self) -> bool | None:
        """Whether the sides are no further from each other than runs of the second side are; None if that has one run."""
        return None if self.spread is None else self.distance <= self.spread


def staleness(first: Sequence[Counts], second: Sequence[Counts]) -> Staleness | None:
    """The distributions of both sides' runs; None if a run applied nothing."""
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
