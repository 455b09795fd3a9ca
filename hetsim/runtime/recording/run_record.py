"""The record of a run in every world: its workers' activity and its versions, from the beginning or the resume."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.curve import LearningCurve
from hetsim.runtime.recording.history import History
from hetsim.runtime.recording.metrics import Applied, RankActivity
from hetsim.runtime.recording.outcome import PoolUse, RunOutcome
from hetsim.runtime.recording.progress import progress_bars
from hetsim.runtime.recording.recorder import Recorder


class RunMetrics(Protocol):
    """Metrics, in the form of a world."""

    @property
    def applied(self) -> Applied:
        """The contributions to the versions."""

    @property
    def activity(self) -> Sequence[RankActivity]:
        """The activity of the workers by rank, after the run."""

    def by_rank(self) -> Sequence[RankActivity]:
        """The activity of the workers by rank, so far."""

    def restore(self, activity: Sequence[RankActivity]) -> None:
        """Continue from earlier activity."""


class RunRecord:
    """The metrics, the learning curve and the history of a prepared run. `recorders` observe its versions after the metrics and the curve.

    On a rank that does not lead, it is a copy that shows and evaluates nothing. `keeps`: whether checkpoints are kept.
    """

    def __init__(
        self, prepared: Preparation, metrics: Any, recorders: Sequence[Recorder], *, at_once: bool, keeps: bool, leads: bool = True
    ) -> None:
        experiment, task, resumed = prepared.experiment, prepared.task, prepared.checkpoint
        epochs, seconds = experiment.evaluate_every_epochs, experiment.evaluate_every_seconds
        self.experiment = experiment
        self.leads = leads
        """Whether this rank decides and its versions count."""
        self.metrics: RunMetrics = metrics
        self.curve = LearningCurve(
            task,
            every_samples=math.inf if epochs is None else epochs * task.num_samples,
            every_seconds=math.inf if seconds is None else seconds,
            at_once=at_once,
            watch=experiment.watch,
            keeps_best=experiment.save_weights == "best",
            begins_with_loss=leads and experiment.stop_when_diverged,
        )
        self.profile_seconds = prepared.profile.total_seconds
        if resumed.progress:
            metrics.restore(activity_of(resumed, experiment.num_workers, experiment.coordination.num_ahead))
            metrics.applied.restore(resumed.progress["applied"])
            self.curve.restore(resumed.progress["curve"], evaluate=leads)
        bars = progress_bars(experiment, prepared.plan.num_positions) if leads and experiment.watch is None else []
        observers = [metrics, self.curve, *recorders, *bars]  # metrics first, as they refuse a run without numbers
        self.history = History(prepared.start, prepared.stop, observers, keeps=keeps, initial_loss=self.curve.initial_loss)
        if resumed.progress:
            self._restore_history(resumed.progress)
        saved = {state.rank: state.num_gradients for state in resumed.ranks}
        self.num_gradients_before: Sequence[int] = [saved.get(rank, 0) for rank in range(experiment.num_workers)]
        """The number of each worker's gradients that were applied before the resume: the positions of their time streams."""
        self._counted_before = self.metrics.applied.num_gradients

    def num_gradients(self) -> list[int]:
        """The number of each worker's applied gradients, including those before a resume."""
        counted = zip(self.num_gradients_before, self.metrics.applied.num_gradients, self._counted_before, strict=True)
        return [earlier + now - then for earlier, now, then in counted]

    def progress(self) -> dict[str, Any]:
        """The progress of the leader's recorders at one of its commits. For a checkpoint."""
        return {
            "applied": self.metrics.applied.saved(),
            "curve": self.curve.saved(),
            "divergence": self.history.divergence.saved(),
            "profile_seconds": self.profile_seconds,
            "first_sample": self.history.start.num_samples,
        }

    def progress_until(self, seconds: Sequence[float]) -> dict[str, Any]:
        """The progress, with each worker's activity until its commit at this time."""
        return {**self.progress(), "activity": activity_until(self.metrics.by_rank(), seconds)}

    def restore(self, progress: Mapping[str, Any], num_gradients: Sequence[int]) -> None:
        """On a copy: continue from the leader's progress, and from each worker's number of applied gradients."""
        self.metrics.applied.restore(progress["applied"])
        self.curve.restore(progress["curve"], evaluate=False)
        self._restore_history(progress)
        self.num_gradients_before, self._counted_before = num_gradients, self.metrics.applied.num_gradients

    def roll_back(self, progress: Mapping[str, Any]) -> None:
        """Continue from an earlier progress of this run. The activity of the workers stays."""
        self.metrics.applied.restore(progress["applied"])
        self.curve.restore(progress["curve"], evaluate=False)
        self._restore_history(progress)

    def _restore_history(self, progress: Mapping[str, Any]) -> None:
        self.profile_seconds = progress.get("profile_seconds", self.profile_seconds)
        self.history.divergence.restore(progress["divergence"])
        self.history.start = self.history.start.evolve(num_samples=progress["first_sample"])

    def outcome(self, absent: Collection[int] = (), *, num_restarts: int = 0) -> RunOutcome:
        """The outcome of the finished run. `absent` workers were absent at its end."""
        history = self.history
        return RunOutcome(
            experiment=self.experiment, start=history.start, last=history.last,
            applied=self.metrics.applied, activity=self.metrics.activity,
            points=self.curve.points, curve=self.curve, divergence=history.divergence,
            num_epochs=history.last.num_samples / history.samples_per_epoch, profile_seconds=self.profile_seconds,
            pools=PoolUse.of_run(self.curve.task.pools, history.last, absent), num_restarts=num_restarts,
        )  # fmt: skip


def activity_until(activity: Sequence[RankActivity], seconds: Sequence[float]) -> tuple[dict[str, Any], ...]:
    """Each worker's activity until its commit."""
    cut = []
    for worker, moment in zip(activity, seconds, strict=False):
        copy = RankActivity.of_numbers(worker.as_numbers(), worker.num_ahead)
        copy.cut(moment)
        cut.append({**copy.as_numbers(), "recent": tuple(copy.recent)})
    return tuple(cut)


def activity_of(checkpoint: Checkpoint, num_workers: int, num_ahead: int) -> list[RankActivity]:
    """Each worker's activity before this checkpoint. A new worker was absent until then."""
    saved: Sequence[Mapping[str, Any]] = checkpoint.progress.get("activity", ())
    activity = [RankActivity.of_numbers(numbers, num_ahead) for numbers in saved[:num_workers]]
    return [*activity, *(RankActivity(num_ahead=num_ahead, down_seconds=checkpoint.began) for _ in range(num_workers - len(activity)))]
