"""End a process when its parent ends, in any way, so that `kill -9` leaves no process."""

from __future__ import annotations

import os
from threading import Event, Thread

LOOK_SECONDS = 0.5
"""The interval at which a process checks whether its parent has changed."""


def end_with(parent: int) -> None:
    """From now on, end this process at once when its parent is not the process with this id any more."""
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    pause = Event()
    while os.getppid() == parent:
        pause.wait(LOOK_SECONDS)
    os._exit(1)
