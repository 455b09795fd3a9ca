"""What all ranks did, added up as arrays by rank."""

from __future__ import annotations

from collections import deque

import numpy as np

from hetsim.runtime.metrics import RECENT, RankActivity
from hetsim.sim.lockstep.times import Counts, Seconds


class VectorizedActivity:
    """What all ranks did, added up, and the latest intervals: the numbers of N `RankActivity`."""

    def __init__(self, num_workers: int, num_ahead: int) -> None:
        self.num_ahead = num_ahead
        self.iterations = np.zeros(num_workers, np.int64)
        self.samples = np.zeros(num_workers, np.int64)
        self.compute_seconds = np.zeros(num_workers)
        self.update_seconds = np.zeros(num_workers)
        self._recent: deque[tuple[bool, Seconds, Seconds, Counts]] = deque(maxlen=RECENT * num_ahead)

    def gradient(self, start: Seconds, end: Seconds, samples: Counts) -> None:
        """Those who have samples computed a gradient; of the others the interval is empty."""
        self.iterations += samples > 0
        self.samples += samples
        self.compute_seconds += end - start
        self._recent.append((True, start, end, samples))

    def update(self, start: Seconds, end: Seconds) -> None:
        """Those whose interval is not empty took an optimizer step."""
        self.update_seconds += end - start
        self._recent.append((False, start, end, np.zeros_like(self.samples)))

    def each(self) -> list[RankActivity]:
        """By rank."""
        everyone = [RankActivity(num_ahead=self.num_ahead) for _ in self.samples]
        for name in ("iterations", "samples", "compute_seconds", "update_seconds"):
            for busy, number in zip(everyone, getattr(self, name).tolist(), strict=True):
                setattr(busy, name, number)
        for is_gradient, *arrays in self._recent:
            for busy, start, end, count in zip(everyone, *(array.tolist() for array in arrays), strict=True):
                if end > start:
                    busy.recall(is_gradient, start, end, count)
        return everyone
