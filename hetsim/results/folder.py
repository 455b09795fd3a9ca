"""The folder of a run: every file in it is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hetsim.runtime.files import unfinished, write_text


@contextlib.contextmanager
def run_folder(folder: Path, config: str) -> Iterator[None]:
    """The folder of a run while it runs. Its resolved config gets its final name when the run's summary is written."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished(folder / "config.yaml").write_text(config, encoding="utf-8")
    try:
        yield
    except BaseException:
        abandon(folder)
        raise


def abandon(folder: Path) -> None:
    """Remove the unfinished files of a run that did not finish, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for path in folder.glob(".*.unfinished"):
            path.unlink(missing_ok=True)
        folder.rmdir()


def write_error(folder: Path, sentence: str, traceback: str = "") -> None:
    """Write in the folder of a run why it failed, if the folder can be written."""
    with contextlib.suppress(OSError):
        write_text(folder / "error.txt", f"{sentence}\n{traceback}")


def remove_error(folder: Path) -> None:
    """Remove the `error.txt` of an earlier run that failed."""
    with contextlib.suppress(OSError):
        (folder / "error.txt").unlink(missing_ok=True)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """One process at a time, where the system can lock a folder: a run that stands twice in a sweep is run once."""
    try:
        import fcntl

        lock = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
