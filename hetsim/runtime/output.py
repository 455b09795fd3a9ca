"""The standard streams of a process."""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any

NOBODY_READS = (errno.EPIPE, errno.EIO)
"""The errors of a pipe without a reader, and of a terminal that was closed."""


class _Output(io.FileIO):
    """A standard stream that ignores writes after its reader has closed it, after it has failed, or while it `discards`."""

    discards = False
    failed = command = ""
    """Why this stream has failed, and who says so on standard error; empty: nobody."""
    leave: Callable[[str], object] | None = None
    """Takes why this stream has failed at the end of the process, in place of standard error."""

    def write(self, data: Any, /) -> int:
        """As of a file; what cannot be written, or nobody reads any more, counts as written."""
        if self.discards:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.discards = True
            if error.errno not in NOBODY_READS and self.command:
                self.failed = f"standard output cannot be written ({error.strerror}): send it elsewhere"
                if self.leave is None:
                    with contextlib.suppress(OSError):
                        os.write(2, f"{self.command}: error: {self.failed}\n".encode())
            return len(data)


def outlive_readers(command: str, leave: Callable[[str], object] | None = None) -> None:
    """Let this process continue, with the status that it would have, once nobody reads its output: `| head` is no error.

    If its output cannot be written, as on a full disk, it continues too, says so once, and ends with status 1. At its end, `leave` may
    pass that on to a launcher instead. A standard stream that is closed is opened, since any file of a run would take its place.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.devnull, "wb"))))
        elif stream is getattr(sys, f"__{name}__"):  # not that of a test or of a program around this one
            raw = _Output(stream.fileno(), "wb", closefd=False)
            made = io.TextIOWrapper(
                io.BufferedWriter(raw),
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, made)
            if name == "stdout":
                raw.command, raw.leave = command, leave
                atexit.register(_end)


def _end() -> None:
    """At the end of the process, whose status Python lets nobody change by then."""
    if has_failed():
        os._exit(1)


def has_failed() -> bool:
    """Whether standard output could not be written. Called at the end of the process."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Output) or not raw.failed:
        return False
    if raw.leave is not None:
        raw.leave(raw.failed)
    return True


def discard_output() -> None:
    """Write nothing more to standard output: a command that a signal ends does not wait for a reader such as `less`."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.discards = True
