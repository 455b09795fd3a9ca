"""The pictures of a comparison: the curves of both sides in one panel, and a timeline of each side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetsim.files.reading import check_is_no_link
from hetsim.files.summary_and_curve import check_has, read_points
from hetsim.files.writing import written_whole
from hetsim.results.comparison.sides import Sides
from hetsim.results.reading.intervals import read_intervals
from hetsim.results.writing.figures import curves, own_style, save, timeline


def figures(sides: Sides) -> Callable[[], dict[str, Any]]:
    """Read all data, and return a function that draws the figures.

    The figures are the curves of all runs, and the timelines of both first runs on one axis. None stands for a figure without data.
    """
    for side in sides.both:
        for run, summary in zip(side.folders, side.summaries, strict=True):
            check_has(run, summary, "method", "cluster", "workload", "num_workers")
    titles = [f"{side.name}: {side.title}" for side in sides.both]
    points = [(side.name, [read_points(run) for run in side.folders]) for side in sides.both]
    traces = [side.folders[0] / "trace.parquet" for side in sides.both]
    sizes = [side.summaries[0]["num_workers"] for side in sides.both]
    steps = [read_intervals(trace, num_workers=size) for trace, size in zip(traces, sizes, strict=True) if trace.exists()]

    def draw() -> dict[str, Any]:
        with own_style():
            drawn = {"curve": curves(points, title=" and ".join(dict.fromkeys(side.title for side in sides.both)))}
            if len(steps) == len(traces):
                drawn["timeline"] = timeline(list(zip(titles, steps, strict=True)), num_workers=max(sizes))
            return drawn

    return draw


def drawing(sides: Sides) -> Callable[[Path], None]:
    """Read all data, and return a function that draws the figures into a folder."""
    drawn = figures(sides)

    def draw(folder: Path) -> None:
        check_is_no_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn().items():
            if figure is not None:
                with written_whole(folder / f"{name}.png") as file:
                    save(figure, file)

    return draw
