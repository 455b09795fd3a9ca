"""The table of a sweep: a row for each config with its means over seeds, ranked among the rows of the same cluster and data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetsim import checks
from hetsim.results.finished_runs import FinishedRun, no_garbage
from hetsim.results.identity import identity_of
from hetsim.results.tables.baseline import with_gains
from hetsim.results.tables.best import best_of
from hetsim.results.tables.labels import distinguishing_keys
from hetsim.results.tables.metrics import Metric, Target, metrics_of
from hetsim.results.tables.rows import Group, Row, heading, scale
from hetsim.shipped import choice


@dataclass(frozen=True)
class Question:
    """What a table is asked for, by the options of `hetsim-table`; what is None or empty is left to the table."""

    metric: str | None = None
    target: Target = field(default_factory=Target)
    baseline: str | None = None
    best_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        accuracy, loss, seconds = self.target.accuracy, self.target.loss, self.target.seconds
        if accuracy is not None and not 0 < accuracy <= 1:
            raise ValueError(f"--target-accuracy must be above 0 and at most 1, not {accuracy:g}")
        if loss is not None and not abs(loss) < float("inf"):
            raise ValueError(f"--target-loss must be a number, not {loss:g}")
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise ValueError(f"--at-seconds must be a moment of the runs, from 0, not {seconds:g}")


@dataclass(frozen=True)
class Table:
    """What `hetsim-table` prints and draws: groups of rows, the number by which they are ranked, and sentences to be told with it."""

    title: str
    groups: Sequence[Group]
    metrics: Mapping[str, Metric]
    metric: str
    baseline: str | None
    remarks: Sequence[str]

    @property
    def rows(self) -> list[Row]:
        """All rows, group by group, the best of each first."""
        return [row for group in self.groups for row in group.rows]

    @property
    def known(self) -> list[str]:
        """The metrics of which some run has a number, that of the ranking first."""
        known = [name for name in self.metrics if any(row.numbers[name].num_known for row in self.rows)]
        return [self.metric, *(name for name in known if name != self.metric)]


def table(runs: Sequence[FinishedRun], question: Question, *, num_failed: int = 0) -> Table:
    """The table of these runs, beside which others failed. ValueError with one sentence if it cannot be made as it is asked for."""
    with no_garbage():
        return _table(runs, question, num_failed)


def _table(runs: Sequence[FinishedRun], question: Question, num_failed: int) -> Table:
    metrics, remarks = metrics_of(runs), list[str]()
    if question.metric is not None and question.metric not in metrics:
        hint = checks.suggestion(question.metric, metrics)
        raise ValueError(f"--metric {question.metric} is unknown: take {', '.join(metrics)}{hint}")
    groups = _grouped(_rows(runs, remarks))
    targets = _targets(groups, question, remarks)
    name = _chosen(question, metrics, groups, targets)
    if question.metric is None:
        why = _why(name, question.target, runs)
        if question.best_of and why:
            raise ValueError(f"--best-of {','.join(question.best_of)}: {why[0]}, whatever the values")
        remarks += why
    made = []
    for rows, target in zip(groups, targets, strict=True):
        kept = best_of(rows, question.best_of, metrics[name], target, remarks) if question.best_of else rows
        counted = _counted(kept, metrics, target)
        ranked = sorted(counted, key=lambda row: _place(row, name, metrics[name]))
        made.append(Group(heading(rows), _with_coordinations(ranked, remarks), target))
    if all(len(group.rows) == 1 for group in made) and len(set(targets)) == 1:  # a sweep over clusters: one ranking of all
        rows = sorted((group.rows[0] for group in made), key=lambda row: _place(row, name, metrics[name]))
        made = [Group("", _with_coordinations(rows, remarks), targets[0])]
    if name == "seconds":
        _refuse_unequal_samples(made)
    if question.baseline is not None:
        made = with_gains(made, question.baseline, metrics[name], remarks)
    if num_failed:
        remarks.append(f"{num_failed} runs failed and are not in the table: see error.txt in their folders")
    told = list(dict.fromkeys(map(checks.one_line, remarks)))  # they quote runs, which may be a stranger's
    return Table(title(runs), made, metrics, name, question.baseline, told)


def _rows(runs: Sequence[FinishedRun], remarks: list[str]) -> list[Row]:
    """One row for each config; a sentence for each run that is left out."""
    found: dict[str, list[FinishedRun]] = {}
    simulated: dict[tuple[str, int], FinishedRun] = {}
    known: dict[int, str] = {}  # of many runs, those of one config share it
    for run in runs:
        config = known.get(id(run.config)) or known.setdefault(id(run.config), identity_of(run.config))
        same = simulated.setdefault((config, run.summary["seed"]), run) if run.summary["backend"] == "sim" else run
        if same is not run:
            remarks.append(f"{run.folder} and {same.folder} are the same run: one of them is counted")
        else:
            found.setdefault(config, []).append(run)
    keys = distinguishing_keys(*zip(*((row[0].config, row[0].typed) for row in found.values()), strict=True))
    return [Row(own, row) for own, row in zip(keys, found.values(), strict=True)]


def _grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each cluster and data."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        world = {"cluster": row.runs[0].config.get("cluster"), "workload": row.data}
        groups.setdefault(identity_of(world), []).append(row)
    return list(groups.values())


def _targets(groups: Sequence[Sequence[Row]], question: Question, remarks: list[str]) -> list[Target]:
    """What the runs of each group are compared at: unless one is asked for, the highest accuracy that every row on the same data reaches.

    Rows that have diverged do not count; of the rows that `--best-of` makes one, the best does.
    """
    if question.target.accuracy is not None:
        return [question.target] * len(groups)
    lowest: dict[str, tuple[float, Row]] = {}
    for row in (row for rows in groups for row in _contenders(rows, question.best_of)):
        if row.reached is not None and row.reached < lowest.get(row.data, (2.0, row))[0]:
            lowest[row.data] = row.reached, row
    for data, (accuracy, row) in lowest.items() if sum(map(len, groups)) > 1 else ():
        every = "every row" if len(lowest) == 1 else f"every row on {data}"
        remarks.append(f"{accuracy:.4g} is the accuracy that {every} reaches, {row.label} no more: --target-accuracy sets another")
    return [replace(question.target, accuracy=lowest.get(rows[0].data, (None, None))[0]) for rows in groups]


def _contenders(rows: Sequence[Row], merged: Sequence[str]) -> list[Row]:
    """The rows that have not diverged; of those that differ in these keys alone, the one that reaches the highest accuracy."""
    found: dict[tuple[tuple[str, str], ...], Row] = {}
    for row in rows:
        own = tuple((key, value) for key, value in row.keys.items() if key not in merged)
        if not row.num_diverged and (own not in found or (row.reached or 0.0) > (found[own].reached or 0.0)):
            found[own] = row
    return list(found.values())


def _chosen(question: Question, metrics: Mapping[str, Metric], groups: Sequence[Sequence[Row]], targets: Sequence[Target]) -> str:
    """The metric to rank by: the one that is asked for, else numbers at an equal time or the time to an equal accuracy, else samples/s."""
    asked = question.metric
    compared = [(run, target) for rows, target in zip(groups, targets, strict=True) for row in rows for run in row.runs]
    known = [name for name, metric in metrics.items() if any(metric.number(run, target) is not None for run, target in compared)]
    if asked is not None and asked not in known:
        if missed := _missed(asked, question.target, [run for run, _ in compared]):
            raise ValueError(f"--metric {asked}: {missed}")
        raise ValueError(f"no run has a number for {asked}: take --metric {' or '.join(known)}")
    wanted = ("accuracy_at_seconds", "loss_at_seconds") if targets[0].seconds is not None else ()
    towards = ("seconds_to_loss",) if targets[0].loss is not None else ()
    preferred = (*wanted, *towards, "seconds_to_accuracy", "samples_per_second")
    return asked or next(name for name in (*preferred, *known) if name in known)


def _why(name: str, target: Target, runs: Sequence[FinishedRun]) -> list[str]:
    """Why rows are ranked by a rate: what was asked for that no run has, or what a user may have meant."""
    if name != "samples_per_second":
        return []
    missed = [_missed(metric, target, runs) for metric in ("seconds_to_accuracy", "seconds_to_loss")]
    told = [f"{sentence}, so rows are ranked by samples per second" for sentence in missed if sentence]
    if not told and any(run.summary["final"].get("train_loss") is not None for run in runs):
        told = ["give --target-loss L to compare the times to a training loss; rows are ranked by samples per second"]
    return told


def _missed(metric: str, target: Target, runs: Sequence[FinishedRun]) -> str | None:
    """What no run has reached, and how far the best came; None if there is no such target."""
    if metric == "seconds_to_accuracy" and target.accuracy is not None:
        best = max((run.highest_accuracy for run in runs if run.highest_accuracy is not None), default=None)
        return f"no run reached an accuracy of {target.accuracy:g}{_so_far('highest', best)}"
    if metric == "seconds_to_loss" and target.loss is not None:
        losses = [loss for run in runs for _, loss, _ in run.points if loss is not None and math.isfinite(loss)]
        return f"no run reached a training loss of {target.loss:g}{_so_far('lowest', min(losses, default=None))}"
    return None


def _so_far(what: str, best: float | None) -> str:
    return " (none was measured)" if best is None else f" (the {what} is {best:.4g})"


def _counted(rows: Sequence[Row], metrics: Mapping[str, Metric], target: Target) -> list[Row]:
    """The rows with their numbers."""
    scales = {name: scale(metric, rows, target) for name, metric in metrics.items()}
    return [
        replace(row, numbers={name: row.estimate(metric, target, scale=scales[name]) for name, metric in metrics.items()}) for row in rows
    ]


def _place(row: Row, name: str, metric: Metric) -> tuple[bool, float, float, str]:
    """The best row first; rows without a mean last, by how many of their runs have the number."""
    found = row.numbers[name]
    sign = -1 if metric.higher else 1
    return found.mean is None, sign * (found.mean or 0.0), -found.num_known / found.num_runs, row.label


def _with_coordinations(rows: list[Row], remarks: list[str]) -> list[Row]:
    """The rows with what says how each one's ranks work together, if they do so in several ways."""
    parts = [row.runs[0].config.get("coordination") for row in rows]
    names = [checks.one_line(choice("coordination", part)) if isinstance(part, Mapping) else "" for part in parts]
    if len(set(names)) < 2:
        return rows
    remarks.append("rows differ in coordination: their ranks use network and server differently, and part of a difference is due to that")
    return [replace(row, coordination="" if "coordination" in row.keys else name) for row, name in zip(rows, names, strict=True)]


def _refuse_unequal_samples(groups: Sequence[Group]) -> None:
    for group in groups:
        found = (run.summary["num_samples"] for row in group.rows for run in row.runs)
        counts = sorted({count for count in found if count is not None})
        if len(counts) > 1:
            raise ValueError(
                f"--metric seconds would compare runs of {counts[0]:.0f} to {counts[-1]:.0f} samples, as an update is of fewer samples in "
                "an asynchronous method: take --metric samples_per_second, or a budget of epochs"
            )


def title(runs: Sequence[FinishedRun]) -> str:
    """What the runs have in common."""
    common = {key: {str(run.summary.get(key)) for run in runs} for key in ("method", "cluster", "workload", "backend")}
    same = [values.pop() for values in common.values() if len(values) == 1]
    return f"{len(runs)} runs{': ' if same else ''}{', '.join(same)}"
