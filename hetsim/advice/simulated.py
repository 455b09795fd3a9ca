"""One run of an advice: composed from arguments, simulated without a folder, with the numbers for the ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hetsim.config.build import build_experiment
from hetsim.config.compose import composed
from hetsim.config.errors import USERS, sentence
from hetsim.config.start import check_download
from hetsim.errors import RunFailed
from hetsim.files.summary_and_curve import LossPoint, time_to
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.curve import Point
from hetsim.sim.backend import Simulation
from hetsim.workloads.task import BYTES

KEPT = (
    *("seconds", "samples_per_second", "updates_per_second", "profile_seconds", "staleness_mean", "idle_share"),
    *("num_workers", "batch_sizes", "diverged"),
)
"""The numbers of a summary that are kept, besides each worker's numbers."""


@dataclass(frozen=True)
class Goal:
    """The goal of training: a test accuracy or a training loss."""

    accuracy: float | None = None
    loss: float | None = None

    def __str__(self) -> str:
        return f"test accuracy {self.accuracy:.4g}" if self.accuracy is not None else f"training loss {self.loss:.4g}"


@dataclass(frozen=True)
class SimulatedRun:
    """The numbers of a simulated run, its learning curve (seconds, training loss, test accuracy), and the applied samples at each point."""

    numbers: dict[str, Any]
    curve: tuple[LossPoint, ...]
    applied: tuple[int, ...] = ()

    def time_to(self, goal: Goal) -> float | None:
        """The time to the goal, in seconds of the run's clock and of measurements before it; None if the run never reached it."""
        seconds = time_to(self.curve, accuracy=goal.accuracy, loss=goal.loss)
        return None if seconds is None else seconds + float(self.numbers["profile_seconds"])

    def distance_to(self, goal: Goal) -> float:
        """The distance of the run's best point from the goal, in the goal's unit; infinite for a run whose last loss is not finite.

        With a large rate, the loss may stay high until shortly before the goal.
        """
        if self.last_loss == math.inf:
            return math.inf
        if goal.accuracy is not None:
            return goal.accuracy - max((point[2] for point in self.curve if point[2] is not None), default=0.0)
        return min((point[1] for point in self.curve if point[1] is not None), default=math.inf) - (goal.loss or 0.0)

    def seconds_at(self, samples: float) -> float:
        """The second at which this number of samples was applied, interpolated between evaluations."""
        for (earlier, start), (later, end) in pairwise(zip(self.applied, (point[0] for point in self.curve), strict=True)):
            if earlier <= samples <= later:
                return start + (end - start) * (samples - earlier) / (later - earlier or 1)
        return float(self.numbers["seconds"])

    @property
    def last_loss(self) -> float:
        """The last training loss; infinite if it is missing or not finite."""
        loss = self.curve[-1][1] if self.curve else None
        return loss if loss is not None and loss < float("inf") else float("inf")


def simulate(words: Sequence[str], config_dir: str | None) -> SimulatedRun:
    """Simulate the run of these arguments. Raises ValueError if they are invalid, and RunFailed if the run began and failed."""
    return run(experiment_of(words, config_dir))


def run(experiment: Experiment) -> SimulatedRun:
    """Simulate an experiment, as `simulate` does."""
    points: list[Point] = []
    try:
        summary = Simulation(replace(experiment, watch=points.append)).run()
    except (RunFailed, ValueError):
        raise
    except Exception as error:  # of a module of the user's own, which may quote the value of a variable
        raise RunFailed(f"{type(error).__name__}: {sentence(error)}") from None
    curve = tuple((point.seconds, point.evaluation.train_loss, point.evaluation.test_accuracy) for point in points)
    workers = [{key: worker[key] for key in ("iterations", "samples", "compute_seconds")} for worker in summary["per_worker"]]
    return SimulatedRun({**{key: summary[key] for key in KEPT}, "per_worker": workers}, curve, tuple(point.samples for point in points))


def experiment_of(words: Sequence[str], config_dir: str | None) -> Experiment:
    """The experiment of these arguments. Raises ValueError if they are invalid."""
    config = composed(words, config_dir=config_dir, folder=".")
    try:
        experiment, _ = build_experiment(config.entries)
        check_download(experiment, config.words)
    except USERS as error:
        raise ValueError(sentence(error)) from None
    return experiment


def sizes(words: Sequence[str], config_dir: str | None) -> tuple[int, int]:
    """The length of the workload's weights, including the model's statistics, and its number of samples."""
    experiment = experiment_of(words, config_dir)
    task, _ = experiment.load()
    try:
        return task.initial().nbytes // BYTES[experiment.dtype], task.num_samples
    finally:
        task.close()
