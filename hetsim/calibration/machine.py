"""How much the whole machine has worked: also what the kernel does for messages while no process runs."""

from __future__ import annotations

import os
from pathlib import Path

STAT = Path("/proc/stat")
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
