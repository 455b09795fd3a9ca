"""Reading back what a finished run left in its folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

NUMBERS = {
    # what a number is called in a comparison: where it stands in summary.json
    "updates/s": ("updates_per_second",),
    "samples/s": ("samples_per_second",),
    "mean staleness": ("staleness_mean",),
    "idle share": ("idle_share",),
    "final loss": ("final", "train_loss"),
    "final accuracy": ("final", "test_accuracy"),
}


def read_summary(run: Path) -> dict[str, Any]:
    """The summary of a run's folder; ValueError with one sentence if there is none."""
    path = run / "summary.json"
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{run} is no folder of a finished run: {path} cannot be read ({error.strerror})") from None
    except ValueError:
        raise ValueError(f"{path} is no JSON: give the folder of a finished run") from None
    if not isinstance(loaded, dict) or not all(_has(loaded, keys) for keys in NUMBERS.values()):
        raise ValueError(f"{path} lacks {', '.join(NUMBERS)}: give the folder of a run of this version of hetsim")
    return loaded


def _has(entry: Any, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(entry, Mapping) or key not in entry:
            return False
        entry = entry[key]
    return True


def read_config(run: Path) -> dict[str, Any]:
    """The resolved config of a run; empty if it is not there."""
    path = run / "config.yaml"
    return dict(yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))) if path.is_file() else {}


def flattened(entry: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a config at any depth, with its dotted key."""
    if isinstance(entry, Mapping) and entry:
        for name, value in entry.items():
            yield from flattened(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, entry


def read_curve(run: Path) -> list[tuple[float, float | None, float | None]]:
    """The learning curve of a run: seconds of its own clock, training loss, test accuracy; None where there is no number."""
    with (run / "curve.csv").open(encoding="utf-8", newline="") as file:
        return [(float(row["seconds"]), _number(row["train_loss"]), _number(row["test_accuracy"])) for row in csv.DictReader(file)]


def _number(text: str) -> float | None:
    return float(text) if text else None


def seconds_to(run: Path, accuracy: float) -> float | None:
    """When a run's curve first reached this test accuracy, in seconds of the run's own clock; None if it never did."""
    return next((seconds for seconds, _, reached in read_curve(run) if reached is not None and reached >= accuracy), None)
