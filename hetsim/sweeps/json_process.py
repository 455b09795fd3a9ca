"""A process of hetsim's own that answers lines of JSON by lines of JSON, so nothing is unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from hetsim.errors import RunFailed


class JsonProcess:
    """The end of it that its user holds. If it was killed, the next conversation is with a new one."""

    def __init__(self, module: str, *, of: str) -> None:
        self.module = module
        self.of = of
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        command = [sys.executable, *safe, "-m", self.module]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and the run that is under way in it."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def kill(self) -> None:
        """End the process. A thread that reads from it gets RunFailed."""
        self._process.kill()

    def fresh(self) -> None:
        """Start another process, if this one has ended."""
        if self._process.poll() is not None:
            self.close()
            self._process = self._started()

    def write(self, message: object) -> None:
        """Send a line; what it says is lost if the process has ended, as then there is no answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def read(self) -> dict[str, Any]:
        """The next line; RunFailed if the process was killed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RunFailed(f"a process of {self.of} was killed, perhaps for lack of memory")
        answer: dict[str, Any] = json.loads(line)
        return answer
