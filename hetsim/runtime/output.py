"""The standard streams of a process."""

from __future__ import annotations

import io
import sys
from typing import Any


class _Output(io.FileIO):
    """A standard stream of which nothing more is written once its reader has closed it."""

    def write(self, data: Any, /) -> int:
        """As of a file; what nobody reads any more counts as written."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def outlive_readers() -> None:
    """Let this process go on, with the status that it would have, once nobody reads its output: `| head` is no error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):  # not that of a test or of a program around this one
            buffer = io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False))
            made = io.TextIOWrapper(
                buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
            )
            setattr(sys, name, made)
