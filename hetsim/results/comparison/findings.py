"""All results of a comparison: the numbers of both sides, their staleness, and where their time went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.files.schema import MISSING, entry, own_metrics
from hetsim.files.summary_and_curve import NUMBERS
from hetsim.results.comparison.sides import Sides, sides
from hetsim.results.comparison.time_use import COMPONENTS, INTERVALS, Floats, TimeUse
from hetsim.results.tables.estimates import Estimate, Number, estimate
from hetsim.results.writing.describe import in_words

Difference = Callable[[Number, Number], Number]
"""The difference of the first number from the second; None if it has no meaning."""
Counts = Mapping[int, int]
"""The number of applied contributions for each staleness."""
SCALES = {
    **dict.fromkeys(("updates_per_second", "samples_per_second", "final.train_loss"), "logarithmic"),
    **dict.fromkeys(("idle_share", "final.test_accuracy"), "share"),
}
"""The scales of numbers' intervals, as in tables. All others are linear from zero."""
IN_SENTENCE = dict(zip(COMPONENTS, ("computing", "communication", "the server's updates", "waiting", "absence"), strict=True))
"""The components' names in a sentence."""
WITHIN = " (within)"
"""Marks an error that is no larger than the spread of the second side's runs."""
LEAST_PART = 0.1
"""A sentence contains the components whose difference is at least this fraction of the largest difference."""


@dataclass(frozen=True)
class ComparedNumber:
    """A number of both sides: both means over the runs with their intervals, and the error of the means.

    The spread is the second side's largest number minus its smallest, in the unit of the error. It is None for a single run.
    """

    name: str
    key: str
    is_share: bool
    first: Estimate
    second: Estimate
    error: Number
    spread: Number

    @property
    def is_within_spread(self) -> bool | None:
        """Whether the error is no larger than the spread. None without an error or a spread."""
        return None if self.error is None or self.spread is None else abs(self.error) <= self.spread


@dataclass(frozen=True)
class PerUpdate:
    """The intervals of a kind on one side: the number per update, and the mean length in seconds (0 without intervals)."""

    per_update: float
    mean_seconds: float


@dataclass(frozen=True)
class ComparedIntervals:
    """The intervals of a kind on both sides, and the two parts of the difference of their seconds per update."""

    name: str
    first: PerUpdate
    second: PerUpdate
    by_length: float
    """The difference of the lengths times the mean number."""
    by_number: float
    """The difference of the numbers times the mean length."""


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
        distributions = (self.first, self.second)
        first, second = (sum(value * count for value, count in counts.items()) / sum(counts.values()) for counts in distributions)
        return first, second

    @property
    def relative_distance(self) -> float | None:
        """The distance divided by the second side's mean; None if that mean is 0."""
        return self.distance / self.means[1] if self.means[1] else None

    @property
    def within_spread(self) -> bool | None:
        """Whether the distance of the sides is no larger than the distance between runs of the second side; None for a single run."""
        return None if self.spread is None else self.distance <= self.spread


@dataclass(frozen=True)
class Findings:
    """The numbers of both sides, and where their time went. The latter is empty unless both sides have traces."""

    sides: Sides
    numbers: list[ComparedNumber]
    components: list[ComparedNumber]
    staleness: Staleness | None
    intervals: list[ComparedIntervals]
    where: str
    """One sentence: the largest differences in the seconds of an update."""
    remarks: list[str]


def compare(first: Sequence[Path], second: Sequence[Path]) -> Findings:
    """Compare the runs in these folders. Raises ValueError if they cannot be compared."""
    both = sides(first, second)
    remarks = list(both.remarks)
    first_uses, second_uses = ([use for use in side.uses if use is not None] for side in both.both)
    if without := " and ".join(side.name for side in both.both if None in side.uses):
        remarks.append(f"where the time went is not compared: {without} has a run without intervals in its trace.parquet (trace=full)")
        return Findings(both, numbers(both), [], None, [], "", remarks)
    return Findings(
        sides=both,
        numbers=numbers(both),
        components=components(first_uses, second_uses),
        staleness=staleness([use.staleness for use in first_uses], [use.staleness for use in second_uses]),
        intervals=intervals(first_uses, second_uses),
        where=sentence(first_uses, second_uses, both.names),
        remarks=remarks,
    )


