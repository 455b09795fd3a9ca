"""Computes gradients in one process at first, and in several if the run lasts and they are faster."""

from __future__ import annotations

import math
from time import perf_counter

from hetsim.sim.gradient_batching import Compute
from hetsim.sim.parallel_gradients import ParallelGradients
from hetsim.vector import Vector
from hetsim.workloads.task import Task

BEGIN_SECONDS = 1.0
"""A run is this old before `auto` forks: to fork takes about 0.03 s, so no run loses more than 3 %."""
HANDING_OVER_SECONDS = 3e-5
"""What it takes this process to hand one small gradient over to another, about."""
WINDOW_SECONDS, WINDOW_GRADIENTS = 0.05, 16
"""A rate is of gradients in at least this time, and of at least so many."""
LONG_WINDOW_SECONDS = 2.0
"""A rate is of fewer gradients if so many take longer than this."""
NUM_SKIPPED, NUM_COMPARED = 2, 3
"""Windows after several processes are in use that do not count, and the following ones, of which the best counts."""
PAYS = 0.95
"""Several processes stay if a gradient takes at most this share of the time that it took with one."""


class AutomaticGradients(ParallelGradients):
    """Begins with one process, and takes several into use if the run lasts and they are faster.

    What it measures decides how long the run takes, and no number of it.

    Args:
        most: the number of processes, at most.
    """

    def __init__(self, task: Task, gradient: Compute, most: int) -> None:
        super().__init__(task, gradient, most)
        self._decided = False
        self._begun = False
        self._num_windows = 0
        self._alone_seconds = self._together_seconds = math.inf

    def begin(self) -> None:
        self._started = self._window_start = perf_counter()
        self._num = 0

    def gradient(self, number: int) -> tuple[Vector, float]:
        found = super().gradient(number)
        if not self._decided:
            self._num += 1
            self._measure(perf_counter())
        return found

    def _measure(self, now: float) -> None:
        """Decide at the end of a window."""
        seconds = now - self._window_start
        if seconds < WINDOW_SECONDS or (self._num < WINDOW_GRADIENTS and seconds < LONG_WINDOW_SECONDS):
            return
        each = seconds / self._num
        self._window_start, self._num = now, 0
        if self._helpers:
            self._num_windows += 1
            if self._num_windows > NUM_SKIPPED:
                self._together_seconds = min(self._together_seconds, each)
            if self._num_windows == NUM_SKIPPED + NUM_COMPARED:
                self._decided = True
                if self._together_seconds > PAYS * self._alone_seconds:
                    for helper in self._helpers:
                        self._dismiss(helper)
        elif not self._begun:
            self._alone_seconds = min(self._alone_seconds, each)
            if now - self._started >= BEGIN_SECONDS:
                self._begun = True
                rest = max(0.0, self._alone_seconds - self._least_seconds) + HANDING_OVER_SECONDS
                self.num_processes = min(self.num_processes, 1 + math.ceil(self._least_seconds / rest))
                super().begin()

    def _give_up(self, reason: str) -> None:
        self.close()
        self._decided = True
