"""Two runs side by side, number by number: what `hetsim-compare` prints and draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim.results.config_file import flattened
from hetsim.results.describe import formatted, in_words
from hetsim.results.figures import curves, own_style, save, timeline
from hetsim.results.finished import NUMBERS, check_has, read_points, read_summary
from hetsim.results.intervals import read_intervals
from hetsim.results.keys import VARY_IN_A_COMPARISON
from hetsim.results.run_files import check_is_no_link
from hetsim.results.schema import MISSING, entry, own_metrics
from hetsim.runtime.files import written_whole

NAMES = {"sim": "simulated", "dist": "measured"}
"""What the runs are called if one is of each backend."""


def ordered(runs: Sequence[Path]) -> tuple[list[Path], list[dict[str, Any]], tuple[str, str]]:
    """Two runs, their summaries and their names: the simulated one first if the other is measured, else in the given order."""
    summaries = [read_summary(run) for run in runs]
    backends = [summary.get("backend") for summary in summaries]
    if set(backends) != set(NAMES):
        return list(runs), summaries, ("first", "second")
    first = backends.index("sim")
    return [runs[first], runs[1 - first]], [summaries[first], summaries[1 - first]], ("simulated", "measured")


def comparison(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each number, own metrics last, both values and (first − second) / |second|, which is None where it has no meaning."""
    rows = []
    metrics = dict.fromkeys(name for summary in (first, second) for name in own_metrics(summary["final"]))
    for name, key in (NUMBERS | {in_words(metric): f"final.{metric}" for metric in metrics}).items():
        one, other = (None if (found := entry(summary, key)) is MISSING else found for summary in (first, second))
        rows.append({"name": name, "key": key.split(".")[-1], "first": one, "second": other, "relative_error": relative_error(one, other)})
    return rows


def relative_error(one: float | None, other: float | None) -> float | None:
    """(one − other) / |other|; None where it has no meaning."""
    if one is None or other is None:
        return None
    if one == other:
        return 0.0
    ratio = (one - other) / abs(other) if other else math.inf
    return ratio if math.isfinite(ratio) else None


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two configs differ, with both values, except keys that may differ in a comparison."""
    one, other = dict(flattened(first)), dict(flattened(second))
    keys = sorted(key for key in {*one, *other} if key.split(".")[0] not in VARY_IN_A_COMPARISON)
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def render(rows: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> str:
    """The rows of a comparison as a table of text."""
    title = "relative error" if names[1] == "measured" else "first vs. second"
    width = max(16, *(len(row["name"]) + 2 for row in rows))
    lines = [f"{'':{width}}{names[0]:>14}{names[1]:>14}{title:>18}"]
    for row in rows:
        error = row["relative_error"]
        percent = "–" if error is None else f"{100 * error:+.2f} %"
        lines.append(f"{row['name']:{width}}{formatted(row['first']):>14}{formatted(row['second']):>14}{percent:>18}")
    return "\n".join(lines)


def drawing(runs: Sequence[Path], summaries: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> Callable[[Path], None]:
    """What draws both timelines on one axis and both curves in one frame, as files in a folder. All that it draws is read before."""
    for run, summary in zip(runs, summaries, strict=True):
        check_has(run, summary, "method", "cluster", "workload", "num_workers")
    about = [f"{s['method']} on {s['cluster']}, {s['workload']}" for s in summaries]
    titles = [f"{name}: {text}" for name, text in zip(names, about, strict=True)]
    points = list(zip(names, map(read_points, runs), strict=True))
    traces = [run / "trace.parquet" for run in runs]
    sizes = [summary["num_workers"] for summary in summaries]
    steps = [read_intervals(trace, num_workers=size) for trace, size in zip(traces, sizes, strict=True) if trace.exists()]

    def draw(folder: Path) -> None:
        check_is_no_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with own_style():
            figures = {"curve.png": curves(points, title=" and ".join(dict.fromkeys(about)))}
            if len(steps) == len(traces):
                figures["timeline.png"] = timeline(list(zip(titles, steps, strict=True)), num_workers=max(sizes))
            for name, figure in figures.items():
                if figure is not None:
                    with written_whole(folder / name) as file:
                        save(figure, file)

    return draw
