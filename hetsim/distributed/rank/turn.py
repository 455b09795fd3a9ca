"""The context of an effect in real time, and the form of its answer."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

from hetsim import effects as fx
from hetsim.distributed.communication.transport import Transport

MAIN, SECOND = 0, 1
"""The thread that runs the program, and the thread that runs the effects that the program starts."""


class Turn(NamedTuple):
    """The context of an effect: when it was yielded, and by which transport it reaches the other ranks."""

    at: float
    """In seconds of the host's clock: the end of the effect before, not the moment at which the system woke this thread up."""
    transport: Transport
    """Of the thread: each has its own collectives."""
    version: int
    """The version that the rank had committed when the effect was yielded or started."""
    thread: int = MAIN
    number: tuple[int, int] | None = None
    """Of the collective that is started; None: it is the rank's next one."""


Answered = tuple[Any, float]
"""An effect's answer, and the moment at which it is given, in seconds of the host's clock."""


class StartedEffect(fx.Pending[Any]):
    """A started effect, which the second thread runs."""

    __slots__ = ("future",)

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
