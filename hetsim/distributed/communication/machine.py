"""Facts about a rank's process as numbers, which ranks can exchange."""

from __future__ import annotations

import os
import time

from hetsim.distributed.communication.clock_alignment import clock_id
from hetsim.distributed.pacing.cgroups import own_quota
from hetsim.distributed.pacing.padding import realtime_priority


def facts() -> list[float]:
    """Facts about this process as numbers.

    These are a number for its machine, its usable cores, share and period in seconds of its cgroup's quota, seconds of a tick, and whether
    threads get real-time priority. Share and period are 0 without a quota. The tick is 0 if it is unknown.
    """
    coarse = getattr(time, "CLOCK_MONOTONIC_COARSE", 6)  # Linux's number; its steps are the system's ticks
    try:
        tick = time.clock_getres(coarse)
    except OSError:
        tick = 0.0
    with realtime_priority():
        real_time = os.sched_getscheduler(0) != os.SCHED_OTHER
    return [clock_id(), float(len(os.sched_getaffinity(0))), *own_quota(), tick, float(real_time)]
