"""Numbers, times and lists in words, and a run in words for the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from hetsim.files.schema import own_metrics

DESCRIBED = (
    *("method", "cluster", "num_workers", "workload", "seed", "backend", "emulation", "num_updates", "num_samples", "seconds"),
    *("num_samples_discarded", "staleness_max", "batch_sizes"),
)
"""The entries of summary.json in the description, besides those that every reader of a run needs."""


def describe(summary: Mapping[str, Any]) -> str:
    """A run in five lines."""
    emulate = (summary["emulation"] or {}).get("emulate")
    quotas = f" with the cpu quotas of {summary['cluster']}" if emulate == "quota" else ""
    place = f"this hardware{quotas}" if emulate in ("none", "quota") else summary["cluster"]
    final = summary["final"]
    lines = [
        f"{summary['method']} on {place} ({summary['num_workers']} workers), {summary['workload']}, "
        f"seed {summary['seed']}, backend {summary['backend']}{_devices(summary)}",
        f"  {summary['num_updates']} updates, {summary['num_samples']} samples in {formatted(summary['seconds'])} s"
        f"{_dropped_samples(summary)}: {formatted(summary['updates_per_second'])} updates/s{_interval(summary)}, "
        f"{formatted(summary['samples_per_second'])} samples/s",
        f"  staleness {formatted(summary['staleness_mean'])} on average, {summary['staleness_max']} at most; "
        f"workers idle {formatted(_percent(summary['idle_share']))} % of the time; batch sizes {_list(summary['batch_sizes'])}",
    ]
    if any(value is not None for value in final.values()):
        loss = "not finite" if final["train_loss"] is None else formatted(final["train_loss"])
        lines.append(f"  train loss {loss}{_evaluation(final)}{_divergence(summary)}")
    elif summary.get("diverged"):
        lines.append("  diverged")
    if losses := _losses((summary["emulation"] or {}).get("losses")):
        lines.append(f"  {losses}")
    if summary["backend"] == "sim" and summary.get("calibrated"):
        lines.append(f"  {_calibration(summary['calibrated'])}")
    return "\n".join(lines)


def _losses(losses: Any) -> str:
    """The numbers of lost and joined processes, and the measured times; empty if there are none or the entry is unreadable."""
    if not isinstance(losses, Mapping):
        return ""
    phrases = []
    for name, step in (("lost", "detection"), ("joined", None), ("regroups", "regroup")):
        seconds = losses.get(f"{step}_seconds") if step else None
        if isinstance(events := losses.get(name), list) and events:
            time = f" ({step} {formatted(seconds)} s)" if isinstance(seconds, float) else ""
            phrases.append(f"{len(events)} {name}{time}")
    return f"processes: {', '.join(phrases)}" if phrases else ""


def _interval(summary: Mapping[str, Any]) -> str:
    """The 90 % interval of the measured rate, if a calibration gives it."""
    if (spread := spread_of(summary)) is None:
        return ""
    rate = summary["updates_per_second"]
    return f" ({formatted(rate / spread)} … {formatted(rate * spread)}, 90 %)"


def spread_of(summary: Mapping[str, Any]) -> float | None:
    """The factor of a prediction's interval; None for a measured run, or without a calibration."""
    if summary["backend"] != "sim" or not summary.get("calibrated"):
        return None
    spread = summary["calibrated"].get("spread")
    return spread if isinstance(spread, float | int) and spread >= 1 else None


def _calibration(calibration: Mapping[str, Any]) -> str:
    """The known error of the calibration behind a prediction."""
    error = f"{100 * calibration.get('error', math.nan):.1f} %"
    if composed := calibration.get("composed"):
        names = ", ".join(composed)
        return f"the cluster is composed of {names} and was never measured as a whole; mean error of their calibrations: {error}"
    day = calibration.get("date", "an unknown day")
    if errors := calibration.get("tried"):
        return f"calibrated on {day}; its predictions then, against real runs: {signed(errors)}"
    return f"calibrated on {day}; the calibration's own hold-out error: gradients {error}"


def signed(errors: Mapping[str, float]) -> str:
    """Signed errors by method, as text."""
    return ", ".join(f"{method} {100 * error:+.1f} %" for method, error in errors.items()) or "none"


def one_line(summary: Mapping[str, Any]) -> str:
    """A run in half a line, for the runs of a sweep."""
    rate = formatted(summary["updates_per_second"])
    result = f"{_evaluation(summary['final'])}{_divergence(summary)}"
    return f"{summary['num_updates']} updates in {formatted(summary['seconds'])} s, {rate} updates/s{result}"


def _evaluation(final: Mapping[str, float | None]) -> str:
    """The result of the last weights on the test set: the accuracy, if there is one, and a workload's own metrics."""
    accuracy = final["test_accuracy"]
    results = [] if accuracy is None else [f"test accuracy {accuracy:.4f}"]
    results += [f"{in_words(name)} {'not finite' if final[name] is None else formatted(final[name])}" for name in own_metrics(final)]
    return "".join(f", {text}" for text in results)


def in_words(metric: str) -> str:
    """A metric's name for readers."""
    return metric.replace("_", " ")


def _devices(summary: Mapping[str, Any]) -> str:
    """The devices of the ranks, unless all were CPUs."""
    devices = Counter(summary.get("devices") or ["cpu"])
    if [*devices] == ["cpu"]:
        return ""
    return " on " + ", ".join(name if count == 1 else f"{name} ({count} ranks)" for name, count in devices.items())


def _divergence(summary: Mapping[str, Any]) -> str:
    return ", diverged" if summary.get("diverged") else ""


def _dropped_samples(summary: Mapping[str, Any]) -> str:
    dropped = summary["num_samples_discarded"]
    return f" ({dropped} more dropped)" if dropped else ""


def formatted(value: float | None) -> str:
    """Four significant digits; a dash for a missing number."""
    if value is None:
        return "–"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


UNITS = (("d", 86_400.0, 172_800.0), ("h", 3600.0, 3600.0), ("min", 60.0, 120.0), ("s", 1.0, 0.1), ("ms", 1e-3, 0.0))
"""Units of time, the largest first: the name, its seconds, and the least seconds that are written in it."""
SHOWN_SECONDS = 1e-6
"""A shorter time is written as zero."""


def unit_of_time(seconds: float) -> tuple[str, float]:
    """The unit for a column whose smallest time is this one: the name and its seconds."""
    return next((name, size) for name, size, least in UNITS if seconds >= least)


def duration(seconds: float) -> str:
    """A time for readers: 95.1 ms, 12.3 s, 4 min 10 s, 2.7 h, 3.1 d; or a difference of times, such as -12.3 s."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 60 <= seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    name, size = unit_of_time(seconds)
    value = seconds / size if seconds >= SHOWN_SECONDS else 0.0
    return f"{value:.1f} {name}" if 3600 <= seconds < 100 * size else f"{formatted(float(f'{value:.3g}'))} {name}"


def listed_in_words(phrases: Sequence[str]) -> str:
    """Phrases as a list: a, b and c."""
    return " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Increasing numbers as a list: 0, 1, 4 and 7 to 9."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return listed_in_words([text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))])


def _list(sizes: Sequence[int] | Mapping[str, int]) -> str:
    """The sizes, or the smallest and the largest one. Summaries of very many workers contain quantiles."""
    if isinstance(sizes, Mapping):
        return f"{sizes['min']} to {sizes['max']}"
    return " ".join(map(str, sizes)) if len(sizes) <= 16 else f"{min(sizes)} to {max(sizes)}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
