"""The processes that answer the questions of a search or an advice: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from hetsim.errors import RunFailed
from hetsim.sweeps.json_process import JsonProcess

MAX_TRIES = 5
"""Conversations that are begun for a question while nodes are lost: it may be the reason."""
T = TypeVar("T")


class NodeLost(RunFailed):
    """The node of a process was lost, and the conversation with it: begin the conversation again, with another process."""


class Conversation(Protocol):
    """A process that answers each message by another one."""

    def fresh(self) -> None:
        """Start another process, if this one was killed."""

    def write(self, message: object) -> None:
        """Send a message."""

    def read(self) -> dict[str, Any]:
        """The answer; RunFailed if the process was killed, NodeLost if its node was lost."""


class Pool(Protocol):
    """Processes; each has one conversation at a time."""

    size: int
    """How many they are."""

    def borrowed(self) -> contextlib.AbstractContextManager[Conversation]:
        """The next idle process, for a block; RunFailed if the pool was ended."""

    def kill(self) -> None:
        """End what the processes do, without waiting."""

    def close(self) -> None:
        """End the processes, and the runs that are under way in them, which remove what they have begun."""


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
        """As `Pool.borrowed`."""
        process = self._idle.get()
        try:
            yield process
        finally:
            self._idle.put(process)

    def kill(self) -> None:
        """As `Pool.kill`."""
        for process in self._all:
            process.kill()

    def close(self) -> None:
        """As `Pool.close`."""
        for process in self._all:
            process.let_go()
        for process in self._all:
            process.close()


def despite_losses(conversation: Callable[[], T]) -> T:
    """What a conversation returns, begun again if its node is lost; NodeLost if that happens each time."""
    for _ in range(MAX_TRIES - 1):
        with contextlib.suppress(NodeLost):
            return conversation()
    return conversation()
