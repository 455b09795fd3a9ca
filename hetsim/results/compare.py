"""Two runs side by side, number by number: what `hetsim-compare` prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim.results.describe import formatted
from hetsim.results.figures import curves, timeline
from hetsim.results.finished import NUMBERS, flattened, read_curve, read_summary
from hetsim.results.keys import VARY_IN_A_COMPARISON

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
    """For each number both values and (first − second) / |second|, which is None where it has no meaning."""
    rows = []
    for name, keys in NUMBERS.items():
        one, other = _number(first, keys), _number(second, keys)
        rows.append({"name": name, "key": keys[-1], "first": one, "second": other, "relative_error": relative_error(one, other)})
    return rows


def _number(summary: Mapping[str, Any], keys: Sequence[str]) -> float | None:
    found: Any = summary
    for key in keys:
        found = found[key]
    number: float | None = found
    return number


def relative_error(one: float | None, other: float | None) -> float | None:
    """(one − other) / |other|; None where it has no meaning."""
    if one is None or other is None:
        return None
    if one == other:
        return 0.0
    return (one - other) / abs(other) if other else None


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two configs differ, with both values, except keys that may differ in a comparison."""
    one, other = dict(flattened(first)), dict(flattened(second))
    keys = sorted(key for key in {*one, *other} if key.split(".")[0] not in VARY_IN_A_COMPARISON)
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def render(rows: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> str:
    """The rows of a comparison as a table of text."""
    title = "relative error" if names[1] == "measured" else "first vs. second"
    lines = [f"{'':16}{names[0]:>14}{names[1]:>14}{title:>18}"]
    for row in rows:
        error = row["relative_error"]
        percent = "–" if error is None else f"{100 * error:+.2f} %"
        lines.append(f"{row['name']:16}{formatted(row['first']):>14}{formatted(row['second']):>14}{percent:>18}")
    return "\n".join(lines)


def draw(runs: Sequence[Path], summaries: Sequence[Mapping[str, Any]], names: tuple[str, str], folder: Path) -> None:
    """Both timelines on one axis and both curves in one frame, as files in `folder`."""
    traces = [run / "trace.parquet" for run in runs]
    folder.mkdir(parents=True, exist_ok=True)
    about = [f"{s['method']} on {s['cluster']}, {s['workload']}" for s in summaries]
    titles = [f"{name}: {text}" for name, text in zip(names, about, strict=True)]
    if all(trace.is_file() for trace in traces):
        num_workers = max(s["num_workers"] for s in summaries)
        timeline(list(zip(titles, traces, strict=True)), folder / "timeline.png", num_workers=num_workers)
    curves(list(zip(names, map(read_curve, runs), strict=True)), folder / "curve.png", title=" and ".join(dict.fromkeys(about)))
