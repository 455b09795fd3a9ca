"""One run of an advice: composed from words, simulated without a folder, and what a ranking needs of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hetsim.config.build import build_experiment, refuse_unread_rates
from hetsim.config.compose import composed
from hetsim.config.errors import USERS, sentence
from hetsim.config.start import check_download
from hetsim.errors import RunFailed
from hetsim.results.reading.summary_and_curve import LossPoint, time_to
from hetsim.runtime.curve import Point
from hetsim.runtime.experiment import Experiment
from hetsim.sim.backend import Simulation
from hetsim.workloads.task import BYTES

KEPT = (
    *("seconds", "samples_per_second", "updates_per_second", "profile_seconds", "staleness_mean", "idle_share"),
    *("num_workers", "batch_sizes", "diverged"),
)
"""The numbers of a summary that are kept, besides each worker's."""


@dataclass(frozen=True)
class Goal:
    """What training is to reach: a test accuracy, or a training loss."""

    accuracy: float | None = None
    loss: float | None = None

    def __str__(self) -> str:
        return f"test accuracy {self.accuracy:.4g}" if self.accuracy is not None else f"training loss {self.loss:.4g}"


@dataclass(frozen=True)
class Outcome:
    """Numbers of a simulated run, its learning curve (seconds, training loss, test accuracy), and how many samples were applied by then."""

    numbers: dict[str, Any]
    curve: tuple[LossPoint, ...]
    applied: tuple[int, ...] = ()

    def time_to(self, goal: Goal) -> float | None:
        """When it first reached the goal, in seconds of the run's own clock and of measuring before it; None if it never did."""
        seconds = time_to(self.curve, accuracy=goal.accuracy, loss=goal.loss)
        return None if seconds is None else seconds + float(self.numbers["profile_seconds"])

    def distance_to(self, goal: Goal) -> float:
        """How far its best point was from the goal, in the goal's own unit; infinite for a run whose loss is no number in the end.

        A large rate may have a high loss until shortly before it is there.
        """
        if self.last_loss == math.inf:
            return math.inf
        if goal.accuracy is not None:
            return goal.accuracy - max((point[2] for point in self.curve if point[2] is not None), default=0.0)
        return min((point[1] for point in self.curve if point[1] is not None), default=math.inf) - (goal.loss or 0.0)

    def seconds_at(self, samples: float) -> float:
        """The second at which this number of samples had been applied, interpolated between evaluations."""
        for (before, start), (after, end) in pairwise(zip(self.applied, (point[0] for point in self.curve), strict=True)):
            if before <= samples <= after:
                return start + (end - start) * (samples - before) / (after - before or 1)
        return float(self.numbers["seconds"])

    @property
    def last_loss(self) -> float:
        """The training loss at its end; infinite if there is none, or it is no number."""
        loss = self.curve[-1][1] if self.curve else None
        return loss if loss is not None and loss < float("inf") else float("inf")


def simulated(words: Sequence[str], config_dir: str | None) -> Outcome:
    """Simulate what these words describe. ValueError with one sentence if they describe no run, RunFailed if it began and failed."""
    return run(experiment(words, config_dir))


def run(made: Experiment) -> Outcome:
    """The same of an experiment that is made."""
    points: list[Point] = []
    try:
        summary = Simulation(replace(made, watch=points.append)).run()
    except (RunFailed, ValueError):
        raise
    except Exception as error:  # of a module of the user's own, which may quote the value of a variable
        raise RunFailed(f"{type(error).__name__}: {sentence(error)}") from None
    curve = tuple((point.seconds, point.evaluation.train_loss, point.evaluation.test_accuracy) for point in points)
    workers = [{key: worker[key] for key in ("iterations", "samples", "compute_seconds")} for worker in summary["per_worker"]]
    return Outcome({**{key: summary[key] for key in KEPT}, "per_worker": workers}, curve, tuple(point.samples for point in points))


def experiment(words: Sequence[str], config_dir: str | None) -> Experiment:
    """The experiment that these words describe; ValueError with one sentence if they describe none."""
    config, _, typed = composed(words, config_dir=None if config_dir is None else Path(config_dir))
    try:
        refuse_unread_rates(config, typed)
        made, _ = build_experiment(config)
        check_download(made, typed)
    except USERS as error:
        raise ValueError(sentence(error)) from None
    return made


def sizes(words: Sequence[str], config_dir: str | None) -> tuple[int, int]:
    """Of the workload: how many numbers its weights are, those that a model keeps beside its parameters among them; its samples."""
    made = experiment(words, config_dir)
    task, _ = made.load()
    try:
        return task.initial().nbytes // BYTES[made.dtype], task.num_samples
    finally:
        task.close()
