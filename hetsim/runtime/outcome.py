"""What watches every run, and what a finished run has to report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hetsim.coordination.state import State
from hetsim.runtime.curve import LearningCurve, Point
from hetsim.runtime.divergence import Divergence
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.history import History
from hetsim.runtime.metrics import Applied, RankActivity
from hetsim.runtime.progress import progress_bars
from hetsim.runtime.recorder import Recorder
from hetsim.vector import Phantom
from hetsim.workloads.task import Task


class Measured(Protocol):
    """Metrics, in whichever form a world has them."""

    @property
    def applied(self) -> Applied:
        """What the versions were made of."""

    @property
    def activity(self) -> Sequence[RankActivity]:
        """By rank, of the workers."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The numbers of a finished run, from whichever world."""

    experiment: Experiment
    start: State
    last: State
    """The state of the last commit."""
    applied: Applied
    activity: Sequence[RankActivity]
    """By rank, of the workers."""
    points: Sequence[Point]
    divergence: Divergence
    num_epochs: float
    """Passes over the data in the samples that are applied in `last`."""
    profile_seconds: float
    """The seconds that measuring the workers took before the run."""

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights have, the statistics of a model's buffers among them."""
        return int(self.last.weights.nbytes // self.last.weights.itemsize)

    @property
    def is_phantom(self) -> bool:
        """Whether nothing was computed."""
        return isinstance(self.last.weights, Phantom)

    @classmethod
    def of(cls, experiment: Experiment, history: History, metrics: Measured, curve: LearningCurve, *, profile_seconds: float) -> Outcome:
        """What these have seen of a run."""
        return cls(
            experiment=experiment, start=history.start, last=history.last, applied=metrics.applied, activity=metrics.activity,
            points=curve.points, divergence=history.divergence,
            num_epochs=history.last.num_samples / history.samples_per_epoch, profile_seconds=profile_seconds,
        )  # fmt: skip


def observed(
    experiment: Experiment, task: Task, metrics: Recorder, recorders: Sequence[Recorder], *, at_once: bool
) -> tuple[LearningCurve, list[Recorder]]:
    """The learning curve of a run, and all that watch its leader: metrics first, as they refuse a run without numbers."""
    epochs, seconds = experiment.evaluate_every_epochs, experiment.evaluate_every_seconds
    curve = LearningCurve(
        task,
        every_samples=math.inf if epochs is None else epochs * task.num_samples,
        every_seconds=math.inf if seconds is None else seconds,
        at_once=at_once,
        watch=experiment.watch,
    )
    return curve, [metrics, curve, *recorders, *progress_bars(experiment, experiment.plan(task).num_positions)]
