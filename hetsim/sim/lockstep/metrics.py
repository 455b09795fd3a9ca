"""The metrics of all ranks, added up as arrays by rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.recording.metrics import RECENT_INTERVALS, Applied, RankActivity, WeightsOf, check_finite, summary
from hetsim.runtime.recording.recorder import Recorder
from hetsim.sim.lockstep.times import Counts, Seconds

SUMS = ("iterations", "samples", "compute_seconds", "update_seconds", "down_seconds")
"""The arrays, in the order of the fields of `RankActivity`."""


class VectorizedMetrics(Recorder):
    """The same numbers as `Metrics`, from the intervals of all ranks at once, as arrays."""

    def __init__(self, num_workers: int, *, num_ahead: int, weights: WeightsOf | None = None) -> None:
        self.num_ahead = num_ahead
        self.applied = Applied(num_workers, weights)
        self.iterations = np.zeros(num_workers, np.int64)
        self.samples = np.zeros(num_workers, np.int64)
        self.compute_seconds = np.zeros(num_workers)
        self.update_seconds = np.zeros(num_workers)
        self.down_seconds = np.zeros(num_workers)
        self._recent: deque[tuple[bool, Seconds, Seconds, Counts]] = deque(maxlen=RECENT_INTERVALS * num_ahead)
        self._activity: list[RankActivity] | None = None

    def gradient(self, start: Seconds, end: Seconds, samples: Counts) -> None:
        """The ranks with samples computed a gradient; the intervals of the others are empty."""
        self.iterations += samples > 0
        self.samples += samples
        self.compute_seconds += end - start
        self._recent.append((True, start, end, samples))

    def update(self, start: Seconds, end: Seconds) -> None:
        """The ranks with a non-empty interval took an optimizer step."""
        self.update_seconds += end - start
        self._recent.append((False, start, end, np.zeros_like(self.samples)))

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        self.applied.commit(seconds, applied)

    def close(self, last: State) -> None:
        check_finite(self.applied, self.activity)

    @property
    def activity(self) -> list[RankActivity]:
        """The activity of each rank until the last commit, after the run."""
        if self._activity is None:
            self._activity = self._activity_until(self.applied.seconds)
        return self._activity

    def restore(self, activity: Sequence[RankActivity]) -> None:
        """Continue from the ranks' earlier activity. In lockstep, only ranks that did not exist before have absences."""
        for name in SUMS:
            getattr(self, name)[:] = [getattr(rank_activity, name) for rank_activity in activity]

    def summary(self) -> dict[str, Any]:
        """Rates, staleness and idle times, up to the last commit."""
        return summary(self.applied, self.activity)

    def _activity_until(self, seconds: float) -> list[RankActivity]:
        """The activity of all ranks without the latest intervals, cut as by `RankActivity.cut`."""
        numbers = {name: getattr(self, name).copy() for name in SUMS}
        for is_gradient, start, end, samples in self._recent:
            removed = end - np.maximum(start, seconds)
            late = removed > 0
            numbers["compute_seconds" if is_gradient else "update_seconds"][late] -= removed[late]
            numbers["iterations"] -= late & is_gradient
            numbers["samples"][late] -= samples[late]
        return self._activity_of(numbers)

    def _activity_of(self, numbers: Mapping[str, NDArray[Any]]) -> list[RankActivity]:
        """The activity of all ranks with these sums."""
        columns = [numbers[name].tolist() for name in SUMS]
        new_activity: Any = partial(RankActivity, num_ahead=self.num_ahead)
        return [new_activity(*row) for row in zip(*columns, strict=True)]

    def by_rank(self) -> list[RankActivity]:
        """The activity of each rank so far."""
        ranks = self._activity_of({name: getattr(self, name) for name in SUMS})
        for is_gradient, *arrays in self._recent:
            name, iterations = ("compute_seconds", 1) if is_gradient else ("update_seconds", 0)
            for activity, start, end, samples in zip(ranks, *(array.tolist() for array in arrays), strict=True):
                if end > start:
                    activity.recent.append((name, start, end, iterations, samples))
        return ranks
