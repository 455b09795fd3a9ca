"""Measure the work of the whole machine, including the kernel's work for messages, and tell threads that work from those that spin."""

from __future__ import annotations

import os
import threading
from pathlib import Path

STAT = Path("/proc/stat")
TASKS = Path("/proc/self/task")
PER_THREAD = 6
"""The bits of a clock's number that select the CPU time of one thread, as its scheduler counts it."""
BUSY = (0, 1, 2, 5, 6)
"""The columns of busy time in the first line: user, nice, system, interrupts, and soft interrupts."""
INTERRUPTS = (5, 6)
"""The columns of interrupts, which move packets."""


def machine_seconds() -> tuple[float, float]:
    """The CPU-seconds of all cores since the start, to about 10 ms per core, and the part in interrupts; 0 if they are unknown."""
    try:
        with STAT.open(encoding="ascii") as file:
            columns = [int(column) for column in file.readline().split()[1:]]
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(columns[place] for place in BUSY) / ticks, sum(columns[place] for place in INTERRUPTS) / ticks
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def clocks_of_working_threads() -> list[int]:
    """The clocks, for `time.clock_gettime`, of this process's threads without its OpenMP threads. Empty if it has none, and outside Linux.

    OpenMP threads have no name from Python or gloo. They compute for the thread that called them, and then spin for some milliseconds.
    """
    named = {os.getpid(), *(thread.native_id for thread in threading.enumerate())}  # after a fork, Python knows its parent's main thread
    try:
        own = (TASKS / str(os.getpid()) / "comm").read_bytes()
        spins = {int(task.name): int(task.name) not in named and (task / "comm").read_bytes() == own for task in TASKS.iterdir()}
    except OSError:
        return []
    return [~thread << 3 | PER_THREAD for thread, does in spins.items() if not does] if any(spins.values()) else []
