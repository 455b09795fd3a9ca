"""What is timed of this rank: from the loop's call for a batch to the last bucket of gradients, less what it waited for others."""

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
    """Of its last step, in all that were handed to the loop since the start."""
    step: Step
    num_steps: int
    epoch: int
    """The whole passes over the data that are over with it."""
    start: Any
    end: Any
    """Marks of a clock: the loop asked for the first batch; the last bucket of gradients was ready."""
    waits: tuple[tuple[Any, Any], ...] = ()
    """Between these marks, which may overlap, the rank waited for others."""
    measured: bool = True
    """Whether its seconds say how fast the rank is."""

    def seconds(self, clock: Clock) -> float:
        """What this rank took to compute. It may be zero or less where a clock cannot tell computing from waiting."""
        return clock.seconds(self.end) - clock.seconds(self.start) - self.waited(clock)

    def waited(self, clock: Clock) -> float:
        """The seconds in which it waited."""
        known, last = 0.0, clock.seconds(self.start)
        for start, end in sorted((clock.seconds(start), clock.seconds(end)) for start, end in self.waits):
            known, last = known + max(0.0, end - max(start, last)), max(last, end)
        return known


class Windows:
    """The present window of this rank, which may have several backward passes."""

    def __init__(self) -> None:
        self.clock: Clock = HostClock()
        self.measured = True
        """Whether the present window says how fast the rank is."""
        self._start: Any = None
        self._waits: list[tuple[Any, Any]] = []
        self._forward_at: Any = None
        """From where DDP begins its forward pass until it begins the module's."""
        self._over: Window | None = None
        """From the last bucket of a backward pass to the next window."""
        self._reduced_at: Any = None
        self._backward = -1
        self._thread: int | None = None
        """The model's."""

    @property
    def is_over(self) -> bool:
        """Whether the gradients of the present window are ready."""
        return self._over is not None

    def use(self, clock: Clock) -> None:
        """Marks are this clock's from now on; a window that is open begins now."""
        self.clock, self._start = clock, clock.mark()
        self._waits.clear()

    def begin(self, mark: Any) -> None:
        """The loop asks for the first batch of a window."""
        self._start, self._over, self._forward_at, self.measured = mark, None, None, True
        self._waits.clear()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The rank waits for others within; in another thread than the model's, that is no wait of the loop."""
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
        """The module itself is called: by DDP, which has its buffers by now, or by the script, which has not waited."""
        if self._forward_at is not None:
            self._waits.append((self._forward_at, self.clock.mark()))
            self._forward_at = None

    def begin_reduction(self, backward: int) -> bool:
        """A model's first gradients in the backward pass of this number are ready. Whether they are the window's first.

        A pass ends by waiting until all gradients are reduced, also those of several models.
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
        """The gradients are reduced; the mark of it."""
        self._reduced_at = self.clock.mark()
        return self._reduced_at
