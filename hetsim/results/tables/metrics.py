"""The numbers by which `hetsim-table` compares runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetsim.files.summary_and_curve import value_at
from hetsim.results.reading.finished_runs import FinishedRun
from hetsim.results.tables.estimates import Number


@dataclass(frozen=True)
class Target:
    """The target at which runs are compared: a test accuracy, a training loss, or a time in seconds of the run's clock; else None."""

    accuracy: float | None = None
    loss: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Metric:
    """A metric: the head of its column, whether more is better, the scale of its intervals, and a function that returns a run's number."""

    head: str
    higher: bool
    scale: str
    number: Callable[[FinishedRun, Target], Number]
    printed: bool = True
    """Whether the Markdown table contains the metric. It always contains the ranking's metric. CSV and Parquet contain all metrics."""
    of_time: bool = False
    """Whether the metric is proportional to the machines' predicted speed, or to its inverse."""


def _entry(key: str) -> Callable[[FinishedRun, Target], Number]:
    """A number of the summary."""
    return lambda run, _: run.summary[key]


def _final(name: str) -> Callable[[FinishedRun, Target], Number]:
    """A number of the last evaluation."""
    return lambda run, _: run.summary["final"].get(name)


def _time_to(wanted: str) -> Callable[[FinishedRun, Target], Number]:
    def number(run: FinishedRun, target: Target) -> Number:
        goal = getattr(target, wanted)
        return None if goal is None else run.time_to(**{wanted: goal})

    return number


def _value_at_time(column: int) -> Callable[[FinishedRun, Target], Number]:
    def number(run: FinishedRun, target: Target) -> Number:
        return None if target.seconds is None else value_at(run.points, target.seconds, column)

    return number


METRICS = {
    "seconds_to_accuracy": Metric("seconds to {accuracy:.4g}", False, "logarithmic", _time_to("accuracy"), of_time=True),
    "seconds_to_loss": Metric("seconds to loss {loss:.4g}", False, "logarithmic", _time_to("loss"), of_time=True),
    "accuracy_at_seconds": Metric("accuracy at {seconds:g} s", True, "share", _value_at_time(2)),
    "loss_at_seconds": Metric("loss at {seconds:g} s", False, "logarithmic", _value_at_time(1)),
    "samples_per_second": Metric("samples/s", True, "logarithmic", _entry("samples_per_second"), of_time=True),
    "updates_per_second": Metric("updates/s", True, "logarithmic", _entry("updates_per_second"), of_time=True),
    "seconds": Metric("seconds", False, "logarithmic", _entry("seconds"), printed=False, of_time=True),
    "staleness_mean": Metric("staleness", False, "from zero", _entry("staleness_mean")),
    "staleness_p50": Metric("staleness p50", False, "from zero", _entry("staleness_p50"), printed=False),
    "staleness_p95": Metric("staleness p95", False, "from zero", _entry("staleness_p95")),
    "staleness_max": Metric("staleness at most", False, "from zero", _entry("staleness_max")),
    "idle_share": Metric("idle share", False, "share", _entry("idle_share")),
    "final_accuracy": Metric("final accuracy", True, "share", _final("test_accuracy")),
    "final_loss": Metric("final loss", False, "logarithmic", _final("train_loss")),
}


def metrics_of(runs: Iterable[FinishedRun], *, higher: str | None = None) -> dict[str, Metric]:
    """The metrics above, and the users' own metrics as `final.NAME`. For own metrics, less is better unless they are in `higher`."""
    own_metrics = dict.fromkeys(name for run in runs for name in run.summary["final"] if name not in ("train_loss", "test_accuracy"))
    own = {f"final.{name}": Metric(f"final {name}", f"final.{name}" == higher, "from zero", _final(name)) for name in own_metrics}
    return METRICS | own
