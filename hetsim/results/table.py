"""The rows of `hetsim-table`: one for each config of a sweep, with means over seeds and 95 % intervals by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetsim.results.describe import formatted
from hetsim.results.finished_runs import FinishedRun
from hetsim.results.identity import identity_of
from hetsim.results.labels import distinguishing_keys, label

Number = float | None


METRICS: dict[str, tuple[str, bool]] = {
    # the name: the head of its column, and whether less is better
    "seconds_to_accuracy": ("seconds to {accuracy:g}", True),
    "seconds": ("seconds", True),
    "updates_per_second": ("updates/s", False),
    "samples_per_second": ("samples/s", False),
    "staleness_mean": ("staleness", True),
    "staleness_max": ("staleness at most", True),
    "idle_share": ("idle share", True),
    "final_accuracy": ("final accuracy", False),
    "final_loss": ("final loss", True),
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; how many of the runs have the number at all."""

    mean: Number
    interval: Number
    num_known: int
    num_runs: int

    @classmethod
    def of(cls, values: Sequence[Number]) -> Estimate:
        """No mean if some run has no number, as to leave that run out would favour the config; no interval of a single run."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None, None, len(known), len(values))
        mean = math.fsum(known) / len(known)
        if len(known) == 1:
            return cls(mean, None, 1, 1)
        from scipy.special import stdtrit

        deviation = statistics.stdev(known) / math.sqrt(len(known))
        return cls(mean, float(stdtrit(len(known) - 1, 0.975)) * deviation, len(known), len(known))

    def __str__(self) -> str:
        if self.mean is None:
            return "–" if not self.num_known else f"in {self.num_known} of {self.num_runs}"
        return formatted(self.mean) + ("" if self.interval is None else f" ± {_rounded(self.interval)}")


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


@dataclass(frozen=True)
class Row:
    """The runs of one config: the keys that tell it from the others, with its values, and its numbers over the runs."""

    keys: Mapping[str, str]
    num_runs: int
    numbers: Mapping[str, Estimate]

    @property
    def label(self) -> str:
        """What tells the row from the others, in a line of bounded length."""
        return label(self.keys)


def number(run: FinishedRun, metric: str, accuracy: float) -> Number:
    """The run's number; None where it has none."""
    if metric == "seconds_to_accuracy":
        return next((seconds for seconds, _, reached in run.points if reached is not None and reached >= accuracy), None)
    inside = {"final_accuracy": "test_accuracy", "final_loss": "train_loss"}
    found = run.summary["final"][inside[metric]] if metric in inside else run.summary[metric]
    return None if found is None else float(found)


def rows(found: Sequence[FinishedRun], *, accuracy: float) -> tuple[list[Row], list[str]]:
    """One row for each config, and a sentence for each run that is left out."""
    groups: dict[str, list[FinishedRun]] = {}
    remarks: list[str] = []
    for run in found:
        group = groups.setdefault(identity_of(run.config), [])
        same = [other for other in group if run.summary["backend"] == "sim" and other.summary["seed"] == run.summary["seed"]]
        if same:
            remarks.append(f"{run.folder} and {same[0].folder} are the same run: one of them is counted")
        else:
            group.append(run)
    keys = distinguishing_keys(*zip(*((group[0].config, group[0].typed) for group in groups.values()), strict=True))
    return [
        Row(own, len(group), {metric: Estimate.of([number(run, metric, accuracy) for run in group]) for metric in METRICS})
        for own, group in zip(keys, groups.values(), strict=True)
    ], remarks


def arranged(found: Sequence[Row], metric: str) -> list[Row]:
    """The best row first; rows without a mean last, by how many of their runs have the number."""
    sign = 1 if METRICS[metric][1] else -1

    def place(row: Row) -> tuple[bool, float, float, str]:
        estimate = row.numbers[metric]
        return estimate.mean is None, sign * (estimate.mean or 0.0), -estimate.num_known / estimate.num_runs, row.label

    return sorted(found, key=place)


def known(found: Sequence[Row]) -> list[str]:
    """The metrics of which any run has a number."""
    return [metric for metric in METRICS if any(row.numbers[metric].num_known for row in found)]


def chosen(metric: str | None, found: Sequence[Row], accuracy: float) -> str:
    """The metric to sort by and to draw; ValueError with one sentence if no run has it."""
    there = known(found)
    if metric is None:
        return there[0]
    if metric not in there:
        name = f"{metric}, to {accuracy:g}," if metric == "seconds_to_accuracy" else metric
        raise ValueError(f"no run has a number for {name}: take --metric {' or '.join(there)}")
    return metric


def head(metric: str, accuracy: float) -> str:
    """The head of the metric's column."""
    return METRICS[metric][0].format(accuracy=accuracy)


def title(found: Sequence[FinishedRun]) -> str:
    """What the runs have in common."""
    common = {key: {str(run.summary.get(key)) for run in found} for key in ("method", "cluster", "workload", "backend")}
    same = [values.pop() for values in common.values() if len(values) == 1]
    return f"{len(found)} runs{': ' if same else ''}{', '.join(same)}"
