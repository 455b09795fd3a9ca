"""Compute gradients that are due one after another in small batches, for the processor's caches."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from hetsim import effects as fx
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Vector
from hetsim.workloads.task import Task

Compute = Callable[[int, Vector, fx.Batch], tuple[Vector, float]]
"""A function that computes a rank's gradient at these weights over this batch, and its mean loss."""

MAX_BATCHED_GRADIENTS = 8
"""The maximum number of gradients that are computed together."""
CACHE_BYTES = 2**21
"""The maximum bytes of gradients that are computed together, so that they stay in the cache. Larger gradients are computed singly."""


Due = tuple[float, int, RankProcess, fx.Gradient]
"""A gradient's due time, its number, the process in virtual time that waits for it, and its effect."""


class EarlyGradient(NamedTuple):
    """A gradient that was computed before it was due, with its mean loss."""

    process: RankProcess
    gradient: Vector
    loss: float


class GradientBatcher:
    """Computes a few gradients of `task` when the first of them is due. `gradient` computes one from a rank, weights and a batch.

    A gradient depends only on its weights and its batch, so it may be computed at any time between its start and its end. The
    simulation and torch evict each other's code and data from the processor's caches, so alternating between them is slow.
    """

    def __init__(self, task: Task, gradient: Compute) -> None:
        self._gradient = gradient
        self._max_gradients = max(1, min(MAX_BATCHED_GRADIENTS, CACHE_BYTES // max(1, task.initial().nbytes)))
        self._serial = count()
        self._due: list[Due] = []
        self._computed: dict[int, EarlyGradient] = {}  # by number

    def begin(self) -> None:
        """The run begins."""

    def close(self) -> None:
        """The run has ended, in any way."""

    def expect(self, end: float, process: RankProcess, effect: fx.Gradient) -> int:
        """Announce a gradient that ends at this time. Returns a number for requesting it, unless its process is lost before."""
        number = next(self._serial)
        heappush(self._due, (end, number, process, effect))
        return number

    def gradient(self, number: int) -> tuple[Vector, float]:
        """The gradient that is due now, and its mean loss."""
        if number not in self._computed:
            self._computed = {key: early for key, early in self._computed.items() if not early.process.lost}
            self._compute()
        early = self._computed.pop(number)
        return early.gradient, early.loss

    @property
    def num_kept(self) -> int:
        """The number of computed gradients that were not requested yet."""
        return len(self._computed)

    def _compute(self) -> None:
        """Compute the next few gradients, except those of lost processes."""
        due, remaining = self._due, self._max_gradients
        while due and remaining:
            _, number, process, effect = heappop(due)
            if not process.lost:
                self._computed[number] = EarlyGradient(process, *self._gradient(process.rank, effect.at, effect.batch))
                remaining -= 1
