"""The context of an effect in real time, and the form of its answer."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

from hetsim import effects as fx
from hetsim.distributed.communication.transport import Transport

MAIN, SECOND = 0, 1
"""The thread that runs the program, and the thread that runs the effects that the program starts."""


class Turn(NamedTuple):
    """The context of an effect: its time, and the transport to the other ranks."""

    at: float
    """The end of the previous effect in seconds of the host's clock, and not the time at which this thread woke up."""
    transport: Transport
    """The thread's transport. Each thread has separate collectives."""
    version: int
    """The version that the rank had committed when the effect was yielded or started."""
    thread: int = MAIN
    number: tuple[int, int] | None = None
    """The number of a started collective; None: it is the rank's next one."""


Answered = tuple[Any, float]
"""An effect's answer, and the time of the answer, in seconds of the host's clock."""


class StartedEffect(fx.Pending[Any]):
    """A started effect, which the second thread runs."""

    __slots__ = ("future",)

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
