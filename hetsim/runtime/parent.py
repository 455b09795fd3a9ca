"""The end of a process with the one that started it, however that ends: `kill -9` leaves no process."""

from __future__ import annotations

import os
from threading import Event, Thread

LOOK_SECONDS = 0.5
"""How often a process looks whether its parent is another one."""


def end_with(parent: int) -> None:
    """From now on, end this process at once when its parent is no longer the process of this id."""
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    pause = Event()
    while os.getppid() == parent:
        pause.wait(LOOK_SECONDS)
    os._exit(1)
