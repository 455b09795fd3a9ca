"""Test the predictions of a calibrated cluster: short runs of three methods, simulated and in real processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from hetsim.cluster.model import Cluster
from hetsim.config.yaml_text import as_yaml
from hetsim.distributed.backend import Processes
from hetsim.errors import RunFailed
from hetsim.results.comparison.findings import ComparedIntervals, compare
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.sim.backend import Simulator
from hetsim.workloads.phantom import PhantomWorkload

METHODS = ("ssgd", "local_sgd", "asgd")
"""Methods with an all-reduce for each gradient, with consecutive gradients, and with a server."""
MOST_SECONDS = 5.0
"""The maximum seconds of each real run."""
MOST_ERROR = 0.1
"""The maximum relative error of a method's updates per second. Above it, the calibration is not trustworthy."""


class TriedMethod(NamedTuple):
    """A method's predicted and measured updates per second, and a clause about the intervals that differ most."""

    method: str
    predicted: float
    measured: float
    where: str

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def doubt(self) -> str | None:
        """A clause that describes the wrong prediction; None if the error is within `MOST_ERROR`."""
        if abs(self.error) <= MOST_ERROR:
            return None
        return f"{self.method} was predicted to make {self.predicted:.3g} updates/s and made {self.measured:.3g}{self.where}"


def real_runs(
    make: Callable[[str], Experiment], backend: Processes, needs_server: Collection[bool], seconds: float, folder: Path
) -> tuple[dict[str, Experiment], list[str]]:
    """Run each method that is possible with these processes, in `folder/METHOD`.

    Returns the experiments whose results this process has, and a clause for each failed run. A failed run does not stop the calibration.
    """
    experiments, failed = {}, []
    for method in METHODS:
        try:
            experiment = replace(
                make(method), budget=Budget(seconds=min(seconds, MOST_SECONDS)), evaluate_every_epochs=1e9, evaluate_every_seconds=None,
                trace="full", logger=None,
            )  # fmt: skip
            backend.check(experiment)
        except ValueError:  # what was asked for does not go with this method
            continue
        if experiment.coordination.needs_server not in needs_server:
            continue
        try:
            if backend.run(experiment, folder / method, as_yaml({"method": method})) is not None:
                experiments[method] = experiment
        except RunFailed as error:
            failed.append(f"{method} could not be tried: {error}")
    return experiments, failed


def predict_runs(real: Mapping[str, Experiment], cluster: Cluster, num_parameters: int, folder: Path) -> list[TriedMethod]:
    """The cluster's predictions for the real runs in `folder`.

    A phantom is simulated, because times do not depend on what is learnt. If data belong to workers, the run's own workload is simulated.
    """
    predictions = []
    for method, experiment in real.items():
        phantom = PhantomWorkload(num_parameters=num_parameters, num_samples=10_000 * experiment.batch_size)
        simulated = replace(experiment, cluster=cluster, workload=experiment.workload if experiment.data == "owned" else phantom)
        predicted = folder / f"{method} predicted"
        Simulator().run(simulated, predicted, as_yaml({"method": method}))
        comparison = compare([predicted], [folder / method])
        rates = [float(side.summaries[0]["updates_per_second"]) for side in comparison.sides.both]
        predictions.append(TriedMethod(method, rates[0], rates[1], _longest(comparison.intervals)))
    return predictions


def _longest(intervals: Sequence[ComparedIntervals]) -> str:
    """The kind of interval whose lengths explain most of the difference."""
    if not intervals:
        return ""
    row = max(intervals, key=lambda row: abs(row.by_length))
    predicted, measured = (1e3 * side.mean_seconds for side in (row.first, row.second))
    return f" (mean {row.name}: {predicted:.3g} ms predicted, {measured:.3g} ms measured)"


def error(predictions: Sequence[TriedMethod]) -> float:
    """The mean absolute error of all predictions."""
    return fmean(abs(prediction.error) for prediction in predictions)
