"""Several processes that answer questions, on this machine or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from hetsim.errors import RunFailed
from hetsim.pool.process import Process, Reply

MAX_TRIES = 5
"""The maximum number of tries for a question while nodes are lost, because the question may cause the losses."""
T = TypeVar("T")
R = TypeVar("R")


class NodeLost(RunFailed):
    """A process's node was lost, and its answer too. Ask another process."""


class PoolEnded(RunFailed):
    """The processes of a pool were ended, so there is no answer."""


class Asked(Protocol):
    """A process that answers one question at a time."""

    def ask(self, question: object, reply: Reply | None = None) -> Any:
        """The answer. Raises ValueError if the question is refused, RunFailed if the process failed, and NodeLost if its node was lost."""


class Pool(ABC):
    """A set of processes. Each answers one question at a time."""

    size: int
    """The number of processes."""

    @abstractmethod
    def borrowed(self) -> contextlib.AbstractContextManager[Asked]:
        """The next idle process, for a block. Raises PoolEnded if the pool has ended."""

    @abstractmethod
    def kill(self) -> None:
        """End the processes' work, without waiting."""

    @abstractmethod
    def close(self) -> None:
        """End the processes and their current runs, which remove their unfinished files."""

    def ask(self, question: object, replying: Callable[[], Reply] | None = None) -> Any:
        """The answer of the next idle process. If its node is lost, another process is asked. `replying` is called for each process.

        Raises ValueError if the question is refused, RunFailed if the process failed, and NodeLost after `MAX_TRIES` lost nodes.
        """
        for _ in range(MAX_TRIES - 1):
            with contextlib.suppress(NodeLost):
                return self._ask(question, replying)
        return self._ask(question, replying)

    def _ask(self, question: object, replying: Callable[[], Reply] | None) -> Any:
        with self.borrowed() as process:
            return process.ask(question, None if replying is None else replying())

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        """Yield (number of the item, result of `work`), as the results come. `work` runs in one thread for each process, and asks there.

        An item is drawn when a process is idle. If `work` or the user's loop raises, the pool is closed.
        """
        numbered = enumerate(items)
        running: dict[Future[R], int] = {}
        with ThreadPoolExecutor(max(1, self.size)) as threads:
            try:
                while True:
                    for number, item in islice(numbered, max(1, self.size) - len(running)):
                        running[threads.submit(work, item)] = number
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(future), future.result()
            except BaseException:
                self.close()  # the threads wait for its processes
                raise


class LocalPool(Pool):
    """Processes on this machine."""

    def __init__(self, function: str, size: int, *, of: str, first: object = None) -> None:
        self.size = size
        self._ended = False
        self._all = [Process(function, of=of, first=first) for _ in range(size)]
        self._idle: SimpleQueue[Process] = SimpleQueue()
        for process in self._all:
            self._idle.put(process)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[Process]:
        """The same as `Pool.borrowed`."""
        if self._ended:
            raise PoolEnded("the processes were ended")
        process = self._idle.get()
        try:
            yield process
        except RunFailed:
            if self._ended:
                raise PoolEnded("the processes were ended") from None
            raise
        finally:
            self._idle.put(process)

    def kill(self) -> None:
        """The same as `Pool.kill`."""
        for process in self._all:
            process.kill()

    def close(self) -> None:
        """The same as `Pool.close`."""
        self._ended = True
        for process in self._all:
            process.let_go()
        for process in self._all:
            process.close()
