"""Detect at each commit whether a run's training diverges, from the losses that are reported with the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hetsim.coordination.bookkeeping.contributions import SynchronousContributions, mean_loss
from hetsim.effects import Contribution


class Divergence:
    """A run diverges once its training loss is not finite, or stays above its initial value for a whole epoch.

    The loss of a version is the mean over its contributions, as far as the leader has their losses. A server has the losses of all
    workers. Without a server, a rank has those of its own batches. The initial value is the training loss of the initial
    weights if it is evaluated, otherwise the loss of the first global batch.
    """

    def __init__(self, samples_per_epoch: int, *, num_samples: int = 0, initial_loss: Callable[[], float | None] = lambda: None) -> None:
        """For a run that begins after `num_samples` samples (above 0 if it resumes). `initial_loss` returns None if it is unknown."""
        self._num_samples = num_samples
        self.reason: str | None = None
        """The reason and version of the divergence; None if the run has not diverged."""
        self.version: int | None = None
        self._samples_per_epoch = samples_per_epoch
        self._initial_loss = initial_loss
        self._first: float | None = None
        self._num_samples_not_above = num_samples

    def observe(self, version: int, num_samples: int, applied: Sequence[Contribution]) -> bool:
        """Whether the run has diverged. This version has these contributions, and `num_samples` samples have been applied."""
        if self.reason is not None or num_samples == self._num_samples:  # of a version without samples nobody has a loss
            return self.reason is not None
        self._num_samples = num_samples
        loss = mean_loss(applied)
        if self._first is None:
            self._first = self._initial_loss()
        if self._first is None or not math.isfinite(self._first):
            self._first = applied.rounds[0].loss if isinstance(applied, SynchronousContributions) else loss
        if not math.isfinite(loss):
            self._diverge(version, f"its loss was not finite at version {version}")
        elif loss <= self._first:
            self._num_samples_not_above = num_samples
        elif num_samples - self._num_samples_not_above >= self._samples_per_epoch:
            self._diverge(version, f"its loss was above the initial loss, {self._first:.4g}, for a whole epoch until version {version}")
        return self.reason is not None

    def saved(self) -> tuple[Any, ...]:
        """The state of the detection. For a checkpoint."""
        return self.reason, self.version, self._first, self._num_samples_not_above

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Restore the result of `saved`."""
        self.reason, self.version, self._first, self._num_samples_not_above = saved

    def _diverge(self, version: int, reason: str) -> None:
        self.reason, self.version = reason, version
