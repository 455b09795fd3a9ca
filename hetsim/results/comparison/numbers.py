"""The numbers of both sides: means over repeats with intervals, the error of the means, and the spread of the repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetsim.files.schema import MISSING, entry, own_metrics
from hetsim.files.summary_and_curve import NUMBERS
from hetsim.results.comparison.sides import Sides
from hetsim.results.tables.estimates import Number, estimate
from hetsim.results.tables.metrics import METRICS
from hetsim.results.writing.describe import in_words

Error = Callable[[Number, Number], Number]
"""The difference of the first number from the second; None if it has no meaning."""
SCALES = {"final.train_loss": "final_loss", "final.test_accuracy": "final_accuracy"}
"""The tables' names of numbers, which determine the scale of their intervals."""


def numbers(sides: Sides) -> list[dict[str, Any]]:
    """The result of `compared` for each number, own metrics last. The error is (first − second) / |second| of the means."""
    metrics = dict.fromkeys(name for side in sides.both for summary in side.summaries for name in own_metrics(summary["final"]))
    rows = []
    for name, key in (NUMBERS | {in_words(metric): f"final.{metric}" for metric in metrics}).items():
        one, other = ([_number(summary, key) for summary in side.summaries] for side in sides.both)
        metric = METRICS.get(SCALES.get(key, key))
        scale = "linear" if metric is None else metric.scale
        if scale == "logarithmic" and any(value is not None and value <= 0 for value in (*one, *other)):
            scale = "from zero"
        numbers_of_both = compared(one, other, scale=scale, error=relative_error, called="relative_error")
        rows.append({"name": name, "key": key.split(".")[-1], "share": scale == "share", **numbers_of_both})
    return rows


def _number(summary: Mapping[str, Any], key: str) -> Number:
    return None if (found := entry(summary, key)) is MISSING else found


def compared(first: Sequence[Number], second: Sequence[Number], *, scale: str, error: Error, called: str) -> dict[str, Any]:
    """Both means over the runs, the error of the means under the key `called`, both intervals, and the spread of the second side.

    The spread is the second side's largest number minus its smallest, in the unit of the error. It is None for a single run.
    """
    one, other = estimate(first, scale=scale), estimate(second, scale=scale)
    found, spread = error(one.mean, other.mean), _spread(second, other.mean, error)
    return {
        "first": one.mean,
        "second": other.mean,
        called: found,
        "first_estimate": one,
        "second_estimate": other,
        "spread": spread,
        "within_spread": None if found is None or spread is None else abs(found) <= spread,
    }


def _spread(values: Sequence[Number], mean: Number, error: Error) -> Number:
    known = [value for value in values if value is not None]
    if len(values) < 2 or len(known) < len(values):
        return None
    low, high = error(min(known), mean), error(max(known), mean)
    return None if low is None or high is None else high - low


def relative_error(one: Number, other: Number) -> Number:
    """(one − other) / |other|; None if it has no meaning."""
    if one is None or other is None:
        return None
    if one == other:
        return 0.0
    ratio = (one - other) / abs(other) if other else math.inf
    return ratio if math.isfinite(ratio) else None


def difference(one: Number, other: Number) -> Number:
    """one − other; None if either number is None."""
    return None if one is None or other is None else one - other
