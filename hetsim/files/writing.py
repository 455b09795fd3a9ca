"""Write files under a temporary name, and rename them when they are complete. So a file exists completely or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # this system cannot lock a file
    fcntl = None  # type: ignore[assignment]

_names = Lock()
"""Held while a file of this process gets or loses a name."""


def unfinished(path: Path) -> Path:
    """The temporary name of a file while it is written."""
    return path.with_name(f".{path.name}.unfinished")


def begin(path: Path, *, replaces: bool = True) -> BinaryIO:
    """Open a file for writing, under its temporary name. With `replaces`, remove the file of a run that was killed."""
    with _names, named_in_errors(path):
        if replaces:
            unfinished(path).unlink(missing_ok=True)  # a link there must not be followed
        return unfinished(path).open("xb")


def finish(paths: Iterable[Path], *, instead_of: Iterable[Path] = ()) -> None:
    """Remove the replaced files, and give the complete files their own names, in this order."""
    with _names:
        for path in instead_of:
            path.unlink(missing_ok=True)
        for path in paths:
            with named_in_errors(path):
                os.replace(unfinished(path), path)


def keep_names() -> None:
    """Prevent further renaming in this process. For a thread that removes unfinished files and ends the process."""
    _names.acquire()


@contextlib.contextmanager
def begun(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing. It is complete after the block, and waits for `finish`. If the block raises, it is removed."""
    try:
        with named_in_errors(path), begin(path) as file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished(path).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing. It gets its name at the end of the block. If the block raises, it is removed.

    If another process writes a file of this name, this one waits until it is complete, and replaces it.
    """
    with named_in_errors(path), _begin_alone(path) as file:
        try:
            yield file
            file.flush()
            finish([path])
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished(path).unlink(missing_ok=True)
            raise


def _begin_alone(path: Path) -> BinaryIO:
    """Open a file under its temporary name. Until it is closed, other processes that call this function with this path wait."""
    while True:
        _wait_for_writer(unfinished(path))
        with contextlib.suppress(FileExistsError):  # of a process that was faster
            file = begin(path, replaces=False)
            _lock(file.fileno())
            if _has_name(file.fileno(), unfinished(path)):
                return file
            file.close()


def _wait_for_writer(temporary: Path) -> None:
    """Wait until no process writes this file. Remove the file of a process that was killed; a link there is not followed."""
    try:
        descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError:  # a link
        temporary.unlink(missing_ok=True)
        return
    try:
        _lock(descriptor)
        if _has_name(descriptor, temporary):
            temporary.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Lock an open file. On file systems without locks, do nothing."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def part_from_hard_links(path: Path) -> None:
    """Replace a file that has other hard links by a copy before appending, because a link may be outside of the folder."""
    if path.exists() and path.stat().st_nlink > 1:
        with written_whole(path) as copy, path.open("rb") as file:
            shutil.copyfileobj(file, copy)


def write_text(path: Path, text: str) -> None:
    """Write the text atomically: the file contains all of it, or does not change."""
    with written_whole(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Within this context, an OSError names this file. An error of a write or close, such as on a full disk, names no file by itself."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno) if error.errno else str(error), str(path)) from error
