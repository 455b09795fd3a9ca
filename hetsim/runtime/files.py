"""Files are written under a temporary name, and get their own when they are complete: a file is there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import BinaryIO

_names = Lock()
"""Held while a file of this process gets or loses a name."""


def unfinished(path: Path) -> Path:
    """The temporary name of a file while it is written."""
    return path.with_name(f".{path.name}.unfinished")


def begin(path: Path) -> BinaryIO:
    """Open a file for writing, under its temporary name."""
    with _names, named_in_errors(path):
        unfinished(path).unlink(missing_ok=True)  # of a run that was killed; a link there must not be followed
        return unfinished(path).open("xb")


def finish(paths: Iterable[Path], *, instead_of: Iterable[Path] = ()) -> None:
    """Remove the files that are replaced, and give the complete ones their own names, in this order."""
    with _names:
        for path in instead_of:
            path.unlink(missing_ok=True)
        for path in paths:
            with named_in_errors(path):
                os.replace(unfinished(path), path)


def keep_names() -> None:
    """From now on no file of this process gets or loses a name here: for a thread that removes what is unfinished and ends the process."""
    _names.acquire()


@contextlib.contextmanager
def begun(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which is complete after the block and waits for `finish`. It is removed if the block raises."""
    try:
        with named_in_errors(path), begin(path) as file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished(path).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name at the end of the block. It is removed if the block raises."""
    try:
        with begun(path) as file:
            yield file
        finish([path])
    finally:
        with contextlib.suppress(OSError):
            unfinished(path).unlink(missing_ok=True)


def part_from_hard_links(path: Path) -> None:
    """Replace a file with other names by a copy, before somebody appends to it: another name may be outside of the folder."""
    if path.exists() and path.stat().st_nlink > 1:
        with written_whole(path) as copy, path.open("rb") as file:
            shutil.copyfileobj(file, copy)


def write_text(path: Path, text: str) -> None:
    """Write the text atomically: all of it, or the file stays as it was."""
    with written_whole(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """An OSError of this block names this file. That of a write or a close, as on a full disk, names none by itself."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno) if error.errno else str(error), str(path)) from error
