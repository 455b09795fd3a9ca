"""The options of a table, the target at which runs are compared, and the metric of the ranking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetsim.results.reading.finished_runs import FinishedRun
from hetsim.results.tables.metrics import Metric, Target
from hetsim.results.tables.rows import TableRow


@dataclass(frozen=True)
class TableQuestion:
    """The options of `hetsim-table`. The table chooses a value for options that are None or empty."""

    metric: str | None = None
    target: Target = field(default_factory=Target)
    baseline: str | None = None
    best_of: tuple[str, ...] = ()
    direction: str | None = None
    """The direction of a metric of the user's own: "minimize" or "maximize"; None means "minimize"."""

    def __post_init__(self) -> None:
        if self.direction not in (None, "minimize", "maximize"):
            raise ValueError(f"--direction must be minimize or maximize, not {self.direction}")
        if self.direction is not None and not (self.metric or "").startswith("final."):
            raise ValueError("--direction is for a number of your own: add --metric final.NAME")
        accuracy, loss, seconds = self.target.accuracy, self.target.loss, self.target.seconds
        if accuracy is not None and not 0 < accuracy <= 1:
            raise ValueError(f"--target-accuracy must be above 0 and at most 1, not {accuracy:g}")
        if loss is not None and not abs(loss) < float("inf"):
            raise ValueError(f"--target-loss must be a number, not {loss:g}")
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise ValueError(f"--at-seconds must be a moment of the runs, from 0, not {seconds:g}")


def group_targets(groups: Sequence[Sequence[TableRow]], question: TableQuestion, remarks: list[str]) -> list[Target]:
    """The target of each group. By default, it is the highest accuracy that every row on the same data reaches.

    Diverged rows do not count. Of rows that `--best-of` merges, the best one counts.
    """
    if question.target.accuracy is not None:
        return [question.target] * len(groups)
    lowest: dict[str, tuple[float, TableRow]] = {}
    for row in (row for rows in groups for row in _contenders(rows, question.best_of)):
        if row.reached is not None and row.reached < lowest.get(row.data, (2.0, row))[0]:
            lowest[row.data] = row.reached, row
    for data, (accuracy, row) in lowest.items() if sum(map(len, groups)) > 1 else ():
        every = "every row" if len(lowest) == 1 else f"every row on {data}"
        remarks.append(
            f"{every} reaches the accuracy {accuracy:.4g}, and {row.label} reaches no higher one: --target-accuracy sets another"
        )
    return [replace(question.target, accuracy=lowest.get(rows[0].data, (None, None))[0]) for rows in groups]


def _contenders(rows: Sequence[TableRow], merged: Sequence[str]) -> list[TableRow]:
    """The rows that have not diverged. Of rows that differ only in the merged keys, the one with the highest accuracy."""
    best: dict[tuple[tuple[str, str], ...], TableRow] = {}
    for row in rows:
        other_keys = tuple((key, value) for key, value in row.keys.items() if key not in merged)
        if not row.num_diverged and (other_keys not in best or (row.reached or 0.0) > (best[other_keys].reached or 0.0)):
            best[other_keys] = row
    return list(best.values())


def ranking_metric(
    question: TableQuestion, metrics: Mapping[str, Metric], groups: Sequence[Sequence[TableRow]], targets: Sequence[Target]
) -> str:
    """The metric to rank by: the given one, else a number at an equal time, else the time to an equal target, else samples/s."""
    requested = question.metric
    compared = [(row, target) for rows, target in zip(groups, targets, strict=True) for row in rows]
    available = [name for name, metric in metrics.items() if any(_has(row, metric, target) for row, target in compared)]
    if requested is not None and requested not in available:
        if missed := _missed(requested, question.target, [run for row, _ in compared for run in row.runs]):
            raise ValueError(f"--metric {requested}: {missed}")
        raise ValueError(f"no run has a number for {requested}: take --metric {' or '.join(available)}")
    wanted = ("accuracy_at_seconds", "loss_at_seconds") if targets[0].seconds is not None else ()
    towards = ("seconds_to_loss",) if targets[0].loss is not None else ()
    preferred = (*wanted, *towards, "seconds_to_accuracy", "samples_per_second")
    return requested or next(name for name in (*preferred, *available) if name in available)


def _has(row: TableRow, metric: Metric, target: Target) -> bool:
    return any(value is not None for value in row.values(metric, target))


def reasons(name: str, target: Target, runs: Sequence[FinishedRun]) -> list[str]:
    """Why rows are ranked by a rate: the given target that no run reached, or the target that the user may want to give."""
    if name != "samples_per_second":
        return []
    missed = [_missed(metric, target, runs) for metric in ("seconds_to_accuracy", "seconds_to_loss")]
    sentences = [f"{sentence}, so rows are ranked by samples per second" for sentence in missed if sentence]
    if not sentences and any(run.summary["final"].get("train_loss") is not None for run in runs):
        sentences = ["give --target-loss L to compare the times to a training loss; rows are ranked by samples per second"]
    return sentences


def _missed(metric: str, target: Target, runs: Sequence[FinishedRun]) -> str | None:
    """The target that no run has reached, and the best value so far; None without such a target."""
    if metric == "seconds_to_accuracy" and target.accuracy is not None:
        best = max((run.highest_accuracy for run in runs if run.highest_accuracy is not None), default=None)
        return f"no run reached an accuracy of {target.accuracy:g}{_best_so_far('highest', best)}"
    if metric == "seconds_to_loss" and target.loss is not None:
        losses = [loss for run in runs for _, loss, _ in run.points if loss is not None and math.isfinite(loss)]
        return f"no run reached a training loss of {target.loss:g}{_best_so_far('lowest', min(losses, default=None))}"
    return None


def _best_so_far(extreme: str, best: float | None) -> str:
    return " (none was measured)" if best is None else f" (the {extreme} is {best:.4g})"
