"""How much the whole machine has worked: also what the kernel does for messages while no process runs."""

from __future__ import annotations

import os
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = (0, 1, 2, 5, 6)
"""Of the columns of its first line: user, nice, system, interrupts, and soft interrupts, in which packets are moved."""


def machine_seconds() -> float:
    """CPU-seconds of all cores since the start, to about 10 ms a core; 0 where the system does not say it."""
    try:
        with STAT.open(encoding="ascii") as file:
            columns = file.readline().split()[1:]
        return sum(int(columns[place]) for place in BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
