"""The table of a sweep: a row for each config with its means over seeds, ranked among the rows with the same cluster and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetsim import checks
from hetsim.files.identity import identity_of
from hetsim.results.reading.finished_runs import FinishedRun, no_garbage
from hetsim.results.tables.baseline import add_gains
from hetsim.results.tables.best import check_selects, select_best
from hetsim.results.tables.labels import distinguishing_keys
from hetsim.results.tables.metrics import Metric, Target, metrics_of
from hetsim.results.tables.question import TableQuestion, group_targets, ranking_metric, reasons
from hetsim.results.tables.rows import LEFT_OUT, RowGroup, TableRow, heading, scale
from hetsim.trust.shipped import choice


@dataclass(frozen=True)
class Ranking:
    """The table that `hetsim-table` prints and draws: groups of rows, the metric of the ranking, and remarks."""

    title: str
    groups: Sequence[RowGroup]
    metrics: Mapping[str, Metric]
    metric: str
    baseline: str | None
    remarks: Sequence[str]

    @property
    def rows(self) -> list[TableRow]:
        """All rows, group by group. The best row of each group comes first."""
        return [row for group in self.groups for row in group.rows]

    @property
    def known_metrics(self) -> list[str]:
        """The metrics for which a run has a number; the metric of the ranking comes first."""
        names = [name for name in self.metrics if any(row.numbers[name].num_known for row in self.rows)]
        return [self.metric, *(name for name in names if name != self.metric)]


def table(runs: Sequence[FinishedRun], question: TableQuestion, *, known: Sequence[str] = ()) -> Ranking:
    """The table of these runs. Its remarks include `known` ones. Raises ValueError if no table can be made."""
    with no_garbage():
        return _table(runs, question, known)


def _table(runs: Sequence[FinishedRun], question: TableQuestion, run_remarks: Sequence[str]) -> Ranking:
    metrics, remarks = metrics_of(runs, higher=question.metric if question.direction == "maximize" else None), list[str]()
    if question.metric is not None and question.metric not in metrics:
        hint = checks.suggestion(question.metric, metrics)
        raise ValueError(f"--metric {question.metric} is unknown: take {', '.join(metrics)}{hint}")
    groups = _row_groups(_rows(runs, remarks))
    check_selects(groups, question.best_of)
    targets = group_targets(groups, question, remarks)
    name = ranking_metric(question, metrics, groups, targets)
    if question.metric is None:
        why = reasons(name, question.target, runs)
        if question.best_of and why:
            raise ValueError(f"--best-of {','.join(question.best_of)}: {why[0]}, whatever the values")
        remarks += why
    ranked_groups = []
    for rows, target in zip(groups, targets, strict=True):
        kept = select_best(rows, question.best_of, metrics[name], target, remarks) if question.best_of else rows
        counted = _rows_with_estimates(kept, metrics, target)
        ranked = sorted(counted, key=lambda row: _place(row, name, metrics[name]))
        ranked_groups.append(RowGroup(heading(rows), _rows_with_coordinations(ranked, remarks), target))
    if all(len(group.rows) == 1 for group in ranked_groups) and len(set(targets)) == 1:  # a sweep over clusters: one ranking of all
        rows = sorted((group.rows[0] for group in ranked_groups), key=lambda row: _place(row, name, metrics[name]))
        ranked_groups = [RowGroup("", _rows_with_coordinations(rows, remarks), targets[0])]
    if name == "seconds":
        _refuse_unequal_samples(ranked_groups)
    if question.baseline is not None:
        ranked_groups = add_gains(ranked_groups, question.baseline, metrics[name], remarks)
    sentences = list(dict.fromkeys(map(checks.one_line, [*remarks, *run_remarks])))  # they quote runs, which may be a stranger's
    return Ranking(title(runs), ranked_groups, metrics, name, question.baseline, sentences)


def _rows(runs: Sequence[FinishedRun], remarks: list[str]) -> list[TableRow]:
    """One row for each config. `remarks` gets a sentence for each run that is left out."""
    runs_by_config: dict[str, list[FinishedRun]] = {}
    simulated: dict[tuple[str, int], FinishedRun] = {}
    identities: dict[int, str] = {}  # of many runs, those of one config share it
    for run in runs:
        config = identities.get(id(run.config)) or identities.setdefault(id(run.config), identity_of(run.config))
        same = simulated.setdefault((config, run.summary["seed"]), run) if run.summary["backend"] == "sim" else run
        if same is not run:
            remarks.append(f"{run.folder} and {same.folder} are the same run: one of them is counted")
        else:
            runs_by_config.setdefault(config, []).append(run)
    keys = distinguishing_keys(*zip(*((row[0].config, row[0].typed) for row in runs_by_config.values()), strict=True))
    return [TableRow(row_keys, config_runs) for row_keys, config_runs in zip(keys, runs_by_config.values(), strict=True)]


def _row_groups(rows: Sequence[TableRow]) -> list[list[TableRow]]:
    """The rows, grouped by cluster and data."""
    groups: dict[str, list[TableRow]] = {}
    for row in rows:
        cluster = row.runs[0].config.get("cluster")
        if isinstance(cluster, Mapping):
            cluster = {key: value for key, value in cluster.items() if f"cluster.{key}" != LEFT_OUT}
        world = {"cluster": cluster, "workload": row.data}
        groups.setdefault(identity_of(world), []).append(row)
    return list(groups.values())


def _rows_with_estimates(rows: Sequence[TableRow], metrics: Mapping[str, Metric], target: Target) -> list[TableRow]:
    """The rows with their estimates."""
    scales = {name: scale(metric, rows, target) for name, metric in metrics.items()}
    return [
        replace(row, numbers={name: row.estimate(metric, target, scale=scales[name]) for name, metric in metrics.items()}) for row in rows
    ]


def _place(row: TableRow, name: str, metric: Metric) -> tuple[bool, float, float, str]:
    """A sort key: the best row first. Rows without a mean come last, by how many of their runs have the number."""
    number = row.numbers[name]
    sign = -1 if metric.higher else 1
    return number.mean is None, sign * (number.mean or 0.0), -number.num_known / number.num_runs, row.label


def _rows_with_coordinations(rows: list[TableRow], remarks: list[str]) -> list[TableRow]:
    """The rows with the names of their coordinations, if these differ."""
    coordinations = [row.runs[0].config.get("coordination") for row in rows]
    names = [
        checks.one_line(choice("coordination", coordination)) if isinstance(coordination, Mapping) else "" for coordination in coordinations
    ]
    if len(set(names)) < 2:
        return rows
    remarks.append("rows differ in coordination: they use the network and the server differently, which explains part of their difference")
    return [replace(row, coordination="" if "coordination" in row.keys else name) for row, name in zip(rows, names, strict=True)]


def _refuse_unequal_samples(groups: Sequence[RowGroup]) -> None:
    for group in groups:
        num_samples = (run.summary["num_samples"] for row in group.rows for run in row.runs)
        counts = sorted({count for count in num_samples if count is not None})
        if len(counts) > 1:
            raise ValueError(
                f"--metric seconds would compare runs of {counts[0]:.0f} to {counts[-1]:.0f} samples, as an update is of fewer samples in "
                "an asynchronous method: take --metric samples_per_second, or a budget of epochs"
            )


def title(runs: Sequence[FinishedRun]) -> str:
    """The values that all runs share."""
    common = {key: {str(run.summary.get(key)) for run in runs} for key in ("method", "cluster", "workload", "backend")}
    same = [values.pop() for values in common.values() if len(values) == 1]
    return f"{len(runs)} runs{': ' if same else ''}{', '.join(same)}"
