"""Read the files of a run as text and as JSON. Each broken file gives one clear sentence."""

from __future__ import annotations

import io
import json
import os
import re
import reprlib
import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

MAX_BYTES = 10**8
"""The maximum length of a text file of a run."""
MAX_NUMBER = 1e150
"""The maximum size of a number of a run, so that its square is a float."""
REMEDY = "correct it, or move that run elsewhere"
MAX_SKIPPED = 10
"""The maximum number of broken runs to list."""


def open_file(path: Path) -> BinaryIO:
    """A file from outside, for reading. Raises ValueError for a pipe or a device, which hetsim would wait for, and OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a file: {REMEDY}")
    return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """A file's content. Raises ValueError for what is no file, or longer than `max_bytes`, and OSError.

    A file of the kernel is empty, because its size is zero.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(f"{path} is {size} bytes long, as no such file of a run is: {REMEDY}")
        return file.read(size)


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """A file's text. Raises ValueError if the file is not text, or longer than `max_bytes`."""
    try:
        path.stat()
        check_is_no_link(path)
        return io.TextIOWrapper(io.BytesIO(read_bytes(path, max_bytes=max_bytes)), encoding="utf-8").read()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {REMEDY}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text ({error.reason} at byte {error.start}): {REMEDY}") from None


def check_is_no_link(path: Path) -> None:
    """Raise ValueError for a link, because a link in somebody else's folder may lead to a file of the user."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, and is not followed: put the file itself there, or move that run elsewhere")


def from_json(source: str, text: str) -> Any:
    """The data in this JSON text. Raises ValueError with a sentence that begins with `source` if the text is invalid."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{source} is not JSON of a run, as it is nested too deeply: {REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{source} is no JSON ({brief(error)}): {REMEDY}") from None


def brief(error: BaseException) -> str:
    """An error's message as one line of bounded length."""
    return textwrap.shorten(str(error), 120, placeholder=" …") or type(error).__name__


def shown(value: Any) -> str:
    """A value as quoted in a sentence, with bounded length and depth."""
    return " ".join(reprlib.repr(value).split())


def skipped(sentences: Sequence[str]) -> list[str]:
    """Remarks on the broken runs of a folder. `sentences` describe their faults."""
    more = len(sentences) - MAX_SKIPPED
    return [f"skipped: {sentence}" for sentence in sentences[:MAX_SKIPPED]] + [f"skipped: {more} more broken runs"] * (more > 0)


def is_text(value: Any) -> TypeGuard[str]:
    """Whether the value is a text that can be written to a file."""
    return isinstance(value, str) and (value.isascii() or not re.search("[\ud800-\udfff]", value))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether the value is a finite number with a size that hetsim can compute with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER <= value <= MAX_NUMBER
