"""How much the whole machine has worked, also what the kernel does for messages while no process runs, and which threads only help."""

from __future__ import annotations

import os
import threading
from pathlib import Path

STAT = Path("/proc/stat")
TASKS = Path("/proc/self/task")
PER_THREAD = 6
"""In the number of a clock: that of one thread, as its scheduler counts it."""
BUSY = (0, 1, 2, 5, 6)
"""Of the columns of its first line: user, nice, system, interrupts, and soft interrupts."""
INTERRUPTS = (5, 6)
"""Those in which packets are moved."""


def machine_seconds() -> tuple[float, float]:
    """CPU-seconds of all cores since the start, to about 10 ms a core, and those in interrupts; 0 where the system does not say it."""
    try:
        with STAT.open(encoding="ascii") as file:
            columns = [int(column) for column in file.readline().split()[1:]]
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(columns[place] for place in BUSY) / ticks, sum(columns[place] for place in INTERRUPTS) / ticks
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def clocks_of_helpers() -> list[int]:
    """The clocks, for `time.clock_gettime`, of OpenMP's threads in this process: those that neither Python nor gloo has named. Linux only.

    They compute with the thread that has called them, and spin for some milliseconds when they are done.
    """
    named = {thread.native_id for thread in threading.enumerate()}
    try:
        own = (TASKS / str(os.getpid()) / "comm").read_bytes()
        helpers = [int(task.name) for task in TASKS.iterdir() if int(task.name) not in named and (task / "comm").read_bytes() == own]
    except OSError:
        return []
    return [~thread << 3 | PER_THREAD for thread in helpers]
