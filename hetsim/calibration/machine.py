"""Measure the work of the whole machine, including the kernel's work for messages, and tell threads that work from those that spin."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
TASKS = Path("/proc/self/task")
PER_THREAD = 6
"""The bits of a clock's number that select the CPU time of one thread, as its scheduler counts it."""
BUSY = (0, 1, 2, 5, 6)
"""The columns of busy time in the first line: user, nice, system, interrupts, and soft interrupts."""
INTERRUPTS = (5, 6)
"""The columns of interrupts, which move packets."""


class Meter(NamedTuple):
    """Clocks that are read together: seconds, and CPU-seconds of this thread, the process, the machine, and its interrupts."""

    wall: float
    thread: float
    process: float
    machine: float
    interrupts: float

    @classmethod
    def read(cls, threads: Sequence[int] = ()) -> Meter:
        """Read the clocks now. `threads` are the clocks of the process's threads that count; none: all of them."""
        return cls(time.perf_counter(), time.thread_time(), process_seconds(threads), *machine_seconds())

    def since(self, before: Meter) -> Meter:
        """The differences of all clocks."""
        return Meter(*(now - then for now, then in zip(self, before, strict=True)))


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


def process_seconds(threads: Sequence[int]) -> float:
    """The CPU-seconds of the threads with these clocks; of the whole process if there are none.

    For threads that run on other cores, the process's clock lags by up to one tick of the scheduler, some milliseconds. A thread's does
    not, so the difference of both is not the work of the others.
    """
    return sum(map(cpu_seconds, threads)) if threads else time.process_time()


def cpu_seconds(clock: int) -> float:
    """The CPU-seconds of the thread with this clock; 0 after the thread's end."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0
