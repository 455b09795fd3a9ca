"""Numbers to files, tables and pictures."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim import measures
from hetsim.experiment import RunFailed
from hetsim.history import History, Point
from hetsim.measures import Busy

COMPUTE, STEP, WAIT, INK = "#4878a8", "#e49444", "#e9ecef", "#333333"


@contextlib.contextmanager
def begun(folder: Path, config: str) -> Iterator[None]:
    """The folder of a run under way; its resolved config stands under its name once the run is written."""
    folder.mkdir(parents=True, exist_ok=True)
    _unfinished(folder / "config.yaml").write_text(config, encoding="utf-8")
    try:
        yield
    except BaseException:
        abandon(folder)
        raise


def abandon(folder: Path) -> None:
    """Of a run that did not finish, remove what is half-written, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for unfinished in folder.glob(".*.unfinished"):
            unfinished.unlink(missing_ok=True)
        folder.rmdir()


def check(history: History, busy: Sequence[Busy]) -> None:
    """RunFailed if times were so large that there are no numbers for them."""
    if not all(math.isfinite(seconds) for seconds in (history.applied.seconds, *(worker.compute_seconds for worker in busy))):
        raise RunFailed("the run's clock went beyond all numbers: lower the largest times of the cluster, or the spread of its noise")


def write(
    folder: Path,
    history: History,
    busy: Sequence[Busy],
    *,
    backend: str,
    wall_seconds: float,
    emulation: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Write summary.json, curve.csv and, if asked for, the pictures; the summary."""
    experiment, last = history.experiment, history.last
    final = history.points[-1].evaluation
    warned = list(warnings)
    if final.train_loss is not None and not math.isfinite(final.train_loss):
        warned.append("the training diverged: its loss is not finite; try a lower learning_rate")
    remark = experiment.coordination.remark(last)
    if remark is not None:
        warned.append(remark)
    numbers = measures.summary(history.applied, busy)
    summary = {
        "method": experiment.method,
        "backend": backend,
        "cluster": experiment.cluster.name,
        "workload": experiment.workload.name,
        "seed": experiment.seed,
        "num_workers": experiment.num_workers,
        "num_updates": history.applied.num_updates,
        "num_samples": last.num_samples,
        "num_samples_discarded": last.num_samples_discarded,
        "num_samples_in_flight": last.num_samples_in_flight,
        "seconds": numbers["seconds"],
        "profile_seconds": history.profile_seconds,
        "updates_per_second": numbers["updates_per_second"],
        "samples_per_second": measures.ratio(last.num_samples - history.start.num_samples, numbers["seconds"]),
        "staleness_mean": numbers["staleness_mean"],
        "staleness_max": numbers["staleness_max"],
        "idle_share": numbers["idle_share"],
        "batch_sizes": list(experiment.coordination.allocation.shares(last.allocation)),
        "final": {"train_loss": _finite(final.train_loss), "test_accuracy": _finite(final.test_accuracy)},
        "per_worker": numbers["per_worker"],
        "wall_seconds": wall_seconds,
        "emulation": None if emulation is None else dict(emulation),
        "warnings": warned,
    }
    write_text(folder / "curve.csv", curve(history.points))
    for stale in ("timeline.png", "curve.png", *([] if history.trace.commits else ["trace.parquet"])):
        (folder / stale).unlink(missing_ok=True)  # of an earlier run in the same folder
    if experiment.pictures:
        _pictures(folder, history.points, summary)
    os.replace(_unfinished(folder / "config.yaml"), folder / "config.yaml")
    write_text(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return summary


def write_text(path: Path, text: str) -> None:
    """All of it, or nothing of it."""
    _unfinished(path).write_text(text, encoding="utf-8")
    os.replace(_unfinished(path), path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def curve(points: Sequence[Point]) -> str:
    """The learning curve as CSV; an empty field where the workload has no such number."""
    lines = ["seconds,version,samples,train_loss,test_accuracy"]
    for point in points:
        values = (point.evaluation.train_loss, point.evaluation.test_accuracy)
        lines.append(f"{point.seconds!r},{point.version},{point.samples}," + ",".join("" if v is None else repr(v) for v in values))
    return "\n".join(lines) + "\n"


def describe(summary: Mapping[str, Any]) -> str:
    """A run in five lines."""
    emulation = summary["emulation"]
    place = "this hardware" if emulation is not None and emulation["emulate"] == "none" else summary["cluster"]
    final = summary["final"]
    lines = [
        f"{summary['method']} on {place} ({summary['num_workers']} workers), {summary['workload']}, "
        f"seed {summary['seed']}, backend {summary['backend']}",
        f"  {summary['num_updates']} updates, {summary['num_samples']} samples in {shown(summary['seconds'])} s{_dropped(summary)}: "
        f"{shown(summary['updates_per_second'])} updates/s, {shown(summary['samples_per_second'])} samples/s",
        f"  staleness {shown(summary['staleness_mean'])} on average, {summary['staleness_max']} at most; "
        f"workers idle {shown(_percent(summary['idle_share']))} % of the time; batch sizes {_list(summary['batch_sizes'])}",
    ]
    if final["train_loss"] is not None or final["test_accuracy"] is not None:
        loss = "not finite" if final["train_loss"] is None else shown(final["train_loss"])
        accuracy = "" if final["test_accuracy"] is None else f", test accuracy {final['test_accuracy']:.4f}"
        lines.append(f"  train loss {loss}{accuracy}")
    return "\n".join(lines)


def line(summary: Mapping[str, Any]) -> str:
    """A run in half a line."""
    final = summary["final"]
    accuracy = "" if final["test_accuracy"] is None else f", test accuracy {final['test_accuracy']:.4f}"
    return f"{summary['num_updates']} updates in {shown(summary['seconds'])} s, {shown(summary['updates_per_second'])} updates/s{accuracy}"


def _dropped(summary: Mapping[str, Any]) -> str:
    dropped = summary["num_samples_discarded"]
    return f" ({dropped} more dropped)" if dropped else ""


def shown(value: float | None) -> str:
    """Four significant digits; a dash where there is no number."""
    if value is None:
        return "–"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _list(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes)) if len(sizes) <= 16 else f"{min(sizes)} to {max(sizes)}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _pictures(folder: Path, points: Sequence[Point], summary: Mapping[str, Any]) -> None:
    title = f"{summary['method']} on {summary['cluster']}, {summary['workload']} ({summary['backend']})"
    trace = folder / "trace.parquet"
    if trace.is_file():
        timeline([(title, trace)], folder / "timeline.png", num_workers=summary["num_workers"])
    if any(point.evaluation.train_loss is not None for point in points):
        rows = [(p.seconds, p.evaluation.train_loss, p.evaluation.test_accuracy) for p in points]
        curves([(summary["backend"], rows)], folder / "curve.png", title=title)


def timeline(runs: Sequence[tuple[str, Path]], path: Path, *, num_workers: int) -> None:
    """Who computes, updates and waits in the first steps of one or more runs, one under the other on one time axis."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from pyarrow import parquet

    busy = [_intervals(parquet.read_table(trace, columns=["start", "end", "rank", "kind"])) for _, trace in runs]
    if not all(busy):
        return
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
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.tick_params(length=0, labelsize=9, labelcolor=INK)
        axes.spines[:].set_visible(False)
    axes.set_xlabel("the first steps, in seconds of the run's own clock", fontsize=9, color=INK)
    key = [Patch(color=COMPUTE, label="gradient"), Patch(color=STEP, label="update"), Patch(color=WAIT, label="waiting")]
    figure.legend(handles=key, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def curves(runs: Sequence[tuple[str, Sequence[tuple[float, float | None, float | None]]]], path: Path, *, title: str) -> None:
    """Training loss and test accuracy against the run's own clock, one line a run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
    panels = figure.subplots(1, 2)
    for (name, rows), colour, line in zip(runs, (COMPUTE, STEP), ("-", "--"), strict=False):
        for axes, column in zip(panels, (1, 2), strict=True):
            known = [(row[0], row[column]) for row in rows if row[column] is not None]
            if known:
                axes.plot(*zip(*known, strict=True), line, color=colour, label=name, linewidth=1.8, marker="o", markersize=3)
    for axes, label in zip(panels, ("training loss", "test accuracy"), strict=True):
        axes.set_xlabel("seconds of the run's own clock", fontsize=9, color=INK)
        axes.set_ylabel(label, fontsize=9, color=INK)
        axes.grid(color=WAIT)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
    if all(value is not None and value > 0 for _, rows in runs for _, value, _ in rows):
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))
        panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panels[0].yaxis.set_minor_formatter(NullFormatter())
    if len(runs) > 1:
        panels[1].legend(frameon=False, fontsize=9, loc="lower right")
    _save(figure, path)


def _intervals(table: Any, most: int = 20_000) -> list[tuple[float, float, int, str]]:
    """The first gradients and updates of a trace, whose rows are in no particular order."""
    from pyarrow import compute

    kinds = compute.cast(table["kind"], "string")
    wanted = compute.or_(compute.equal(kinds, "gradient"), compute.equal(kinds, "update"))
    columns = table.filter(wanted).sort_by("start").slice(0, most).to_pydict()
    return list(zip(columns["start"], columns["end"], columns["rank"], columns["kind"], strict=True))


def _first_steps(rows: Sequence[tuple[float, float, int, str]], steps: int = 6) -> float:
    """When the slowest worker has computed its first few gradients."""
    ends: dict[int, list[float]] = {}
    for _, end, rank, kind in rows:
        if kind == "gradient":
            ends.setdefault(rank, []).append(end)
    return max(sorted(times)[:steps][-1] for times in ends.values()) if ends else max(end for _, end, _, _ in rows)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(_unfinished(path), format="png", dpi=130)
    os.replace(_unfinished(path), path)
