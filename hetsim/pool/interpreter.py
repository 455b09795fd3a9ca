"""The beginning of a command that starts Python."""

from __future__ import annotations

import os
import sys


def python() -> list[str]:
    """This interpreter with its options. The new process imports modules from the current folder only if this process does."""
    imports_there = {"", os.getcwd()} & set(sys.path)
    ignored = [*["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
    return [sys.executable, *ignored, *([] if imports_there else ["-P"])]
