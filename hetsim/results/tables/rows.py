"""A row of a table, and the rows that are ranked together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hetsim.results.reading.finished_runs import FinishedRun
from hetsim.results.tables.estimates import Estimate, Number, estimate
from hetsim.results.tables.labels import label
from hetsim.results.tables.metrics import Metric, Target
from hetsim.results.writing.describe import spread_of

LEFT_OUT = "cluster.leave_out"
"""The key of the nodes that take no part. Rows on fewer nodes are ranked together with rows on all nodes."""


@dataclass(frozen=True)
class TableRow:
    """The runs of one config: the keys that distinguish it from other rows, with their values, and the estimates over the runs."""

    keys: Mapping[str, str]
    runs: Sequence[FinishedRun]
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    coordination: str = ""
    """The name of the row's coordination, if it differs within the table and is not among `keys`; else empty."""
    gain: Estimate | None = None
    """The gain over the baseline's row in the table's metric, paired by seed: above 1 if this row is better. None without a baseline."""
    _known: dict[tuple[Metric, Target], list[Number]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.runs)

    @property
    def label(self) -> str:
        """The row's label: its keys and values as one line of bounded length."""
        return label(self.keys)

    @property
    def data(self) -> str:
        """The name of the workload."""
        return str(self.runs[0].summary.get("workload"))

    @property
    def num_diverged(self) -> int:
        """The number of runs whose training diverged."""
        return sum(run.summary.get("diverged") is True for run in self.runs)

    @cached_property
    def reached(self) -> Number:
        """The test accuracy that all runs of the row reach; None if a run has no accuracy."""
        accuracies = [run.highest_accuracy for run in self.runs]
        return None if None in accuracies else min(accuracy for accuracy in accuracies if accuracy is not None)

    def estimate(self, metric: Metric, target: Target, *, scale: str) -> Estimate:
        """The mean of a metric over the runs, and its interval.

        If a calibration predicted the times, the interval of seconds and rates also covers the calibration's error.
        """
        number = estimate(self.values(metric, target), scale=scale)
        spreads = [spread for run in self.runs if (spread := spread_of(run.summary)) is not None]
        return number.wider(max(spreads)) if metric.of_time and spreads else number

    def values(self, metric: Metric, target: Target) -> list[Number]:
        """The metric's number for each run."""
        key = metric, target
        if key not in self._known:
            self._known[key] = [metric.number(run, target) for run in self.runs]
        return self._known[key]

    def by_seed(self, metric: Metric, target: Target) -> dict[int, list[Number]]:
        """The runs' numbers by seed."""
        numbers: dict[int, list[Number]] = {}
        for run, value in zip(self.runs, self.values(metric, target), strict=True):
            numbers.setdefault(run.summary["seed"], []).append(value)
        return numbers


@dataclass(frozen=True)
class RowGroup:
    """Rows that are ranked together, the best first; their target; and the baseline rows."""

    label: str
    rows: Sequence[TableRow]
    target: Target
    baselines: Sequence[TableRow] = ()

    @property
    def keys(self) -> list[str]:
        """The keys that distinguish the rows. Keys that distinguish the group from other groups are in its label."""
        return [key for key in self.rows[0].keys if not (self.label and separates_groups(key))]

    def name(self, row: TableRow) -> str:
        """The row's name within the group."""
        return label({key: row.keys[key] for key in self.keys}) or row.label

    def head(self, metric: Metric) -> str:
        """The head of a metric's column."""
        head = metric.head if self.target.accuracy is not None else metric.head.replace("{accuracy:.4g}", "an accuracy")
        return head.format(**{key: value for key, value in vars(self.target).items() if value is not None})


def scale(metric: Metric, rows: Sequence[TableRow], target: Target) -> str:
    """The scale of a metric's column, equal for all rows. It is not logarithmic if a number is not above zero."""
    if metric.scale != "logarithmic":
        return metric.scale
    numbers = (number for row in rows for number in row.values(metric, target))
    return "logarithmic" if all(number is None or number > 0 for number in numbers) else "from zero"


def separates_groups(key: str) -> bool:
    """Whether a key separates groups: rows of a group run on the same cluster (or some of its nodes) and on the same data."""
    return (key.split(".")[0] == "cluster" and key != LEFT_OUT) or key == "workload"


def heading(rows: Sequence[TableRow]) -> str:
    """The label of the group with these rows."""
    return label({key: value for key, value in rows[0].keys.items() if separates_groups(key)})
