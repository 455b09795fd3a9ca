"""The end of a command after a signal: one sentence, status 128 + n, no remaining process, and no incomplete file."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command: Ctrl-C, `kill` and batch systems, and a closed terminal."""
LAUNCHED = {"RANK", "WORLD_SIZE"}
"""Variables that launchers set for each of their processes. SLURM also sets the number of a step's tasks."""
LAST_SECONDS = 7.0
"""The maximum seconds that a command may take to end after the first signal."""


class Signalled(KeyboardInterrupt):
    """Raised in the main thread by the first of `SIGNALS`."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


def status(error: KeyboardInterrupt) -> int:
    """The exit status of a command that this error ended."""
    return 128 + (error.number if isinstance(error, Signalled) else signal.SIGINT)


def said(error: KeyboardInterrupt) -> str:
    """The beginning of the command's last line, which names the signal."""
    number = status(error) - 128
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def raise_at_signals() -> None:
    """From now on, the first of `SIGNALS` raises Signalled in the main thread, and later ones have no effect.

    Signals that the parent has set to be ignored, as `nohup` does, stay ignored. Signals other than Ctrl-C end a launcher's process at
    once, because the launcher reports the end. A command that takes too long to end is killed.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    launched = LAUNCHED & os.environ.keys() or os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    for number in SIGNALS[:1] if launched else SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _raise)


def _raise(number: int, _: FrameType | None) -> None:
    for each in SIGNALS:
        if signal.getsignal(each) is _raise:
            signal.signal(each, _ignored)
    _thread.start_new_thread(_end_by_force, (number,))  # threading.Thread takes a lock that the main thread may hold now
    raise Signalled(number)


def _ignored(*_: object) -> None:
    """A handler that does nothing. A started process would inherit SIG_IGN, but not this handler."""


def _end_by_force(number: int) -> None:
    time.sleep(LAST_SECONDS)
    processes = _descendants(os.getpid())
    sys.setswitchinterval(LAST_SECONDS + 60)  # the main thread may wait for them, and must not end first
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os._exit(128 + number)


def _descendants(process: int) -> list[int]:
    """The processes that this one has started, and their descendants, if the system lists them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    pids = [process]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids[1:]
