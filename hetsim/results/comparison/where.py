"""Where the time went: the components of both sides, the lengths of their intervals, and a sentence with the largest differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.results.comparison.components import COMPONENTS
from hetsim.results.comparison.numbers import compared, difference
from hetsim.results.comparison.time_use import INTERVALS, TimeUse
from hetsim.results.comparison.traced import Floats
from hetsim.results.tables.estimates import Number

NAMED = dict(zip(COMPONENTS, ("computing", "communication", "the server's updates", "waiting", "absence"), strict=True))
"""The components' names in a sentence."""
WITHIN = " (within)"
"""Marks an error that is no larger than the spread of the second side's runs."""
LEAST_PART = 0.1
"""A sentence contains the components whose difference is at least this fraction of the largest difference."""


def components(first: Sequence[TimeUse], second: Sequence[TimeUse]) -> list[dict[str, Any]]:
    """Each component's share of the workers' time on both sides, and the difference of the means in percentage points."""
    return [
        {
            "name": name,
            **compared(
                *([use.shares[place] for use in side] for side in (first, second)),
                scale="share",
                error=percentage_points,
                called="percentage_points",
            ),
        }
        for place, name in enumerate(COMPONENTS)
    ]


def percentage_points(one: Number, other: Number) -> Number:
    """The difference of two shares, in percentage points."""
    found = difference(one, other)
    return None if found is None else 100 * found


def intervals(first: Sequence[TimeUse], second: Sequence[TimeUse]) -> list[dict[str, Any]]:
    """For each kind of interval, the number per update and the length, over all runs of a side. The largest difference comes first.

    The difference is in the seconds of all such intervals per update. It has two parts: the difference of the lengths times the mean
    number, and the difference of the numbers times the mean length. Intervals of different ranks overlap, so the differences do not add up
    to the difference in seconds per update.
    """
    rows = []
    for name in INTERVALS:
        one, other = _per_update(first, name), _per_update(second, name)
        if one["per_update"] or other["per_update"]:
            number, length = ((one[key] + other[key]) / 2 for key in ("per_update", "mean_seconds"))
            by_length = (one["mean_seconds"] - other["mean_seconds"]) * number
            by_number = (one["per_update"] - other["per_update"]) * length
            rows.append({"name": name, "first": one, "second": other, "by_length": by_length, "by_number": by_number})
    return sorted(rows, key=lambda row: -abs(row["by_length"] + row["by_number"]))


def _per_update(side: Sequence[TimeUse], name: str) -> dict[str, float]:
    """The number per update, and the mean length in seconds (0 without intervals)."""
    totals = [use.intervals[name] for use in side if name in use.intervals]
    count, seconds = sum(total.count for total in totals), sum(total.seconds for total in totals)
    return {"per_update": count / sum(use.num_updates for use in side), "mean_seconds": seconds / count if count else 0.0}


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
    whole = times[0] - times[1]
    by_worker = [_mean_by_worker(side) for side in (first, second)]
    total = by_worker[0].sum(axis=0) - by_worker[1].sum(axis=0)
    if np.abs(total).max() <= 1e-9 * max(times):
        return f"an update takes {Unit(times[0]).said(times[0])} on both sides, with the same components"
    unit = Unit(max(abs(whole), float(np.abs(total).max())))
    order = [place for place in np.argsort(-np.abs(total)) if abs(total[place]) >= LEAST_PART * np.abs(total).max()]
    same = by_worker[0].shape == by_worker[1].shape
    spreads = np.ptp([_mean_by_worker([use]).sum(axis=0) for use in second], axis=0)
    parts = list[str]()
    for place in order:
        mark = WITHIN if len(second) > 1 and abs(total[place]) <= spreads[place] else ""
        part = f"{unit.signed(total[place])}{mark} {NAMED[COMPONENTS[place]]}"
        if same and len(by_worker[0]) > 1:
            change = by_worker[0][:, place] - by_worker[1][:, place]
            worker = int(np.argmax(change * np.sign(total[place])))
            if abs(change[worker] - total[place]) <= 0.01 * abs(total[place]):
                part += f" on worker {worker}"
            elif abs(change[worker]) > abs(total[place]) / 2:
                part += f" ({unit.signed(change[worker])} of it on worker {worker})"
        parts.append(part)
    mark = WITHIN if len(second) > 1 and abs(whole) <= np.ptp([use.seconds / use.num_updates for use in second]) else ""
    return f"{names[0]} minus {names[1]}: {unit.signed(whole)}{mark} per update, of which {', '.join(parts)}"


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

    def said(self, seconds: float) -> str:
        """A time."""
        return f"{seconds * self._factor:.3g} {self.name}"


def signed(value: float) -> str:
    """A number with a sign and two decimal places. Zero is never negative."""
    return f"{round(value, 2) + 0.0:+.2f}"
