"""A hetsim process that answers JSON lines with JSON lines, so nothing is unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from types import TracebackType
from typing import Any, Self, TextIO

from hetsim.errors import RunFailed
from hetsim.pool.cores import share_cores

USER = "HETSIM_USER"
"""The variable with the end of a pipe. The system closes the pipe when the process's user ends, in any way."""
LAST_SECONDS = 3.0
"""The maximum time for a process to end its current run."""


class JsonProcess:
    """The user's side of the process. After a kill, the next conversation uses a new process.

    Each process receives the message `first` before any other.
    """

    def __init__(self, module: str, *, of: str, first: object = None) -> None:
        self.module = module
        self.of = of
        self.first = first
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        command = [sys.executable, *safe, "-m", self.module]
        read, write = os.pipe()
        self._write: int | None = write
        environment = os.environ | {USER: str(read)}
        try:
            process = subprocess.Popen(
                *(command,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0, pass_fds=[read], env=environment
            )
        finally:
            os.close(read)
        if self.first is not None:
            _write(process, self.first)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process and its current run, which removes its unfinished files."""
        self.let_go()
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def let_go(self) -> None:
        """Let the process end, without waiting for it."""
        if self._write is not None:
            os.close(self._write)
        self._write = None

    def kill(self) -> None:
        """End the process. A thread that reads from it gets RunFailed."""
        self._process.kill()

    def fresh(self) -> None:
        """Start a new process if this one has ended."""
        if self._process.poll() is not None:
            self.close()
            self._process = self._started()

    def write(self, message: object) -> None:
        """Send a line. If the process has ended, the line is lost, and there is no answer."""
        _write(self._process, message)

    def read(self) -> dict[str, Any]:
        """The next line. Raises RunFailed if the process was killed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RunFailed(f"a process of {self.of} was killed, perhaps for lack of memory")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _write(process: subprocess.Popen[str], message: object) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), file=process.stdin, flush=True)


@contextlib.contextmanager
def answering() -> Iterator[TextIO]:
    """In the process: the stream for its answers. When its user ends, the block is interrupted, and the process ends silently."""
    share_cores()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's own code prints is no answer
    os.environ["TQDM_DISABLE"] = "1"
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        Thread(target=_interrupt_without, args=(int(os.environ.pop(USER)),), daemon=True).start()
        yield answers
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # what is left in a buffer has no reader


def _interrupt_without(user: int) -> None:
    while os.read(user, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
