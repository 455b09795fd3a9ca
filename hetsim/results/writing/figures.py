"""Figures of runs: a timeline of computing, updates, communication and waiting, and learning curves."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hetsim.files.summary_and_curve import Curve
from hetsim.files.writing import begun
from hetsim.results.reading.intervals import COLUMNS, MAX_RANKS, WORK, Interval, Span, after_last_entry, first_intervals
from hetsim.results.writing.describe import in_words
from hetsim.runtime.recording.curve import Point
from hetsim.runtime.recording.recorder import INTERVAL_KINDS

MAX_PANELS = 12
"""The maximum number of panels in a figure of curves."""
DRAWN = {kind.name: kind.drawing for kind in INTERVAL_KINDS if kind.drawing is not None}
COMPUTE, STEP = DRAWN["gradient"].colour, DRAWN["update"].colour
WAIT, INK = "#e9ecef", "#333333"
ABOVE, BELOW = (-0.38, 0.54), (0.18, 0.2)
"""The bottom and the height of the two parts of a lane, in lanes."""


def draw_run(folder: Path, trace: Path | None, points: Sequence[Point], summary: Mapping[str, Any]) -> None:
    """Draw the timeline of a run with a trace, and its learning curve if it has one, into its folder."""
    title = f"{summary['method']} on {summary['cluster']}, {summary['workload']} ({summary['backend']})"
    figures: dict[str, Any] = {}
    with own_style():
        if trace is not None:
            from pyarrow import parquet

            steps = first_intervals(parquet.read_table(trace, columns=COLUMNS))
            figures["timeline.png"] = timeline([(title, steps)], num_workers=summary["num_workers"])
        rows = [(point.seconds, point.evaluation.named()) for point in points]
        figures["curve.png"] = curves([(summary["backend"], [rows])], title=title)
        for name, figure in figures.items():
            if figure is not None:
                with begun(folder / name) as file:
                    save(figure, file)


@contextlib.contextmanager
def own_style() -> Iterator[None]:
    """Within this context, figures have Matplotlib's default style.

    A matplotlibrc in the current folder may come from somebody else, and run TeX. Up to version 3.10, importing Matplotlib evaluates Python
    code in it.
    """
    if "matplotlib" not in sys.modules:
        with contextlib.chdir(Path(__file__).parent):
            _import_matplotlib()
    import matplotlib

    with matplotlib.rc_context(matplotlib.rcParamsDefault), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that no font has, numbers that no axis shows
        yield


def _import_matplotlib() -> None:
    """Import Matplotlib, also if MPLBACKEND names a backend that is not installed. A notebook sets it for commands that it starts."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend:
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = backend  # for the user's own figures; hetsim writes its own to files


@own_style()
def save(figure: Any, file: BinaryIO, writer: str = "hetsim") -> None:
    """Write a figure as PNG, with the name of the command that writes it."""
    figure.savefig(file, format="png", dpi=130, metadata={"Software": writer})


