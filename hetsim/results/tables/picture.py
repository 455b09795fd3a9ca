"""The picture of a table: a point and an interval for each row, by group, with a line at the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetsim.results.tables.estimates import Estimate
from hetsim.results.tables.rows import RowGroup, TableRow
from hetsim.results.tables.table import Ranking
from hetsim.results.writing.figures import COMPUTE, INK, STEP, WAIT, own_style

MAX_ROWS = 60
"""The maximum number of rows in a picture."""
GREY = "#888888"


def cell(metric: str, estimate: Estimate) -> str:
    """An estimate as text."""
    if metric.startswith("seconds_to_") and estimate.num_known < estimate.num_runs:
        return f"reached by {estimate.num_known} of {estimate.num_runs}" if estimate.num_known else "never reached"
    if metric.endswith("_at_seconds") and estimate.num_known < estimate.num_runs:
        return "had ended" if not estimate.num_known else f"{estimate.num_runs - estimate.num_known} of {estimate.num_runs} had ended"
    return str(estimate)


@own_style()
def picture(table: Ranking) -> Any:
    """A figure with a panel for each group, the best row at its top. A row without a number has text instead."""
    from matplotlib.figure import Figure

    drawn = list(_first(table.groups, MAX_ROWS))
    heights = [len(rows) + 0.9 for _, rows in drawn]
    figure = Figure(figsize=(9, 1.0 + 0.27 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    if _spread(table) > 30:
        panels[0].set_xscale("log")
    for axes, (group, rows) in zip(panels, drawn, strict=True):
        _draw(axes, table, group, rows)
    heads = dict.fromkeys(group.head(table.metrics[table.metric]) for group, _ in drawn)
    num_omitted = len(table.rows) - sum(len(rows) for _, rows in drawn)
    more = f"; {num_omitted} more rows are in table.csv" if num_omitted else ""
    gains = "" if table.baseline is None else f"; dashed: {table.baseline}, ×: gain over it"
    panels[-1].set_xlabel(
        f"{' or '.join(heads)}: mean and 95 % interval over the runs{gains}{more}", fontsize=9, color=INK, parse_math=False
    )
    figure.suptitle(table.title, fontsize=10, color=INK, x=0.01, ha="left", parse_math=False)
    return figure


def _first(groups: Any, count: int) -> Iterator[tuple[RowGroup, list[TableRow]]]:
    for group in groups:
        rows = list(group.rows[:count])
        count -= len(rows)
        if rows:
            yield group, rows


def _spread(table: Ranking) -> float:
    """The ratio of the largest to the smallest mean; 1 if a mean is not above zero."""
    means = [mean for row in table.rows if (mean := row.numbers[table.metric].mean) is not None]
    return max(means) / min(means) if means and min(means) > 0 else 1.0


def _draw(axes: Any, table: Ranking, group: RowGroup, rows: list[TableRow]) -> None:
    for place, row in enumerate(rows):
        estimate = row.numbers[table.metric]
        if estimate.mean is None:
            words = cell(table.metric, estimate)
            axes.text(0.01, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=GREY)
            continue
        span = None if estimate.low is None or estimate.high is None else [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
        axes.errorbar(estimate.mean, place, xerr=span, fmt="o", color=COMPUTE, ms=5, elinewidth=1.6, capsize=3)
        if row.gain is not None and row.gain.mean is not None:
            axes.text(1.01, place, f"× {row.gain}", transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    for row in group.baselines if len(group.baselines) == 1 else ():
        estimate = row.numbers[table.metric]
        if estimate.mean is not None:
            axes.axvline(estimate.mean, color=STEP, linewidth=1.2, linestyle="--", zorder=0)
    axes.set_yticks(range(len(rows)), [group.name(row) for row in rows], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.06)
    if group.label:
        axes.set_title(group.label, fontsize=9, color=INK, loc="left", parse_math=False)
    axes.grid(color=WAIT)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
