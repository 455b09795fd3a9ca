"""An optimizer for replicated state. Ranks that take the same step share one computation."""

from __future__ import annotations

from typing import Any

from hetsim.effects import Fragment
from hetsim.vector import Vector
from hetsim.workloads.task import Optimizer


class SharedSteps(Optimizer):
    """An optimizer that computes a step once if consecutive ranks request the same step, with the same objects."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._asked: tuple[Any, Vector, Vector, int | None, Fragment | None] = (None, None, None, None, None)
        self._done: tuple[Any, Vector] = (None, None)

    def initial(self) -> Any:
        return self.optimizer.initial()

    def step(self, memory: Any, weights: Vector, gradient: Vector, epoch: int, fragment: Fragment | None = None) -> tuple[Any, Vector]:
        last_memory, last_weights, last_gradient, *last = self._asked
        if gradient is not last_gradient or weights is not last_weights or memory is not last_memory or last != [epoch, fragment]:
            self._asked = (memory, weights, gradient, epoch, fragment)
            self._done = self.optimizer.step(memory, weights, gradient, epoch, *(() if fragment is None else (fragment,)))
        return self._done
