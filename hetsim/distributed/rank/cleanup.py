"""End a process whose parent has ended, so that no process of a run outlives the command, and no unfinished file remains."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

from hetsim.distributed.environment import WATCH
from hetsim.distributed.pacing.cpu_quota import CpuCap, remove_own
from hetsim.files.folder import abandon
from hetsim.files.lock import only_run_in
from hetsim.files.writing import keep_names

LOCK_ATTEMPTS, LOCK_SECONDS = 100, 0.02
"""The number of attempts, and the pause between them, of a leader without a parent to lock its folder."""
LED = "leads"
"""The name of a file in hetsim-launch's folder for this process. It contains the folder of the run that this process leads."""
_led: list[Path] = []
"""The locked folder of the run that this process leads."""


def leave_with_parent(cap: CpuCap) -> None:
    """End this process when its parent has ended. First remove its CPU cap and the files of a run that it is `leading`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        keep_names()
        for folder in _led:
            remove_unfinished(folder)
        cap.remove()
        os._exit(1)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files unless another run has begun in the folder. The parent's lock is released shortly after its end."""
    for _ in range(LOCK_ATTEMPTS):
        with contextlib.suppress(Exception), only_run_in(folder):
            abandon(folder)
            return
        time.sleep(LOCK_SECONDS)


def follow_launcher() -> None:
    """If hetsim-launch started this process: end it when hetsim-launch closes the pipe or ends. Its cap and `leading` files are removed."""
    launcher, _, pipe = os.environ.get(WATCH, "").partition(":")
    if launcher == str(os.getppid()) and pipe.isdecimal():
        Thread(target=_leave_with_launcher, args=(int(pipe),), daemon=True).start()
    elif launcher.isdecimal() and not _lives(int(launcher)):
        os._exit(1)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _leave_with_launcher(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    remove_led()
    remove_own()
    os._exit(1)


def remove_led() -> None:
    """Remove the files of the run that this process is `leading`. It has the folder's lock."""
    keep_names()
    for folder in _led:
        abandon(folder)


@contextlib.contextmanager
def leading(folder: Path) -> Iterator[None]:
    """Within this context, the unfinished files of the run in this folder are removed if this process or hetsim-launch ends it."""
    _led.append(folder)
    note = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).with_name(LED) if WATCH in os.environ else None
    if note is not None:
        note.write_text(str(folder.absolute()), encoding="utf-8")
    try:
        yield
    finally:
        _led.remove(folder)
        if note is not None:
            note.unlink(missing_ok=True)


def remove_of_killed(notes: Path) -> None:
    """In hetsim-launch, after the run's end on all hosts: remove the files of killed leaders, from their notes in this folder."""
    for note in notes.glob(f"*/{LED}"):
        remove_unfinished(Path(note.read_text(encoding="utf-8")))
