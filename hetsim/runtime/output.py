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
"""The errors of a pipe without a reader, and of a closed terminal."""


class _Output(io.FileIO):
    """A standard stream that ignores writes after its reader has closed it, after an error, or while it `discards`."""

    discards = False
    failed = command = ""
    """The error of this stream, and the command that reports it on standard error; empty: it is not reported."""
    leave: Callable[[str], object] | None = None
    """A function that receives the stream's error at the end of the process, instead of standard error."""

    def write(self, data: Any, /) -> int:
        """Write as to a file. Data that cannot be written, or have no reader, count as written."""
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
    """Let this process continue, with its normal exit status, after its output has lost its reader: `| head` is no error.

    If its output cannot be written, as on a full disk, it also continues, reports this once, and ends with status 1. `leave` may pass the
    error to a launcher instead. A closed standard stream is opened, because a file of the run could otherwise take its place.
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
            output = io.TextIOWrapper(
                io.BufferedWriter(raw),
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, output)
            if name == "stdout":
                raw.command, raw.leave = command, leave
                atexit.register(_end)


def _end() -> None:
    """Called at the end of the process, when Python does not let its status change any more."""
    if has_failed():
        os._exit(1)


def has_failed() -> bool:
    """Whether writing to standard output has failed. Called at the end of the process."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Output) or not raw.failed:
        return False
    if raw.leave is not None:
        raw.leave(raw.failed)
    return True


def discard_output() -> None:
    """Write nothing more to standard output, so that a command that a signal ends does not wait for a reader such as `less`."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.discards = True
