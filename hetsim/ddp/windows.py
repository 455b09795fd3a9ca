"""The time of this rank's steps: from the loop's call for a batch to the last bucket of gradients, without waits for other ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hetsim.ddp.clock import Clock, HostClock
from hetsim.ddp.schedule import Step


@dataclass(frozen=True)
class Window:
    """The steps of this rank from one reduction of the gradients to the next."""

    number: int
    """The number of its last step, counted over all steps since the start."""
    step: Step
    num_steps: int
    epoch: int
    """The number of whole passes over the data after it."""
    start: Any
    end: Any
    """Marks of a clock: `start` is the loop's call for the first batch, `end` is the last bucket of gradients."""
    waits: tuple[tuple[Any, Any], ...] = ()
    """Pairs of marks between which the rank waited for others. They may overlap."""
    measured: bool = True
    """Whether its seconds show the rank's speed."""

    def seconds(self, clock: Clock) -> float:
        """This rank's seconds of computation. They may be zero or negative if a clock cannot distinguish computing from waiting."""
        return clock.seconds(self.end) - clock.seconds(self.start) - self.waited(clock)

    def waited(self, clock: Clock) -> float:
        """The seconds in which the rank waited."""
        known, last = 0.0, clock.seconds(self.start)
        for start, end in sorted((clock.seconds(start), clock.seconds(end)) for start, end in self.waits):
            known, last = known + max(0.0, end - max(start, last)), max(last, end)
        return known


class Windows:
    """The current window of this rank, which may have several backward passes."""

    def __init__(self) -> None:
        self.clock: Clock = HostClock()
        self.measured = True
        """Whether the current window's seconds show the rank's speed."""
        self._start: Any = None
        self._waits: list[tuple[Any, Any]] = []
        self._forward_at: Any = None
        """The mark at which DDP began its forward pass, until the module's forward pass begins."""
        self._over: Window | None = None
        """The finished window, from the last bucket of a backward pass to the next window."""
        self._reduced_at: Any = None
        self._backward = -1
        self._thread: int | None = None
        """The thread of the model."""

    @property
    def is_over(self) -> bool:
        """Whether the gradients of the current window are ready."""
        return self._over is not None

    def use(self, clock: Clock) -> None:
        """Use this clock for marks from now on. An open window begins now."""
        self.clock, self._start = clock, clock.mark()
        self._waits.clear()

    def begin(self, mark: Any) -> None:
        """The loop asks for the first batch of a window."""
        self._start, self._over, self._forward_at, self.measured = mark, None, None, True
        self._waits.clear()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this context, the rank waits for others. A wait in another thread than the model's does not count."""
        start = self.clock.mark() if self._thread in (None, threading.get_ident()) else None
        try:
            yield
        finally:
            if start is not None:
                self._waits.append((start, self.clock.mark()))

    def begin_forward(self, *, receives: bool) -> None:
        """DDP is called. If it receives the buffers of rank 0, it may wait for them."""
        self._forward_at, self._thread = self.clock.mark() if receives else None, threading.get_ident()

    def begin_module(self) -> None:
        """The module is called: by DDP, which now has the buffers, or by the script, without a wait."""
        if self._forward_at is not None:
            self._waits.append((self._forward_at, self.clock.mark()))
            self._forward_at = None

    def begin_reduction(self, backward: int) -> bool:
        """A model's first gradients in this backward pass are ready. Returns whether they are the window's first.

        A backward pass ends when all gradients of all models are reduced.
        """
        before, self._backward = self._backward, backward
        if self._over is None:
            return True
        if backward != before:
            self._waits.append((self._over.end, self._reduced_at))
        return False

    def end(self, number: int, step: Step, num_steps: int, epoch: int) -> Window:
        """All gradients of a backward pass are ready."""
        self._over = Window(number, step, num_steps, epoch, self._start, self.clock.mark(), tuple(self._waits), self.measured)
        return self._over

    def reduced(self) -> Any:
        """The gradients are reduced. Returns the mark of this moment."""
        self._reduced_at = self.clock.mark()
        return self._reduced_at
