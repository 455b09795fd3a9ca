"""One table and one picture of a sweep: `hetsim-table SWEEP_DIR`. Means over seeds, with 95 % intervals by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hetsim.results.compare import leaves, read_summary
from hetsim.results.identity import FREE, identity_of, typed_overrides
from hetsim.results.summary import formatted, seconds_to

Number = float | None


METRICS: dict[str, tuple[str, bool]] = {
    # the name: what a column of it is headed, and whether less of it is better
    "seconds_to_accuracy": ("seconds to {accuracy:g}", True),
    "seconds": ("seconds", True),
    "updates_per_second": ("updates/s", False),
    "samples_per_second": ("samples/s", False),
    "staleness_mean": ("staleness", True),
    "staleness_max": ("staleness at most", True),
    "idle_share": ("idle share", True),
    "final_accuracy": ("final accuracy", False),
    "final_loss": ("final loss", True),
}


SAME = ("seed", "trace", "pictures", "data_root", "trust", *FREE)  # keys in which the runs of a row may differ


LONGEST = 44  # letters of a label


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its summary, its resolved config without what makes no difference, and what was typed for it."""

    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]

    def number(self, metric: str, accuracy: float) -> Number:
        """The run's number; None where it has none."""
        if metric == "seconds_to_accuracy":
            return seconds_to(self.folder, accuracy)
        inside = {"final_accuracy": "test_accuracy", "final_loss": "train_loss"}
        found = self.summary["final"][inside[metric]] if metric in inside else self.summary[metric]
        return None if found is None else float(found)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; how many of the runs have the number at all."""

    mean: Number
    interval: Number
    num_known: int
    num_runs: int

    @classmethod
    def of(cls, values: Sequence[Number]) -> Estimate:
        """Without a mean where some run has no number, as leaving it out would be in its favour; one run has no interval."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(None, None, len(known), len(values))
        mean = math.fsum(known) / len(known)
        if len(known) == 1:
            return cls(mean, None, 1, 1)
        from scipy.special import stdtrit

        deviation = statistics.stdev(known) / math.sqrt(len(known))
        return cls(mean, float(stdtrit(len(known) - 1, 0.975)) * deviation, len(known), len(known))

    def __str__(self) -> str:
        if self.mean is None:
            return "–" if not self.num_known else f"in {self.num_known} of {self.num_runs}"
        return formatted(self.mean) + ("" if self.interval is None else f" ± {_rounded(self.interval)}")


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


