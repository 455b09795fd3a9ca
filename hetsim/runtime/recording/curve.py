"""The learning curve of a run: loss and accuracy of some of its versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.recording.recorder import Recorder
from hetsim.vector import Vector
from hetsim.workloads.task import Evaluation, Task


@dataclass(frozen=True)
class Point:
    """A version on the learning curve."""

    seconds: float
    version: int
    samples: int
    evaluation: Evaluation


class LearningCurve(Recorder):
    """Evaluates the first version, the last, and one every `every_samples` applied samples and `every_seconds` of the run's clock.

    These are the first versions at or after each multiple. math.inf means no multiples.
    Weights are immutable, so a version can be evaluated at any time: in virtual time at its commit (`at_once`), and in real time at
    the end of the run. `begins_with_loss` evaluates the first version before the run in real time, too.
    """

    def __init__(
        self,
        task: Task,
        *,
        every_samples: float,
        every_seconds: float = math.inf,
        at_once: bool,
        watch: Callable[[Point], None] | None = None,
        keeps_best: bool = False,
        begins_with_loss: bool = False,
    ) -> None:
        self.task = task
        self.at_once = at_once
        self._watch = watch if at_once else None
        self.points: list[Point] = []
        self._every_samples = every_samples
        self._every_seconds = every_seconds
        self._multiples = (0.0, 0.0)
        self._seconds = 0.0
        self._newest = -1
        self.best: tuple[float, Vector] | None = None
        """With `keeps_best`: the score of the best version, and its weights."""
        self._keeps_best = keeps_best
        self._begins_with_loss = begins_with_loss
        self._unevaluated: list[tuple[float, int, int, Vector]] = []

    def begin(self, start: State) -> None:
        if not self.points and not self._unevaluated:  # otherwise the run continues
            self._add(0.0, start)
            if self._begins_with_loss:
                self._evaluate()

    def initial_loss(self) -> float | None:
        """Return the training loss of the initial weights, or None if it is not evaluated yet."""
        return self.points[0].evaluation.train_loss if self.points else None

    def _keep_if_best(self, weights: Vector) -> None:
        """Compare by test accuracy, or without one by training loss. Of equal versions, the first one counts."""
        evaluation = self.points[-1].evaluation
        accuracy, loss = evaluation.test_accuracy, evaluation.train_loss
        good = accuracy if accuracy is not None else None if loss is None else -loss
        if good is not None and not math.isnan(good) and (self.best is None or good > self.best[0]):
            self.best = good, weights

    def saved(self) -> dict[str, Any]:
        """The points so far, and the weights that are not evaluated yet. For a checkpoint."""
        return {
            "points": tuple(self.points), "unevaluated": tuple(self._unevaluated), "best": self.best,
            "multiples": self._multiples, "newest": self._newest,
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any], *, evaluate: bool = True) -> None:
        """Restore the result of `saved`. `evaluate` evaluates the unevaluated weights now."""
        self.points, self._unevaluated = list(saved["points"]), list(saved["unevaluated"])
        self._multiples, self._newest = saved["multiples"], saved["newest"]
        self.best = saved["best"]
        self._seconds = self._unevaluated[-1][0] if self._unevaluated else self.points[-1].seconds
        if evaluate:
            self._evaluate()

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        self._seconds = seconds
        if self._multiples_at(seconds, state) != self._multiples:
            self._add(seconds, state)

    def close(self, last: State) -> None:
        if last.version != self._newest:
            self._add(self._seconds, last)
        self._evaluate()

    def _add(self, seconds: float, state: State) -> None:
        self._newest = max(self._newest, state.version)
        self._multiples = self._multiples_at(seconds, state)
        self._unevaluated.append((seconds, state.version, state.num_samples, state.weights))
        if self.at_once:
            self._evaluate()

    def _multiples_at(self, seconds: float, state: State) -> tuple[float, float]:
        """How many multiples of each interval have passed."""
        return state.num_samples // self._every_samples, seconds // self._every_seconds

    def _evaluate(self) -> None:
        for seconds, version, samples, weights in self._unevaluated:
            self.points.append(Point(seconds, version, samples, self.task.evaluate(weights)))
            if self._keeps_best:
                self._keep_if_best(weights)
            if self._watch is not None:
                self._watch(self.points[-1])
        self._unevaluated.clear()
