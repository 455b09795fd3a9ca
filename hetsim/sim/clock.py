"""SimPy's clock and queue of events, with a shortcut for what happens most: one function that is called once, later."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from simpy import Environment
from simpy.core import EmptySchedule, StopSimulation
from simpy.events import NORMAL, Event, EventPriority

Callback = Callable[[Any], None]


class Suspended:
    """A performer's word that the answer comes later, through `callback`."""


SUSPENDED: Final = Suspended()


class Clock(Environment):
    """SimPy's environment: events of any kind happen in order of time, and at the same time in order of their scheduling.

    An entry of its queue is (time, priority, serial, then, answer): `callback(answer)` is to be called. That is all it takes to be
    called later; a Timeout with one callback would cost three times as much. Of an event, what is called is its callbacks.
    """

    __slots__ = ("now",)

    now: float  # read at every turn, and a property costs more than what it is read for
    _queue: list[Any]

    def __init__(self) -> None:
        super().__init__(0.0)

    @property
    def _now(self) -> float:
        """The moment, by the name that SimPy has for it."""
        return self.now

    @_now.setter
    def _now(self, now: float) -> None:
        self.now = now

    def after(self, seconds: float, callback: Callback, answer: Any = None) -> Any:
        """Call `callback(answer)` so many virtual seconds from now."""
        heappush(self._queue, (self.now + seconds, NORMAL, next(self._eid), callback, answer))
        return SUSPENDED

    def at(self, moment: float, callback: Callback, answer: Any = None, priority: int = NORMAL) -> Any:
        """Call `callback(answer)` at this moment, of SimPy's priority: NORMAL, or URGENT, before what is NORMAL."""
        heappush(self._queue, (moment, priority, next(self._eid), callback, answer))
        return SUSPENDED

    def next_too(self, callback: Callback) -> Any:
        """What `callback` would be called with next, taken out of the queue, if that is what happens next in this moment; or None."""
        queue = self._queue
        if queue and queue[0][3] is callback and queue[0][0] == self.now:
            return heappop(queue)[4]
        return None

    def schedule(self, event: Event, priority: Any = NORMAL, delay: float = 0) -> None:
        """Let an event of SimPy's happen so many virtual seconds from now."""
        heappush(self._queue, (self.now + delay, priority, next(self._eid), _happen, event))

    def step(self) -> None:
        """What is next in the queue happens."""
        if not self._queue:
            raise EmptySchedule
        self.now, _, _, callback, answer = heappop(self._queue)
        callback(answer)

    def play(self) -> None:
        """Everything happens, until nothing is under way any more: `run()` at half the price."""
        queue = self._queue
        while True:  # "while queue" would be a loop that Python 3.11 never specialises, as it jumps back on a condition
            if not queue:
                return
            self.now, _, _, callback, answer = heappop(queue)
            callback(answer)


def _happen(event: Event) -> None:
    """An event of SimPy's is due: call whoever waits for it. If it has failed and nobody handles that, its exception ends the run."""
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    try:
        for callback in callbacks:
            callback(event)
    except StopSimulation:  # of run(until=event): the other callbacks are called when the simulation is resumed
        event.callbacks = callbacks[callbacks.index(callback) + 1 :]
        event.env.schedule(event, EventPriority(-1))
        raise
    if not event.ok and not event.defused:
        error: Any = event.value
        copy = type(error)(*error.args)
        copy.__cause__ = error
        raise copy
