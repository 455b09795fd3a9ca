"""The processes that answer the questions of a search or an advice, on this machine or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from hetsim.errors import RunFailed
from hetsim.pool.json_process import JsonProcess

MAX_TRIES = 5
"""The maximum number of tries for a question while nodes are lost, because the question may cause the losses."""
T = TypeVar("T")


class NodeLost(RunFailed):
    """A process's node was lost, and its conversation too. Begin the conversation again with another process."""


class Conversation(Protocol):
    """A process that answers each message."""

    def fresh(self) -> None:
        """Start a new process if this one was killed."""

    def write(self, message: object) -> None:
        """Send a message."""

    def read(self) -> dict[str, Any]:
        """The answer. Raises RunFailed if the process was killed, and NodeLost if its node was lost."""


class Pool(Protocol):
    """A set of processes. Each has one conversation at a time."""

    size: int
    """The number of processes."""

    def borrowed(self) -> contextlib.AbstractContextManager[Conversation]:
        """The next idle process, for a block. Raises RunFailed if the pool has ended."""

    def kill(self) -> None:
        """End the processes' work, without waiting."""

    def close(self) -> None:
        """End the processes and their current runs, which remove their unfinished files."""


class LocalPool:
    """Processes on this machine."""

    def __init__(self, module: str, size: int, *, of: str) -> None:
        self.size = size
        self._all = [JsonProcess(module, of=of) for _ in range(size)]
        self._idle: SimpleQueue[JsonProcess] = SimpleQueue()
        for process in self._all:
            self._idle.put(process)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[JsonProcess]:
        """The same as `Pool.borrowed`."""
        process = self._idle.get()
        try:
            yield process
        finally:
            self._idle.put(process)

    def kill(self) -> None:
        """The same as `Pool.kill`."""
        for process in self._all:
            process.kill()

    def close(self) -> None:
        """The same as `Pool.close`."""
        for process in self._all:
            process.let_go()
        for process in self._all:
            process.close()


def despite_losses(conversation: Callable[[], T]) -> T:
    """The result of a conversation, which is repeated if its node is lost. Raises NodeLost if that happens in each try."""
    for _ in range(MAX_TRIES - 1):
        with contextlib.suppress(NodeLost):
            return conversation()
    return conversation()