def numbers(sides: Sides) -> list[ComparedNumber]:
    """The numbers of a run, own metrics last. The error is (first − second) / |second| of the means."""
    metrics = dict.fromkeys(name for side in sides.both for summary in side.summaries for name in own_metrics(summary["final"]))
    rows = []
    for name, key in (NUMBERS | {in_words(metric): f"final.{metric}" for metric in metrics}).items():
        first, second = ([_number(summary, key) for summary in side.summaries] for side in sides.both)
        scale = SCALES.get(key, "from zero")
        if scale == "logarithmic" and any(value is not None and value <= 0 for value in (*first, *second)):
            scale = "from zero"
        rows.append(compared_number(name, first, second, key=key.split(".")[-1], scale=scale, error=relative_error))
    return rows


def _number(summary: Mapping[str, Any], key: str) -> Number:
    return None if (value := entry(summary, key)) is MISSING else value


def components(first: Sequence[TimeUse], second: Sequence[TimeUse]) -> list[ComparedNumber]:
    """Each component's share of the workers' time on both sides. The error is the difference of the means in percentage points."""
    return [
        compared_number(name, *([use.shares[place] for use in side] for side in (first, second)), scale="share", error=percentage_points)
        for place, name in enumerate(COMPONENTS)
    ]


def compared_number(
    name: str, first: Sequence[Number], second: Sequence[Number], *, key: str | None = None, scale: str, error: Difference
) -> ComparedNumber:
    """Both means over the runs, and the error of the means."""
    first_estimate, second_estimate = estimate(first, scale=scale), estimate(second, scale=scale)
    spread = _spread(second, second_estimate.mean, error)
    difference = error(first_estimate.mean, second_estimate.mean)
    return ComparedNumber(name, key or name, scale == "share", first_estimate, second_estimate, difference, spread)


def _spread(values: Sequence[Number], mean: Number, error: Difference) -> Number:
    present = [value for value in values if value is not None]
    if len(values) < 2 or len(present) < len(values):
        return None
    low, high = error(min(present), mean), error(max(present), mean)
    return None if low is None or high is None else high - low


def relative_error(one: Number, other: Number) -> Number:
    """(one − other) / |other|; None if it has no meaning."""
    if one is None or other is None:
        return None
    if one == other:
        return 0.0
    ratio = (one - other) / abs(other) if other else math.inf
    return ratio if math.isfinite(ratio) else None


def percentage_points(one: Number, other: Number) -> Number:
    """The difference of two shares, in percentage points."""
    return None if one is None or other is None else 100 * (one - other)


def staleness(first: Sequence[Counts], second: Sequence[Counts]) -> Staleness | None:
    """The distributions over both sides' runs; None if a run applied no contribution."""
    if not all([*first, *second]):
        return None
    first_counts, second_counts = _total_counts(first), _total_counts(second)
    spread = max((wasserstein(*pair) for pair in combinations(second, 2)), default=None)
    return Staleness(first_counts, second_counts, wasserstein(first_counts, second_counts), spread)


def _total_counts(runs: Sequence[Counts]) -> Counts:
    counts: Counter[int] = Counter()
    for run in runs:
        counts.update(run)
    return dict(sorted(counts.items()))


def wasserstein(one: Counts, other: Counts) -> float:
    """The area between the two cumulative distributions, in versions."""
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance([*one], [*other], [*one.values()], [*other.values()]))


def intervals(first: Sequence[TimeUse], second: Sequence[TimeUse]) -> list[ComparedIntervals]:
    """For each kind of interval, the number per update and the length, over all runs of a side. The largest difference comes first.

    The difference is in the seconds of all such intervals per update. Intervals of different ranks overlap, so the differences do not add
    up to the difference in seconds per update.
    """
    rows = []
    for name in INTERVALS:
        first_side, second_side = _per_update(first, name), _per_update(second, name)
        if first_side.per_update or second_side.per_update:
            number, length = (first_side.per_update + second_side.per_update) / 2, (first_side.mean_seconds + second_side.mean_seconds) / 2
            by_length = (first_side.mean_seconds - second_side.mean_seconds) * number
            by_number = (first_side.per_update - second_side.per_update) * length
            rows.append(ComparedIntervals(name, first_side, second_side, by_length, by_number))
    return sorted(rows, key=lambda row: -abs(row.by_length + row.by_number))