@dataclass(frozen=True)
class Row:
    """The runs of one config, over seeds: what tells it from the others, and its numbers."""

    keys: Mapping[str, str]
    num_runs: int
    numbers: Mapping[str, Estimate]

    @property
    def label(self) -> str:
        """What tells it from the others, in a line of bounded length; a method needs no key."""
        parts = [value if key == "method" else f"{key}={value}" for key, value in self.keys.items() if value]
        return _short(", ".join(parts), LONGEST)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def runs(folder: Path) -> list[Run]:
    """Every finished run at any depth; ValueError with one sentence if there is none, or one that is no run of this hetsim."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give the folder of a sweep, its hydra.sweep.dir")
    found = [_read(path.parent) for path in sorted(folder.rglob("summary.json"))]
    if not found:
        raise ValueError(f"{folder} holds no finished run: give the folder of a sweep, its hydra.sweep.dir")
    return found


def _read(folder: Path) -> Run:
    summary = read_summary(folder)
    lacking = [key for key in ("method", "backend", "seed", "seconds", "staleness_max") if key not in summary]
    if lacking or not (folder / "curve.csv").is_file():
        raise ValueError(f"{folder} is no run of this version of hetsim: it lacks {', '.join(lacking) or 'curve.csv'}; move it elsewhere")
    path = folder / "config.yaml"
    loaded = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if path.is_file() else {}
    config = {key: value for key, value in loaded.items() if key not in SAME}
    return Run(folder, summary, config or {"method": summary["method"]}, typed_overrides(folder))


def rows(found: Sequence[Run], *, accuracy: float) -> tuple[list[Row], list[str]]:
    """A row a config; and sentences on what was left out of them."""
    groups: dict[str, list[Run]] = {}
    remarks: list[str] = []
    for run in found:
        group = groups.setdefault(identity_of(run.config), [])
        same = [other for other in group if run.summary["backend"] == "sim" and other.summary["seed"] == run.summary["seed"]]
        if same:
            remarks.append(f"{run.folder} and {same[0].folder} are the same run: one of them is counted")
        else:
            group.append(run)
    labels = keys([group[0] for group in groups.values()])
    return [
        Row(label, len(group), {metric: Estimate.of([run.number(metric, accuracy) for run in group]) for metric in METRICS})
        for label, group in zip(labels, groups.values(), strict=True)
    ], remarks


def keys(configs: Sequence[Run]) -> list[dict[str, str]]:
    """What tells one config from the others: of the keys that were typed those that vary, and others only where these do not suffice.

    A method changes dozens of keys; who typed `method=` knows it by that one.
    """
    flat = [dict(leaves(run.config)) for run in configs]
    typed = [key for key in dict.fromkeys(key for run in configs for key in run.typed) if key.split(".")[0] not in SAME]
    columns: dict[str, list[str]] = {}
    for key in ["method", *(key for key in typed if key != "method")]:
        parts = [_part(run.config, key) for run in configs]
        if len({repr(part) for part in parts}) > 1 or (parts[0] is None and len({run.typed.get(key) for run in configs}) > 1):
            columns[key] = _brief(parts) or [_told(key, run, part) for run, part in zip(configs, parts, strict=True)]
    rest = sorted({key for entry in flat for key in entry}, key=lambda key: (key.count("."), key))
    while len(set(zip(*columns.values(), strict=True)) if columns else {()}) < len(configs) and rest:
        key = rest.pop(0)
        column = [_value(entry.get(key)) for entry in flat]
        before = len(set(zip(*columns.values(), strict=True)) if columns else {()})
        if len(set(zip(*columns.values(), column, strict=True))) > before:
            columns[key] = column
    if not columns:
        columns["method"] = [str(run.summary["method"]) for run in configs]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _part(config: Mapping[str, Any], key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _told(key: str, run: Run, part: Any) -> str:
    """A value as it was typed, if it was; a group's that was not is known by its name or class."""
    if isinstance(part, Mapping | list):
        default = part.get("name") or str(part.get("_target_", "")).rpartition(".")[2] if isinstance(part, Mapping) else part
        return run.typed.get(key, _value(default))
    return run.typed.get(key, "") if part is None else _value(part)


def _brief(parts: Sequence[Any]) -> list[str]:
    """Numbers in six digits, where these tell them apart."""
    brief = [f"{part:.6g}" for part in parts if isinstance(part, int | float) and not isinstance(part, bool)]
    return brief if len(brief) == len(parts) and len(set(brief)) == len({*parts}) else []


def _value(part: Any) -> str:
    """As one would type it."""
    if part is None or isinstance(part, bool):
        return {None: "null", True: "true", False: "false"}[part]
    return " ".join(str(part).split())


def arranged(found: Sequence[Row], metric: str) -> list[Row]:
    """The best first; those without a mean last, the more runs that have the number the earlier."""
    sign = 1 if METRICS[metric][1] else -1

    def place(row: Row) -> tuple[bool, float, float, str]:
        estimate = row.numbers[metric]
        return estimate.mean is None, sign * (estimate.mean or 0.0), -estimate.num_known / estimate.num_runs, row.label

    return sorted(found, key=place)


def known(found: Sequence[Row]) -> list[str]:
    """The metrics of which any run has a number."""
    return [metric for metric in METRICS if any(row.numbers[metric].num_known for row in found)]


def chosen(metric: str | None, found: Sequence[Row], accuracy: float) -> str:
    """The metric to sort by and to draw; ValueError with one sentence if no run has it."""
    there = known(found)
    if metric is None:
        return there[0]
    if metric not in there:
        told = f"{metric}, to {accuracy:g}," if metric == "seconds_to_accuracy" else metric
        raise ValueError(f"no run has a number for {told}: take --metric {' or '.join(there)}")
    return metric


def head(metric: str, accuracy: float) -> str:
    """What a column of it is headed."""
    return METRICS[metric][0].format(accuracy=accuracy)


def title(found: Sequence[Run]) -> str:
    """What the runs have in common."""
    common = {key: {str(run.summary.get(key)) for run in found} for key in ("method", "cluster", "workload", "backend")}
    same = [values.pop() for values in common.values() if len(values) == 1]
    return f"{len(found)} runs{': ' if same else ''}{', '.join(same)}"
