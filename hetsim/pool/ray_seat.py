"""An actor that Ray starts on a node. It owns a hetsim process, and passes JSON lines to it and back.

The process is the same as a local one. It also ends in the same way: when the actor ends, in any way, a pipe closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from hetsim.errors import RunFailed
from hetsim.files.temporary import temporary_folder
from hetsim.pool.json_process import JsonProcess
from hetsim.pool.sent_files import Sent, packed
from hetsim.version import __version__


class Seat:
    """Owns one process at a time on a node."""

    def __init__(self) -> None:
        self._process: JsonProcess | None = None
        self._scratch: str | None = None
        self._stack = contextlib.ExitStack()

    def start(self, module: str, of: str, first: object, version: str, where: str, imports_there: bool, mark: str | None) -> str | None:
        """Start the process. Returns a sentence if this node cannot run it.

        Args:
            module: the module that the process runs.
            of: the user of the processes, in words.
            first: the first message to each process.
            version: the user's version of hetsim.
            where: the user's current folder, which is current here if this node has it.
            imports_there: whether Python imports modules from that folder.
            mark: a file in the folder of the runs; None if there are no such runs. A node without it sends the files of its runs.
        """
        if version != __version__:
            return f"a node of the Ray cluster has hetsim {__version__}, and this is {version}: install the same version on all nodes"
        with contextlib.suppress(OSError):
            os.chdir(where)
            if imports_there:
                sys.path.append(os.getcwd())
        if mark is not None and not Path(mark).exists():
            self._scratch = str(self._stack.enter_context(temporary_folder("hetsim-ray-")))
        self._process = JsonProcess(module, of=of, first=first)
        return None

    def converse(self, message: dict[str, Any] | bool) -> tuple[str | None, str | None, list[Sent]]:
        """The process's answer as JSON, or the reason without one, and the files of the finished run."""
        assert self._process is not None
        if isinstance(message, dict):  # a question; other messages are part of a conversation
            self._process.fresh()
            if self._scratch is not None and "folder" in message:
                message = {**message, "folder": self._scratch}
        try:
            self._process.write(message)
            answer = self._process.read()
            ended = self._scratch is not None and "point" not in answer
            return json.dumps(answer), None, packed(Path(self._scratch)) if ended and self._scratch else []
        except (RunFailed, OSError) as error:
            return None, str(error), []

    def close(self) -> None:
        """End the process and its current run, which removes its unfinished files."""
        if self._process is not None:
            self._process.close()
        self._stack.close()
