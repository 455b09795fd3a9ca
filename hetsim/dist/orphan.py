"""The end of a process whose parent has ended: no process of a run outlives the command, and nothing unfinished of it remains."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

from hetsim.dist.quota import Uncapped
from hetsim.results.folder import abandon
from hetsim.results.lock import only_run_in
from hetsim.runtime.files import keep_names

LOCK_ATTEMPTS, LOCK_SECONDS = 100, 0.02
"""How often, and with what pause, a leader without a parent tries to lock its folder."""


def leave_with_parent(folder: Path | None, cap: Uncapped) -> None:
    """End this process when its parent has ended, and remove its cap; on the leader, remove what it has begun in this folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if folder is not None:
            keep_names()
            _remove_unfinished(folder)
        cap.remove()
        os._exit(1)


def _remove_unfinished(folder: Path) -> None:
    """Unless another run has begun in the folder. The system releases the parent's lock a moment after the parent's end."""
    for _ in range(LOCK_ATTEMPTS):
        with contextlib.suppress(Exception), only_run_in(folder):
            abandon(folder)
            return
        time.sleep(LOCK_SECONDS)
