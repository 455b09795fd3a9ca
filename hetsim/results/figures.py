"""Figures of runs: a timeline of who computes, updates and waits, and learning curves."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hetsim.results.describe import in_words
from hetsim.results.intervals import COLUMNS, Interval, first_intervals
from hetsim.runtime.curve import Point
from hetsim.runtime.files import begun

MAX_PANELS = 12
"""Numbers that a figure of curves shows."""
COMPUTE, STEP, WAIT, INK = "#4878a8", "#e49444", "#e9ecef", "#333333"


def draw_run(folder: Path, trace: Path | None, points: Sequence[Point], summary: Mapping[str, Any]) -> list[str]:
    """Draw the timeline of a run that has a trace, and the curve of a run that has losses, in its folder. Returns the files' names."""
    title = f"{summary['method']} on {summary['cluster']}, {summary['workload']} ({summary['backend']})"
    figures: dict[str, Any] = {}
    with own_style():
        if trace is not None:
            from pyarrow import parquet

            steps = first_intervals(parquet.read_table(trace, columns=COLUMNS))
            figures["timeline.png"] = timeline([(title, steps)], num_workers=summary["num_workers"])
        if any(point.evaluation.train_loss is not None for point in points):
            rows = [(point.seconds, point.evaluation.named()) for point in points]
            figures["curve.png"] = curves([(summary["backend"], rows)], title=title)
        drawn = {name: figure for name, figure in figures.items() if figure is not None}
        for name, figure in drawn.items():
            with begun(folder / name) as file:
                save(figure, file)
    return list(drawn)


@contextlib.contextmanager
def own_style() -> Iterator[None]:
    """While this lasts, figures have Matplotlib's own style: a matplotlibrc in the current folder may be somebody else's, and call TeX.

    Up to version 3.10, Matplotlib evaluates Python in it when it is imported.
    """
    with contextlib.chdir(Path(__file__).parent):
        import matplotlib

    with matplotlib.rc_context(matplotlib.rcParamsDefault), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that no font has, numbers that no axis shows
        yield


def save(figure: Any, file: BinaryIO) -> None:
    """Write a figure as PNG."""
    figure.savefig(file, format="png", dpi=130)


def timeline(runs: Sequence[tuple[str, Sequence[Interval]]], *, num_workers: int) -> Any:
    """Who computes, updates and waits in the first steps of one or more runs, one below the other on one time axis.

    A figure; None if a run has no step.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    busy = [rows for _, rows in runs]
    if not all(busy):
        return None
    end = max(_first_steps(rows) for rows in busy)
    ranks = sorted({rank for rows in busy for _, _, rank, _ in rows}) if num_workers <= 32 else list(range(32))
    figure = Figure(figsize=(9, 0.9 + len(runs) * (0.55 + 0.26 * len(ranks))), layout="constrained")
    for axes, rows, (title, _) in zip(figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0], busy, runs, strict=True):
        for place, rank in enumerate(ranks):
            axes.broken_barh([(0, end)], (place - 0.38, 0.76), color=WAIT)
            for kind, colour, edge in (("gradient", COMPUTE, 0.6), ("update", STEP, 0.0)):
                bars = [(s, min(e, end) - s) for s, e, r, k in rows if r == rank and k == kind and s < end]
                axes.broken_barh(bars, (place - 0.38, 0.76), facecolor=colour, edgecolor="white", linewidth=edge)
        axes.set_yticks(range(len(ranks)), ["server" if rank == num_workers else f"worker {rank}" for rank in ranks])
        axes.set(xlim=(0, end), ylim=(len(ranks) - 0.5, -0.5))
        axes.set_title(title, fontsize=10, color=INK, loc="left", parse_math=False)
        axes.tick_params(length=0, labelsize=9, labelcolor=INK)
        axes.spines[:].set_visible(False)
    axes.set_xlabel("the first steps, in seconds of the run's own clock", fontsize=9, color=INK)
    key = [Patch(color=COMPUTE, label="gradient"), Patch(color=STEP, label="update"), Patch(color=WAIT, label="waiting")]
    figure.legend(handles=key, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def curves(runs: Sequence[tuple[str, Sequence[tuple[float, Mapping[str, float | None]]]]], *, title: str) -> Any:
    """A figure of the training loss and of each number of the test set over the run's own clock, one line for each run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    judged = [evaluation for _, rows in runs for _, evaluation in rows]
    known = [
        name for name in dict.fromkeys(("train_loss", *itertools.chain(*judged))) if any(each.get(name) is not None for each in judged)
    ]
    shown = (known or ["train_loss"])[:MAX_PANELS]
    height = -(-len(shown) // 2)
    figure = Figure(figsize=(9, 3.4 * height), layout="constrained")
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left", parse_math=False)
    panels = figure.subplots(height, min(2, len(shown)), squeeze=False).ravel()
    for axes in panels[len(shown) :]:
        axes.remove()
    for (label, rows), colour, line in zip(runs, (COMPUTE, STEP), ("-", "--"), strict=False):
        for axes, name in zip(panels, shown, strict=False):
            points = [(seconds, each[name]) for seconds, each in rows if each.get(name) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), line, color=colour, label=label, linewidth=1.8, marker="o", markersize=3)
    for axes, name in zip(panels, shown, strict=False):
        axes.set_xlabel("seconds of the run's own clock", fontsize=9, color=INK)
        axes.set_ylabel("training loss" if name == "train_loss" else in_words(name), fontsize=9, color=INK, parse_math=False)
        axes.grid(color=WAIT)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
    if shown[0] == "train_loss" and all((loss := each.get("train_loss")) is not None and loss > 0 for each in judged):
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panels[0].yaxis.set_minor_formatter(NullFormatter())
    if len(runs) > 1:
        panels[len(shown) - 1].legend(frameon=False, fontsize=9)
    return figure


def _first_steps(rows: Sequence[Interval], steps: int = 6) -> float:
    """When the slowest worker has computed its first few gradients."""
    ends: dict[int, list[float]] = {}
    for _, end, rank, kind in rows:
        if kind == "gradient":
            ends.setdefault(rank, []).append(end)
    return max(sorted(times)[:steps][-1] for times in ends.values()) if ends else max(end for _, end, _, _ in rows)
