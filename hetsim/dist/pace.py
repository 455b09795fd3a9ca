"""The run's clock on a real machine, and the padding that makes results as late as the cluster's description says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

clock = time.monotonic  # one clock for all processes of a host


@dataclass
class Lateness:
    """How many results there were, how many took longer than described, and by how many seconds in all."""

    count: int = 0
    late: int = 0
    late_seconds: float = 0.0

    def __add__(self, other: Lateness) -> Lateness:
        return Lateness(self.count + other.count, self.late + other.late, self.late_seconds + other.late_seconds)


@dataclass
class Pace:
    """Holds what is early and counts what is late; with `pad` off it does neither."""

    pad: bool
    kinds: dict[str, Lateness] = field(default_factory=dict)

    def due(self, kind: str, since: float, seconds: float) -> float:
        """Wait until `seconds` after `since` if that is still ahead, and the moment that counts as reached.

        That is the described moment where a result was held, not the one at which the system woke this thread up: what
        follows is due from there, so waking up a little late does not add up. What itself was late counts from when it came.
        """
        now = clock()
        if not self.pad:
            return now
        moment = since + seconds
        self.record(kind, now - moment)
        if now > moment:
            return now
        sleep_until(moment)
        return moment

    def record(self, kind: str, late: float) -> None:
        """Count a result that came so many seconds later than described (earlier, if below zero)."""
        lateness = self.kinds.setdefault(kind, Lateness())
        lateness.count += 1
        if late > 0:
            lateness.late += 1
            lateness.late_seconds += late


def one_host() -> bool:
    """Whether all processes of the run share this host, and so its clock; torchrun tells where they do not."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def sleep_until(moment: float) -> None:
    """Sleep until then, never less."""
    while (ahead := moment - clock()) > 0:
        time.sleep(ahead)


def wake_on_time() -> None:
    """Ask Linux not to bundle this thread's timers with others': 50 µs is much in a step of a millisecond."""
    if sys.platform == "linux":
        PR_SET_TIMERSLACK = 29  # noqa: N806
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


@contextlib.contextmanager
def prompt() -> Iterator[None]:
    """Threads started in here, which only move messages, run as soon as they can, where the system grants it.

    With more processes than cores, a thread that wakes up may otherwise wait for a scheduler tick (4 ms at 250 Hz): a
    gloo all-reduce of 10 kB among four processes on two cores took 8 ms, and 0.9 ms with real-time threads.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def emulation(pad: bool, kinds: dict[str, Lateness]) -> dict[str, Any]:
    """For the summary: how well the described pace was kept."""
    mode = "pad" if pad else "none"
    return {"emulate": mode, **{kind: vars(lateness) for kind, lateness in sorted(kinds.items())}}


def warnings(kinds: dict[str, Lateness], seconds: float) -> list[str]:
    """One sentence if the machine could not always keep the described pace, and none if it could."""
    late = [f"{lateness.late} of {lateness.count} {kind}s" for kind, lateness in sorted(kinds.items()) if lateness.late]
    if not late:
        return []
    in_all = sum(lateness.late_seconds for lateness in kinds.values())
    share = f" ({100 * in_all / seconds:.2g} % of the run)" if seconds else ""
    return [f"{', '.join(late)} took longer than the cluster describes, by {1000 * in_all:.3g} ms in all{share}"]
