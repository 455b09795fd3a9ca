"""SimPy's clock and event queue, with a shortcut for the most frequent event: one callback, called once."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from simpy import Environment
from simpy.core import EmptySchedule, StopSimulation
from simpy.events import NORMAL, Event, EventPriority

Callback = Callable[[Any], None]


class Suspended:
    """What a world's method returns if the answer comes later, through `callback`."""


SUSPENDED: Final = Suspended()
LAST: Final = NORMAL + 1
"""A priority below SimPy's. Its events come after all others at the same time."""


class VirtualClock(Environment):
    """SimPy's environment: all events happen in order of time, priority and scheduling, as SimPy's own do.

    An entry of its queue is (time, priority, serial, callback, answer), and `callback(answer)` is called when it is due. A
    Timeout with one callback would cost three times as much. The entry of a SimPy event calls the event's callbacks.

    The queue is a heap. Entries from `far` wait in a second heap, and only the first of them is in the queue. So the many
    entries that are due soon are not compared with an entry for each node.
    """

    __slots__ = ("_far", "_far_due", "_first_far", "now")

    now: float  # read at every effect, where a property would cost too much
    _queue: list[Any]

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        self._far: list[Any] = []
        self._first_far = inf  # when the entry of `far` that is in the queue is due; inf: there is none
        self._far_due = self._process_far  # bound once

    @property
    def _now(self) -> float:
        """The current time, by SimPy's name for it."""
        return self.now

    @_now.setter
    def _now(self, now: float) -> None:
        self.now = now

    def after(self, seconds: float, callback: Callback, answer: Any = None) -> Any:
        """Call `callback(answer)` after this number of virtual seconds."""
        heappush(self._queue, (self.now + seconds, NORMAL, next(self._eid), callback, answer))
        return SUSPENDED

    def at(self, moment: float, callback: Callback, answer: Any = None, priority: int = NORMAL) -> Any:
        """Call `callback(answer)` at this moment, with SimPy's priority: URGENT comes before NORMAL at the same moment."""
        heappush(self._queue, (moment, priority, next(self._eid), callback, answer))
        return SUSPENDED

    def far(self, moment: float, callback: Callback, answer: Any = None) -> Any:
        """The same as `at`, for a time before which many other events are due, such as the end of a gradient. Only the cost differs."""
        if moment < self._first_far < inf:
            return self.at(moment, callback, answer)
        entry = (moment, NORMAL, next(self._eid), self._far_due, (callback, answer))
        if self._first_far == inf:
            self._first_far = moment
            heappush(self._queue, entry)
        else:
            heappush(self._far, entry)
        return SUSPENDED

    def _process_far(self, due: tuple[Callback, Any]) -> None:
        """Process an entry of `far`, and put the next one into the queue."""
        if self._far:
            entry = heappop(self._far)
            self._first_far = entry[0]
            heappush(self._queue, entry)
        else:
            self._first_far = inf
        callback, answer = due
        callback(answer)

    def pop_if_next(self, callback: Callback) -> Any:
        """If the next entry of the queue is this callback at the current time, remove it and return its answer; otherwise None."""
        queue = self._queue
        if queue and queue[0][3] is callback and queue[0][0] == self.now:
            return heappop(queue)[4]
        return None

    def schedule(self, event: Event, priority: Any = NORMAL, delay: float = 0) -> None:
        """Schedule a SimPy event after this number of virtual seconds."""
        heappush(self._queue, (self.now + delay, priority, next(self._eid), _process, event))

    def step(self) -> None:
        """Process the next entry of the queue."""
        if not self._queue:
            raise EmptySchedule
        self.now, _, _, callback, answer = heappop(self._queue)
        callback(answer)

    def run_all(self) -> None:
        """Process all entries until the queue is empty: `run()` at half the cost."""
        queue = self._queue
        while True:  # Python 3.11 never specialises a "while queue" loop, as it jumps back on a condition
            if not queue:
                return
            self.now, _, _, callback, answer = heappop(queue)
            callback(answer)


def _process(event: Event) -> None:
    """Call the callbacks of a SimPy event. If it has failed and no callback defuses it, its exception ends the run."""
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
