"""Gradients that are due one after the other, computed a few at a time."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from hetsim import effects as fx
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Vector
from hetsim.workloads.task import Task

TOGETHER = 8
"""Gradients computed together at the most,"""


SPACE = 2**21
"""and the bytes that they may take: in the cache that they are to stay in, and of a larger model one is computed at a time."""


class Computed(NamedTuple):
    """A gradient that is not due yet, with its mean loss."""

    process: RankProcess
    gradient: Vector
    loss: float


class GradientBatcher:
    """Computes gradients when the first of a few is due.

    What a gradient is hangs on its weights and its batch alone, so it may be computed at any time between. The simulation and
    torch push each other's code and data out of the processor's caches: in turn, each takes longer than by itself.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._most = max(1, min(TOGETHER, SPACE // max(1, task.initial().nbytes)))
        self._serial = count()
        self._due: list[tuple[float, int, RankProcess, fx.Gradient]] = []
        self._computed: dict[int, Computed] = {}  # by their numbers

    def expect(self, end: float, process: RankProcess, effect: fx.Gradient) -> int:
        """It will be asked for at this moment, by the number that is answered, unless the player is lost before."""
        number = next(self._serial)
        heappush(self._due, (end, number, process, effect))
        return number

    def gradient(self, number: int) -> tuple[Vector, float]:
        """The gradient that is due now, and its mean loss."""
        if number not in self._computed:
            self._computed = {key: its for key, its in self._computed.items() if not its.process.lost}
            self._compute()
        its = self._computed.pop(number)
        return its.gradient, its.loss

    def _compute(self) -> None:
        """The next few: on a node that is gone none ever is."""
        due, left = self._due, self._most
        while due and left:
            _, number, process, effect = heappop(due)
            if not process.lost:
                self._computed[number] = Computed(process, *self.task.gradient(effect.at, effect.batch))
                left -= 1