def timeline(runs: Sequence[tuple[str, Sequence[Interval]]], *, num_workers: int) -> Any:
    """The first steps of one or more runs on one time axis: which rank computes, updates, communicates or waits.

    The upper part of a rank's lane shows computation. The thin lower bar shows the rank's messages until their delivery, and collectives
    from the last rank's entry on. Both may overlap with computing. Returns a figure; None if a run has no step.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes = [_lanes(rows) for _, rows in runs]
    if not all(any(kind in WORK for _, kind in bars) for bars in lanes):
        return None
    end = max(_first_steps(bars) for bars in lanes)
    lanes = [_lanes_with_transfers(bars, end) for bars in lanes]
    ranks = sorted({rank for bars in lanes for rank, _ in bars}) if num_workers <= MAX_RANKS else list(range(MAX_RANKS))
    figure = Figure(figsize=(9, 0.9 + len(runs) * (0.55 + 0.26 * len(ranks))), layout="constrained")
    for axes, bars, (title, _) in zip(figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0], lanes, runs, strict=True):
        for place, rank in enumerate(ranks):
            axes.broken_barh([(0, end)], (place - 0.38, 0.76), color=WAIT)
            for kind, drawing in DRAWN.items():
                spans = [(start, min(until, end) - start) for start, until in bars.get((rank, kind), ()) if start < end]
                bottom, height = BELOW if drawing.is_communication else ABOVE
                axes.broken_barh(spans, (place + bottom, height), facecolor=drawing.colour, edgecolor="white", linewidth=drawing.edge_width)
        axes.set_yticks(range(len(ranks)), [lane_name(rank, num_workers) for rank in ranks])
        axes.set(xlim=(0, end), ylim=(len(ranks) - 0.5, -0.5))
        axes.set_title(title, fontsize=10, color=INK, loc="left", parse_math=False)
        axes.tick_params(length=0, labelsize=9, labelcolor=INK)
        axes.spines[:].set_visible(False)
    axes.set_xlabel("the first steps, in seconds of the run's own clock", fontsize=9, color=INK)
    shown = {kind for bars in lanes for _, kind in bars}
    key = {drawing.legend: Patch(color=drawing.colour, label=drawing.legend) for kind, drawing in DRAWN.items() if kind in shown}
    waiting = Patch(color=WAIT, label="waiting")
    figure.legend(handles=[*key.values(), waiting], loc="outside upper right", ncols=len(key) + 1, frameon=False, fontsize=9)
    return figure


def curves(sides: Sequence[tuple[str, Sequence[Curve]]], *, title: str) -> Any:
    """A figure of the training loss and each test metric over the run's clock, with a line for each run.

    Repeats have a thin line each, and a thick line for their mean. Numbers that no run has get no panel. Returns None without any panel,
    for example for runs that only measure time.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    judged = [evaluation for _, runs in sides for rows in runs for _, evaluation in rows]
    names = [
        name
        for name in dict.fromkeys(("train_loss", *itertools.chain(*judged)))
        if any(evaluation.get(name) is not None for evaluation in judged)
    ]
    if not names:
        return None
    shown = names[:MAX_PANELS]
    height = -(-len(shown) // 2)
    figure = Figure(figsize=(9, 3.4 * height), layout="constrained")
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left", parse_math=False)
    panels = figure.subplots(height, min(2, len(shown)), squeeze=False).ravel()
    for axes in panels[len(shown) :]:
        axes.remove()
    for (label, runs), colour, line in zip(sides, (COMPUTE, STEP), ("-", "--"), strict=False):
        for axes, name in zip(panels, shown, strict=False):
            lines = [
                points
                for rows in runs
                if (points := [(at, value) for at, evaluation in rows if (value := evaluation.get(name)) is not None])
            ]
            if len(lines) > 1:
                for points in lines:
                    axes.plot(*zip(*points, strict=True), line, color=colour, linewidth=0.6, alpha=0.5)
                axes.plot(*mean_line(lines), line, color=colour, label=label, linewidth=2.4)
            elif lines:
                axes.plot(*zip(*lines[0], strict=True), line, color=colour, label=label, linewidth=1.8, marker="o", markersize=3)
    for axes, name in zip(panels, shown, strict=False):
        axes.set_xlabel("seconds of the run's own clock", fontsize=9, color=INK)
        axes.set_ylabel("training loss" if name == "train_loss" else in_words(name), fontsize=9, color=INK, parse_math=False)
        axes.grid(color=WAIT)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
    if shown[0] == "train_loss" and all((loss := evaluation.get("train_loss")) is not None and loss > 0 for evaluation in judged):
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panels[0].yaxis.set_minor_formatter(NullFormatter())
    if len(sides) > 1:
        panels[len(shown) - 1].legend(frameon=False, fontsize=9)
    return figure


def mean_line(lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """The mean of lines that have all begun and not ended, at each moment at which one of them has a point: the moments and the means."""
    import numpy as np

    columns = [np.array(sorted(points)).T for points in lines]
    begin, end = max(moments[0] for moments, _ in columns), min(moments[-1] for moments, _ in columns)
    moments = np.unique(np.concatenate([moments for moments, _ in columns]))
    moments = moments[(begin <= moments) & (moments <= end)]
    with np.errstate(invalid="ignore"):  # a loss may be infinite
        return moments.tolist(), np.mean([np.interp(moments, *points) for points in columns], axis=0).tolist()


Lanes = Mapping[tuple[int, str], Sequence[Span]]
"""The intervals, by rank and kind."""


def _lanes(rows: Sequence[Interval]) -> Lanes:
    lanes: dict[tuple[int, str], list[Span]] = {}
    for start, end, rank, kind in rows:
        if kind in DRAWN and end > start:
            lanes.setdefault((rank, kind), []).append((start, end))
    return lanes


def _lanes_with_transfers(lanes: Lanes, until: float) -> Lanes:
    """The lanes with collectives that begin when their last rank has entered. Before this, a rank waits."""
    changed = dict(lanes)
    for kind in (row.name for row in INTERVAL_KINDS if row.is_collective):
        entered = {rank: spans for (rank, lane_kind), spans in lanes.items() if lane_kind == kind}
        changed.update({(rank, kind): spans for rank, spans in after_last_entry(entered, until).items()})
    return changed


def _first_steps(lanes: Lanes, steps: int = 6) -> float:
    """The end of the slowest worker's first few gradients, or of the first communication if that is not much later."""
    computed = [sorted(end for _, end in spans) for (_, kind), spans in lanes.items() if kind == "gradient"]
    work = [end for (_, kind), spans in lanes.items() if kind in WORK for _, end in spans]
    end = max(ends[:steps][-1] for ends in computed) if computed else max(work)
    communicated = min((until for (_, kind), spans in lanes.items() if kind not in WORK for _, until in spans), default=0.0)
    return 1.1 * communicated if end < communicated < 4 * end else end


def lane_name(rank: int, num_workers: int) -> str:
    """The name of a lane's rank."""
    if rank < num_workers:
        return f"worker {rank}"
    return "server" if rank == num_workers else f"local server {rank - num_workers - 1}"
