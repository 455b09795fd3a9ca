"""A process of hetsim that answers questions. JSON lines go both ways, so nothing is unpickled.

It runs `python -m hetsim.pool.process MODULE:FUNCTION`. The function gets the process's first line, and returns another function, which
answers each further line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any, TextIO

from hetsim.errors import RunFailed
from hetsim.pool.cores import share_cores
from hetsim.pool.interpreter import python

USER = "HETSIM_USER"
"""The variable with the end of a pipe. The system closes the pipe when the process's user ends, in any way."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The signals that a batch system may send to all processes of a job. The process's user answers them, and ends the process."""
LAST_SECONDS = 3.0
"""The maximum time for a process to end its current run."""

Reply = Callable[[Any], Any]
"""Called with what a process asks in the middle of an answer. Returns the reply, a plain value as JSON has it."""
Answer = Callable[[Any, Reply], Any]
"""Called in the process with a question, and with a function that asks the process's user. Returns the answer."""


def converse(exchange: Callable[[Any, bool], dict[str, Any]], question: Any, reply: Reply | None) -> Any:
    """The answer to a question. `exchange(message, begins)` sends a message and returns the next one; the first message begins.

    Raises ValueError if the question is refused, and RunFailed if the process failed or was killed.
    """
    message = exchange(question, True)
    while "asked" in message:
        assert reply is not None
        message = exchange(reply(message["asked"]), False)
    if "refused" in message:
        raise ValueError(message["refused"])
    if "failed" in message:
        raise RunFailed(message["failed"])
    return message["answer"]


class Process:
    """The user's side of a process. After a kill, the next question starts a new process.

    Args:
        function: the function that the process calls first, as MODULE:FUNCTION.
        of: the user of the processes, in the words of an error.
        first: the argument of this function, a plain value as JSON has it.
    """

    def __init__(self, function: str, *, of: str, first: object = None) -> None:
        self.function = function
        self.of = of
        self.first = first
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [*python(), "-m", __name__, self.function]
        read_end, write_end = os.pipe()
        self._write_end: int | None = write_end
        environment = os.environ | {USER: str(read_end)}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the process inherits it, until it has handlers
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,
                pass_fds=[read_end],
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(read_end)
        _write(process, self.first)
        return process

    def ask(self, question: object, reply: Reply | None = None) -> Any:
        """The answer. Raises ValueError if the question is refused, and RunFailed if the process failed or was killed."""
        return converse(self.exchange, question, reply)

    def exchange(self, message: object, begins: bool) -> dict[str, Any]:
        """Send a message, and return the next one. A message that begins a question starts a new process if the last one has ended.

        Raises RunFailed if the process was killed.
        """
        if begins and self._process.poll() is not None:
            self.close()
            self._process = self._start()
        _write(self._process, message)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RunFailed(f"a process of {self.of} was killed, perhaps for lack of memory")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def let_go(self) -> None:
        """Let the process end, without waiting for it."""
        if self._write_end is not None:
            os.close(self._write_end)
        self._write_end = None

    def close(self) -> None:
        """End the process and its current run, which removes its unfinished files."""
        self.let_go()
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def kill(self) -> None:
        """End the process. A thread that waits for its answer gets RunFailed."""
        self._process.kill()


def _write(process: subprocess.Popen[str], message: object) -> None:
    """Send a line. If the process has ended, the line is lost, and there is no answer."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), file=process.stdin, flush=True)


def serve(start: Callable[[Any], Answer]) -> None:
    """Answer the lines of standard input. When their writer ends, the current answer is interrupted, and the process ends silently."""
    with _answers() as answers:

        def write(**message: object) -> None:
            print(json.dumps(message), file=answers, flush=True)

        def ask(value: Any) -> Any:
            write(asked=value)
            return json.loads(sys.stdin.readline())

        answer = start(json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            try:
                write(answer=answer(json.loads(line), ask))
            except ValueError as error:
                write(refused=str(error))
            except RunFailed as error:
                write(failed=str(error))
            except Exception as error:
                write(failed=f"{type(error).__name__}: {' '.join(str(error).split())}")


@contextlib.contextmanager
def _answers() -> Iterator[TextIO]:
    """The stream for the answers."""
    share_cores()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's own code prints is no answer
    os.environ["TQDM_DISABLE"] = "1"
    try:
        alone = Event()

        def end(*_: object) -> None:
            if alone.is_set():
                raise KeyboardInterrupt

        for number in STOPS:
            signal.signal(number, end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        Thread(target=_interrupt_without, args=(int(os.environ.pop(USER)), alone), daemon=True).start()
        yield answers
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # what is left in a buffer has no reader


def _interrupt_without(user: int, alone: Event) -> None:
    while os.read(user, 1):
        pass
    alone.set()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    serve(getattr(importlib.import_module(module), name))
