"""The clock of a run in real time, and the padding that holds results until they are due by the cluster's description."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hetsim.distributed.environment import Emulation, Settings

clock = time.monotonic  # one clock for all processes of a host, see hetsim.distributed.communication.clock_alignment


@dataclass
class LateResults:
    """The number of results, how many of them took longer than described, and by how many seconds in total."""

    count: int = 0
    late: int = 0
    late_seconds: float = 0.0

    def __add__(self, other: LateResults) -> LateResults:
        return LateResults(self.count + other.count, self.late + other.late, self.late_seconds + other.late_seconds)


COMPUTED = ("gradient", "profile", "update")
"""The kinds of results that a CPU quota affects."""


@dataclass
class Pace:
    """Handles results by `emulate`: pad holds early results and counts late ones, quota counts late computed ones, none does neither.

    It has its rank's clock.
    """

    emulate: Emulation
    kinds: dict[str, LateResults] = field(default_factory=dict)
    clock: Callable[[], float] = clock

    @property
    def pad(self) -> bool:
        """Whether results are held until they are due."""
        return self.emulate == "pad"

    def due(self, kind: str, since: float, seconds: float) -> float:
        """Wait until `seconds` after `since`, unless this time is past. Returns the time that counts as the end.

        For a held result, this is the described time and not the time at which the thread woke up, so that small delays do not
        accumulate. For a late result, it is the time at which the result was ready.
        """
        now = self.clock()
        moment = since + seconds
        if self.pad or (self.emulate == "quota" and kind in COMPUTED):
            self.record(kind, now - moment)
        if now > moment or not self.pad:
            return now
        self.sleep_until(moment)
        return moment

    def sleep_until(self, moment: float) -> None:
        """Sleep until this time of the clock, and never less."""
        while (remaining := moment - self.clock()) > 0:
            time.sleep(remaining)

    def record(self, kind: str, late: float) -> None:
        """Count a result that was ready `late` seconds later than described (earlier if negative)."""
        lateness = self.kinds.setdefault(kind, LateResults())
        lateness.count += 1
        if late > 0:
            lateness.late += 1
            lateness.late_seconds += late


def reduce_timer_slack() -> None:
    """Set this thread's timer slack on Linux to the minimum. The default of 50 µs is too long for steps of a millisecond."""
    if sys.platform == "linux":
        PR_SET_TIMERSLACK = 29  # noqa: N806
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


_may_be_urgent = True
"""Whether `realtime_priority` has an effect in this process."""


def permit_realtime_priority(*, permitted: bool) -> None:
    """Set whether `realtime_priority` has an effect in this process from now on. Runs whose computing threads are capped do without it.

    A capped thread may be stopped while others need what it holds, such as the interpreter. One of gloo's threads then spins, and with
    real-time priority it keeps a core from everyone.
    """
    global _may_be_urgent
    _may_be_urgent = permitted


@contextlib.contextmanager
def realtime_priority() -> Iterator[None]:
    """Within this context, this thread and threads that it starts move messages with real-time priority, if the system allows it.

    With more processes than cores, a thread that wakes up may otherwise wait for a scheduler tick (4 ms at 250 Hz). A gloo
    all-reduce of 10 kB among four processes on two cores took 8 ms, and 0.9 ms with real-time threads.

    A caller of gloo's `send` or `recv` needs the priority of gloo's own threads. Such a call holds a lock for which one of gloo's threads
    spins. On the same core, that thread keeps the caller from running until the system intervenes, after most of a second. With four
    ranks on two cores, 38 of 400 broadcasts of 40 kB by ordinary threads took 0.1 to 1 s. With real-time threads none took more than 8 ms.
    """
    previous = None
    with contextlib.suppress(AttributeError, OSError):
        if _may_be_urgent and os.sched_getparam(0).sched_priority == 0:
            ordinary = os.sched_getscheduler(0)
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            previous = ordinary
    try:
        yield
    finally:
        if previous is not None:
            os.sched_setscheduler(0, previous, os.sched_param(0))


def emulation(settings: Settings, kinds: dict[str, LateResults], *, library: str, shared_links: bool) -> dict[str, Any]:
    """For the summary: the emulation, the order and library of sums, and the lateness of results by kind."""
    late = {kind: vars(lateness) for kind, lateness in sorted(kinds.items())}
    links = {"shared_links": True} if shared_links else {}
    return {"emulate": settings.emulate, "reduction": settings.reduction, "library": library, **links, **late}


def late_warnings(kinds: dict[str, LateResults], seconds: float) -> list[str]:
    """One warning if any results took longer than described; otherwise none."""
    late = [f"{lateness.late} of {lateness.count} {kind}s" for kind, lateness in sorted(kinds.items()) if lateness.late]
    if not late:
        return []
    total = sum(lateness.late_seconds for lateness in kinds.values())
    share = f" ({100 * total / seconds:.1f} % of the run)" if seconds else ""
    return [f"{', '.join(late)} took longer than the cluster describes, by {1000 * total:.1f} ms in all{share}"]
