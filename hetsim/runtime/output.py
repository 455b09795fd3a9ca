"""The standard streams of a process."""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

NOBODY_READS = (errno.EPIPE, errno.EIO)
"""The errors of a pipe without a reader, and of a terminal that was closed."""


class _Output(io.FileIO):
    """A standard stream of which nothing more is written once its reader has closed it, or once it `discards`."""

    discards = False

    def write(self, data: Any, /) -> int:
        """As of a file; what nobody reads any more counts as written."""
        if self.discards:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NOBODY_READS:
                raise
            return len(data)


def outlive_readers() -> None:
    """Let this process continue, with the status that it would have, once nobody reads its output: `| head` is no error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):  # not that of a test or of a program around this one
            buffer = io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False))
            made = io.TextIOWrapper(
                buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
            )
            setattr(sys, name, made)


def discard_output() -> None:
    """Write nothing more to standard output: a command that a signal ends does not wait for a reader such as `less`."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.discards = True
