"""Compute gradients in one process at first, and in several if the run is long and they are faster."""

from __future__ import annotations

import math
from time import perf_counter

from hetsim.sim.gradient_batching import Compute
from hetsim.sim.parallel_gradients import ParallelGradients
from hetsim.vector import Vector
from hetsim.workloads.task import Task

BEGIN_SECONDS = 1.0
"""The age of a run at which `auto` forks. Forking takes about 0.03 s, so no run loses more than 3 %."""
HANDING_OVER_SECONDS = 3e-5
"""The approximate time for passing one small gradient to another process."""
WINDOW_SECONDS, WINDOW_GRADIENTS = 0.05, 16
"""The minimum time and number of gradients over which a rate is measured."""
LONG_WINDOW_SECONDS = 2.0
"""If the minimum number of gradients takes longer than this, fewer are enough."""
NUM_SKIPPED, NUM_COMPARED = 2, 3
"""The number of windows that do not count after several processes are in use, and of the windows after them, of which the best counts."""
PAYS = 0.95
"""Several processes stay in use if a gradient takes at most this fraction of its time with one."""


class AutomaticGradients(ParallelGradients):
    """Begins with one process, and uses several if the run is long and they are faster.

    Its measurements change the duration of a run, but none of its numbers.

    Args:
        most: the maximum number of processes.
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
