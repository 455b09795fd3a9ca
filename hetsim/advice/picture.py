"""The picture of an advice: expected seconds with intervals, the best at the top, and a line at plain DDP."""

from __future__ import annotations

from typing import Any

from hetsim.advice.advice import Advice
from hetsim.results.writing.figures import COMPUTE, INK, STEP, WAIT, own_style

GREY = "#888888"


@own_style()
def picture(found: Advice) -> Any:
    """A figure with one panel."""
    from matplotlib.figure import Figure

    rows = [*found.rows, found.baseline]
    figure = Figure(figsize=(9, 1.3 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        seconds = row.seconds
        if seconds.mean is None:
            words = f"reached by {seconds.num_known} of {seconds.num_runs}"
            axes.text(0.01, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=GREY)
            continue
        low, high = seconds.bounds or (seconds.mean, seconds.mean)
        colour = STEP if row is found.baseline else COMPUTE
        axes.errorbar(seconds.mean, place, xerr=[[seconds.mean - low], [high - seconds.mean]], fmt="o", color=colour, ms=5, capsize=3)
        if row.gain.mean is not None and row is not found.baseline:
            axes.text(1.01, place, f"× {row.gain}", transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    if found.baseline.seconds.mean is not None:
        axes.axvline(found.baseline.seconds.mean, color=STEP, linewidth=1.2, linestyle="--", zorder=0)
    labels = [row.candidate.label for row in found.rows]
    axes.set_yticks(range(len(rows)), [*labels, f"plain DDP ({found.baseline.candidate.method.name})"], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    error = "" if found.error is None else f", wider as predictions may be {100 * found.error:.0f} % off (90 %)"
    axes.set_xlabel(f"seconds to {found.what}: mean and 95 % interval over seeds{error}; ×: gain over plain DDP", fontsize=9, color=INK)
    axes.set_title(f"{found.workload} on {found.cluster}", fontsize=10, color=INK, loc="left", parse_math=False)
    axes.grid(color=WAIT)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    return figure