def _per_update(side: Sequence[TimeUse], name: str) -> PerUpdate:
    totals = [use.intervals[name] for use in side if name in use.intervals]
    count, seconds = sum(total.count for total in totals), sum(total.seconds for total in totals)
    return PerUpdate(count / sum(use.num_updates for use in side), seconds / count if count else 0.0)


def seconds_per_update(side: Sequence[TimeUse]) -> float:
    """The seconds per update, over all runs of a side."""
    return sum(use.seconds for use in side) / sum(use.num_updates for use in side)


def sentence(first: Sequence[TimeUse], second: Sequence[TimeUse], names: tuple[str, str]) -> str:
    """The components, and their workers, that make up the difference in seconds per update. The largest component comes first.

    A worker's components add up to the run's seconds. So the differences of the components, as means over workers, add up to the total.
    A difference no larger than the spread of the second side's runs is marked. Each component is judged alone, because components may
    cancel.
    """
    times = seconds_per_update(first), seconds_per_update(second)
    difference = times[0] - times[1]
    by_worker = [_mean_by_worker(side) for side in (first, second)]
    total = by_worker[0].sum(axis=0) - by_worker[1].sum(axis=0)
    if np.abs(total).max() <= 1e-9 * max(times):
        return f"an update takes {Unit(times[0]).unsigned(times[0])} on both sides, with the same components"
    unit = Unit(max(abs(difference), float(np.abs(total).max())))
    order = [place for place in np.argsort(-np.abs(total)) if abs(total[place]) >= LEAST_PART * np.abs(total).max()]
    same = by_worker[0].shape == by_worker[1].shape
    spreads = np.ptp([_mean_by_worker([use]).sum(axis=0) for use in second], axis=0)
    phrases = list[str]()
    for place in order:
        mark = WITHIN if len(second) > 1 and abs(total[place]) <= spreads[place] else ""
        part = f"{unit.signed(total[place])}{mark} {IN_SENTENCE[COMPONENTS[place]]}"
        if same and len(by_worker[0]) > 1:
            change = by_worker[0][:, place] - by_worker[1][:, place]
            worker = int(np.argmax(change * np.sign(total[place])))
            if abs(change[worker] - total[place]) <= 0.01 * abs(total[place]):
                part += f" on worker {worker}"
            elif abs(change[worker]) > abs(total[place]) / 2:
                part += f" ({unit.signed(change[worker])} of it on worker {worker})"
        phrases.append(part)
    mark = WITHIN if len(second) > 1 and abs(difference) <= np.ptp([use.seconds / use.num_updates for use in second]) else ""
    return f"{names[0]} minus {names[1]}: {unit.signed(difference)}{mark} per update, of which {', '.join(phrases)}"


def _mean_by_worker(side: Sequence[TimeUse]) -> Floats:
    """Seconds per update by worker and component, divided by the number of workers. Their sum is the seconds per update."""
    num_updates = sum(use.num_updates for use in side)
    total: Floats = np.sum([use.by_worker for use in side], axis=0) / num_updates
    return total / len(total)


class Unit:
    """The unit in which to print times of this size."""

    def __init__(self, seconds: float) -> None:
        units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
        self.name, self._factor = next((unit for unit in units if seconds * unit[1] >= 0.9995), units[-1])

    def signed(self, seconds: float) -> str:
        """A signed difference."""
        return f"{seconds * self._factor:+.3g} {self.name}"

    def fixed(self, seconds: float) -> str:
        """A signed difference with a fixed number of decimal places."""
        return f"{signed(seconds * self._factor)} {self.name}"

    def unsigned(self, seconds: float) -> str:
        """A time."""
        return f"{seconds * self._factor:.3g} {self.name}"


def signed(value: float) -> str:
    """A number with a sign and two decimal places. Zero is never negative."""
    return f"{round(value, 2) + 0.0:+.2f}"
