"""What a rank's process runs on, in numbers that ranks can tell each other."""

from __future__ import annotations

import os
import time

from hetsim.distributed.communication.clock_alignment import clock_id
from hetsim.distributed.pacing.cgroups import own_cgroup
from hetsim.distributed.pacing.padding import realtime_priority


def facts() -> list[float]:
    """A number for this process's machine, the cores that it may use, share and period in seconds of its cgroup's quota, seconds of a tick,
    and whether a thread gets real-time priority.

    Share and period are 0 where there is no quota, and the tick where it is not known.
    """
    try:
        share, period = own_cgroup().share or (0.0, 0.0)
    except OSError:
        share = period = 0.0
    coarse = getattr(time, "CLOCK_MONOTONIC_COARSE", 6)  # Linux's number; its steps are the system's ticks
    try:
        tick = time.clock_getres(coarse)
    except OSError:
        tick = 0.0
    with realtime_priority():
        real_time = os.sched_getscheduler(0) != os.SCHED_OTHER
    return [clock_id(), float(len(os.sched_getaffinity(0))), share, period, tick, float(real_time)]
