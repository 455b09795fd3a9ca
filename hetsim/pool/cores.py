"""The number of this machine's cores that a run may use: one, if other runs use the machine at the same time."""

from __future__ import annotations

import os

_shared = False


def share_cores() -> None:
    """Declare that other runs use this machine's cores at the same time, as in a parallel sweep."""
    global _shared
    _shared = True


def free_cores() -> int:
    """The number of cores that a run of this process may use."""
    if _shared:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
