"""The answer about one run: its numbers, workers and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.checks import printable
from hetsim.files.identity import typed_overrides
from hetsim.files.reading import is_number, read_text
from hetsim.files.schema import entry, own_metrics
from hetsim.files.summary_and_curve import NUMBERS, check_has, read_points, read_summary
from hetsim.results.reading.intervals import read_intervals
from hetsim.results.writing.describe import DESCRIBED, formatted, in_words
from hetsim.results.writing.figures import curves, own_style, timeline

BACKENDS = {"sim": "simulated", "dist": "measured in real processes"}
PER_WORKER = {
    # the head of a column: the entry of per_worker in summary.json
    "gradients": "iterations",
    "samples": "samples",
    "computing, s": "compute_seconds",
    "updating, s": "update_seconds",
    "waiting, s": "wait_seconds",
    "absent, s": "down_seconds",
    "mean staleness": "staleness_mean",
}


def answer(run: Path) -> Answer:
    """The answer about the run in this folder. Raises ValueError if it contains none."""
    summary = read_summary(run)
    check_has(run, summary, *DESCRIBED, "per_worker")
    about = f"{summary['method']} on {summary['cluster']}, {summary['workload']}"
    typed = [f"{key}={value}" if value else key for key, value in typed_overrides(run).items()]
    config = run / "config.yaml"
    return Answer(
        question=f"How does {summary['method']} train {summary['workload']} on {summary['cluster']}?",
        answer=list(_sentences(summary)),
        pictures=[
            Picture(
                "timeline", "Who computes, updates, communicates and waits in the first steps", partial(_timeline, run, summary, about)
            ),
            Picture("curve", "What was evaluated during the run", partial(_curves, run, summary, about)),
        ],
        sheets=(
            Sheet("Numbers", ("", "value"), list(_numbers(summary))),
            Sheet("Workers", ("worker", "batch size", *PER_WORKER), list(_workers(summary))),
        ),
        remarks=list(summary.get("warnings", ())),
        command=printable(shlex.join(["hetsim", *typed])),
        texts=[("The resolved config", read_text(config))] if config.exists() else [],
    )


def _sentences(summary: Mapping[str, Any]) -> Iterator[str]:
    backend = BACKENDS.get(summary["backend"], summary["backend"])
    idle = "" if summary["idle_share"] is None else f", with workers idle {100 * summary['idle_share']:.1f} % of the time"
    yield (
        f"{summary['num_updates']} updates in {formatted(summary['seconds'])} s ({backend}): "
        f"{formatted(summary['updates_per_second'])} updates/s and {formatted(summary['samples_per_second'])} samples/s{idle}."
    )
    final = summary["final"]
    accuracy = "" if final["test_accuracy"] is None else f" and the test accuracy {100 * final['test_accuracy']:.2f} %"
    if final["train_loss"] is not None:
        yield f"The last training loss is {formatted(final['train_loss'])}{accuracy}."
    if summary.get("diverged"):
        yield "The training diverged."


def _timeline(run: Path, summary: Mapping[str, Any], about: str) -> Any:
    trace, size = run / "trace.parquet", summary["num_workers"]
    steps = read_intervals(trace, num_workers=size) if trace.exists() else []
    with own_style():
        return timeline([(about, steps)], num_workers=size)


def _curves(run: Path, summary: Mapping[str, Any], about: str) -> Any:
    with own_style():
        return curves([(summary["backend"], [read_points(run)])], title=about)


def _numbers(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, _number(entry(summary, key))) for name, key in NUMBERS.items())
    yield from ((in_words(name), _number(summary["final"][name])) for name in own_metrics(summary["final"]))
    for name, key in {"updates": "num_updates", "samples": "num_samples", "seed": "seed", "workers": "num_workers"}.items():
        yield name, str(summary[key])


def _workers(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    sizes = dict(enumerate(summary["batch_sizes"]))
    for rank, worker in enumerate(summary["per_worker"]):
        yield [str(rank), _number(sizes.get(rank)), *(_number(worker.get(key)) for key in PER_WORKER.values())]


def _number(value: Any) -> str:
    """A number of a summary, which may come from somebody else."""
    return formatted(value) if is_number(value) else "–"
