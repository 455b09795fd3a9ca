"""The folder of a run: every file in it is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def run_folder(folder: Path, config: str) -> Iterator[None]:
    """The folder of a run under way; its resolved config stands under its name once the run is written."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished(folder / "config.yaml").write_text(config, encoding="utf-8")
    try:
        yield
    except BaseException:
        abandon(folder)
        raise


def abandon(folder: Path) -> None:
    """Of a run that did not finish, remove what is half-written, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for unfinished in folder.glob(".*.unfinished"):
            unfinished.unlink(missing_ok=True)
        folder.rmdir()


def write_text(path: Path, text: str) -> None:
    """All of it, or nothing of it."""
    unfinished(path).write_text(text, encoding="utf-8")
    os.replace(unfinished(path), path)


def unfinished(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(f".{path.name}.unfinished")


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """One process at a time, where the system can lock a folder: the same run twice in a sweep is run once."""
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
