"""Two runs side by side: `hetsim-compare RUN RUN`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hetsim.results.figures import curves, timeline
from hetsim.results.summary import formatted

ROWS = {
    "updates/s": ("updates_per_second",),
    "samples/s": ("samples_per_second",),
    "mean staleness": ("staleness_mean",),
    "idle share": ("idle_share",),
    "final loss": ("final", "train_loss"),
    "final accuracy": ("final", "test_accuracy"),
}


WORLDS = {"sim": "simulated", "dist": "measured"}


FREE = ("backend", "trace", "pictures", "evaluate_every_epochs", "data_root", "download")  # keys in which runs may differ unsaid


def read_summary(run: Path) -> dict[str, Any]:
    """The summary of a run's folder; ValueError with one sentence if there is none."""
    path = run / "summary.json"
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{run} is no folder of a finished run: {path} cannot be read ({error.strerror})") from None
    except ValueError:
        raise ValueError(f"{path} is no JSON: give the folder of a finished run") from None
    if not isinstance(loaded, dict) or not all(_value(loaded, keys)[0] for keys in ROWS.values()):
        raise ValueError(f"{path} lacks {', '.join(ROWS)}: give the folder of a run of this version of hetsim")
    return loaded


def read_config(run: Path) -> dict[str, Any]:
    """The resolved config of a run, as dotted keys; empty if it is not there."""
    path = run / "config.yaml"
    return dict(leaves(yaml.safe_load(path.read_text(encoding="utf-8")))) if path.is_file() else {}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys in which two configs differ though a comparison would want them equal, with both values."""
    keys = sorted(key for key in {*first, *second} if key.split(".")[0] not in FREE)
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def leaves(entry: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a config at any depth, by its dotted key."""
    if isinstance(entry, Mapping) and entry:
        for name, value in entry.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, entry


def comparison(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a number: both values, and (first − second) / |second|; None where there is nothing to compare."""
    rows = []
    for name, keys in ROWS.items():
        one, other = _value(first, keys)[1], _value(second, keys)[1]
        rows.append({"name": name, "key": keys[-1], "first": one, "second": other, "relative_error": relative_error(one, other)})
    return rows


def relative_error(one: float | None, other: float | None) -> float | None:
    """(one − other) / |other|; None where it has no meaning."""
    if one is None or other is None:
        return None
    if one == other:
        return 0.0
    return (one - other) / abs(other) if other else None


def render(rows: list[dict[str, Any]], names: tuple[str, str]) -> str:
    """The table as text."""
    title = "relative error" if names[1] == "measured" else "first vs. second"
    lines = [f"{'':16}{names[0]:>14}{names[1]:>14}{title:>18}"]
    for row in rows:
        error = row["relative_error"]
        told = "–" if error is None else f"{100 * error:+.2f} %"
        lines.append(f"{row['name']:16}{formatted(row['first']):>14}{formatted(row['second']):>14}{told:>18}")
    return "\n".join(lines)


def ordered(runs: list[Path]) -> tuple[list[Path], list[dict[str, Any]], tuple[str, str]]:
    """The simulated run first if one was simulated and the other measured; and what to call them."""
    pairs = sorted(((read_summary(run), run) for run in runs), key=lambda pair: {"sim": 0, "dist": 1}.get(pair[0].get("backend", ""), 2))
    if {pair[0].get("backend") for pair in pairs} != set(WORLDS):
        pairs = [(read_summary(run), run) for run in runs]
        names = ("first", "second")
    else:
        names = ("simulated", "measured")
    return [pair[1] for pair in pairs], [pair[0] for pair in pairs], names


def draw(runs: list[Path], summaries: list[dict[str, Any]], names: tuple[str, str], folder: Path) -> None:
    """Both timelines on one axis and both curves in one frame, in `folder`."""
    traces = [run / "trace.parquet" for run in runs]
    folder.mkdir(parents=True, exist_ok=True)
    about = [f"{s['method']} on {s['cluster']}, {s['workload']}" for s in summaries]
    titles = [f"{name}: {text}" for name, text in zip(names, about, strict=True)]
    if all(trace.is_file() for trace in traces):
        num_workers = max(s["num_workers"] for s in summaries)
        timeline(list(zip(titles, traces, strict=True)), folder / "timeline.png", num_workers=num_workers)
    curves(list(zip(names, map(_curve, runs), strict=True)), folder / "curve.png", title=" and ".join(dict.fromkeys(about)))


def _value(summary: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[bool, float | None]:
    """Whether the number is there, and the number."""
    found: Any = summary
    for key in keys:
        if not isinstance(found, Mapping) or key not in found:
            return False, None
        found = found[key]
    return True, found


def _curve(run: Path) -> list[tuple[float, float | None, float | None]]:
    with (run / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(row["seconds"]), _number(row["train_loss"]), _number(row["test_accuracy"])) for row in rows]


def _number(text: str) -> float | None:
    return float(text) if text else None
