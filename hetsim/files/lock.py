"""One run at a time in a folder. The system releases the lock of a process that is killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hetsim.errors import RunFailed

try:
    import fcntl
except ImportError:  # this system cannot lock a folder
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Wait until no other run uses the folder. So a run that occurs twice in a sweep runs once."""
    with _lock_folder(folder, wait=True):
        yield


@contextlib.contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Raise RunFailed at once if another run uses the folder."""
    with _lock_folder(folder, wait=False) as ours:
        if not ours:
            raise RunFailed(f"{folder} is in use by another run: set another hydra.run.dir, or wait for it to end")
        yield


def remove_if_empty(folder: Path) -> None:
    """Remove the folder unless it contains a file or another run uses it."""
    with contextlib.suppress(OSError):
        if not any(folder.iterdir()):
            with _lock_folder(folder, wait=False) as ours:
                if ours:
                    folder.rmdir()


@contextlib.contextmanager
def _lock_folder(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Whether no other run uses the folder, which is created if missing. True if the system cannot lock folders."""
    lock = None
    try:
        while fcntl is not None and not _is_of(lock, folder):  # who had the lock may have removed the folder
            if lock is not None:
                os.close(lock)
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = True
    except BlockingIOError:
        ours = False
    except OSError as error:
        if error.filename is not None:
            raise
        ours = True  # this file system has no locks
    try:
        yield ours
    finally:
        if lock is not None:
            os.close(lock)


def _is_of(lock: int | None, folder: Path) -> bool:
    """Whether the descriptor belongs to the folder that now has this name."""
    try:
        return lock is not None and os.path.samestat(os.fstat(lock), folder.stat())
    except FileNotFoundError:
        return False
