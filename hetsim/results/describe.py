"""A run in words, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DESCRIBED = (
    *("method", "cluster", "num_workers", "workload", "seed", "backend", "emulation", "num_updates", "num_samples", "seconds"),
    *("num_samples_discarded", "staleness_max", "batch_sizes"),
)
"""The entries of summary.json that are put in words, besides those that every reader of a run needs."""


def describe(summary: Mapping[str, Any]) -> str:
    """A run in five lines."""
    emulation = summary["emulation"]
    place = "this hardware" if emulation is not None and emulation["emulate"] == "none" else summary["cluster"]
    final = summary["final"]
    lines = [
        f"{summary['method']} on {place} ({summary['num_workers']} workers), {summary['workload']}, "
        f"seed {summary['seed']}, backend {summary['backend']}",
        f"  {summary['num_updates']} updates, {summary['num_samples']} samples in {formatted(summary['seconds'])} s{_dropped(summary)}: "
        f"{formatted(summary['updates_per_second'])} updates/s, {formatted(summary['samples_per_second'])} samples/s",
        f"  staleness {formatted(summary['staleness_mean'])} on average, {summary['staleness_max']} at most; "
        f"workers idle {formatted(_percent(summary['idle_share']))} % of the time; batch sizes {_list(summary['batch_sizes'])}",
    ]
    if final["train_loss"] is not None or final["test_accuracy"] is not None:
        loss = "not finite" if final["train_loss"] is None else formatted(final["train_loss"])
        accuracy = "" if final["test_accuracy"] is None else f", test accuracy {final['test_accuracy']:.4f}"
        lines.append(f"  train loss {loss}{accuracy}")
    return "\n".join(lines)


def one_line(summary: Mapping[str, Any]) -> str:
    """A run in half a line, for the runs of a sweep."""
    final = summary["final"]
    accuracy = "" if final["test_accuracy"] is None else f", test accuracy {final['test_accuracy']:.4f}"
    rate = formatted(summary["updates_per_second"])
    return f"{summary['num_updates']} updates in {formatted(summary['seconds'])} s, {rate} updates/s{accuracy}"


def _dropped(summary: Mapping[str, Any]) -> str:
    dropped = summary["num_samples_discarded"]
    return f" ({dropped} more dropped)" if dropped else ""


def formatted(value: float | None) -> str:
    """Four significant digits; a dash where there is no number."""
    if value is None:
        return "–"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _list(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes)) if len(sizes) <= 16 else f"{min(sizes)} to {max(sizes)}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
