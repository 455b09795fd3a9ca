"""A forked process that computes gradients. It shares the memory of weights and gradients with the simulation."""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple, NoReturn

import torch

from hetsim.effects import Batch
from hetsim.sim.gradient_batching import Compute

NUM_SLOTS = 64
"""The maximum number of requests in progress."""
REQUEST = Struct("6q")
"""A batch's rank, start, samples and pool, the place of its weights, and the place of its gradient."""
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
"""Signals that end or stop a run. The run's main process ends the other processes."""
LOOK_MILLISECONDS = 500
"""The interval at which a forked process checks whether its parent has changed."""
PAGE = mmap.PAGESIZE


class SharedVectors:
    """Vectors like `like` in anonymous memory that forked processes share. It is freed when the last process ends.

    Args:
        like: a flat tensor on the CPU.
        count: the number of vectors.
    """

    def __init__(self, like: torch.Tensor, count: int) -> None:
        stride = -(-like.nbytes // PAGE) * PAGE
        memory = mmap.mmap(-1, count * stride)
        self.vectors = [torch.frombuffer(memory, dtype=like.dtype, count=len(like), offset=i * stride) for i in range(count)]


class Slots:
    """Requests and results in shared memory. Each one's slot is its number modulo NUM_SLOTS."""

    def __init__(self) -> None:
        self.requests = mmap.mmap(-1, REQUEST.size * NUM_SLOTS)
        self.losses = _shared(NUM_SLOTS, "d")
        self.computed = _shared(NUM_SLOTS, "q")
        self.num_results = _shared(1, "q")


def _shared(count: int, kind: str) -> Any:
    shared: Any = memoryview(mmap.mmap(-1, 8 * count))
    return shared.cast(kind)


@contextlib.contextmanager
def without_signals() -> Iterator[None]:
    """Within this context, no signal that ends a run reaches this process. Processes forked in it never receive such a signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Result(NamedTuple):
    """The mean loss of a gradient, and whether it was computed."""

    loss: float
    computed: bool


class ForkedProcess:
    """A copy of this process that computes gradients in the order of the requests.

    It ends when this process ends, in any way. Make it within `without_signals`.
    """

    def __init__(self, compute: Compute, weights: SharedVectors, gradients: SharedVectors) -> None:
        self._slots = Slots()
        self._num_requests = self._num_read = 0
        self._requested, self._answered = os.eventfd(0), os.eventfd(0)
        life, self._life = os.pipe()  # closed when this process ends
        self._its_life, its = os.pipe()  # closed when the other ends
        self._poll = select.poll()
        for end in (self._answered, self._its_life):
            self._poll.register(end, select.POLLIN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # what is in a buffer would be written twice
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads of this process take no lock that a gradient needs
            main = os.getpid()
            self.pid = os.fork()
        if self.pid == 0:
            others = (self._life, self._its_life)
            _serve(compute, weights.vectors, gradients.vectors, self._slots, self._requested, self._answered, life, main, others)
        os.close(life)
        os.close(its)

    def request(self, *request: int) -> None:
        """Request a gradient: rank, start, samples and pool of its batch, the place of its weights, and the place of its gradient."""
        REQUEST.pack_into(self._slots.requests, self._num_requests % NUM_SLOTS * REQUEST.size, *request)
        self._num_requests += 1
        os.eventfd_write(self._requested, 1)

    @property
    def num_ready(self) -> int:
        """The number of results that can be read without waiting. It may be too low."""
        num_results: int = self._slots.num_results[0]
        return num_results - self._num_read

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return any(end == self._its_life for end, _ in self._poll.poll(0))

    def results(self) -> list[Result]:
        """Wait for results, and return them in the order of the requests. Returns at least one, or none if the process has ended."""
        if self.num_ready <= 0 and all(end != self._answered for end, _ in self._poll.poll()):
            return []
        first, slots = self._num_read, self._slots
        self._num_read += os.eventfd_read(self._answered)  # which also orders the accesses to memory
        numbers = (number % NUM_SLOTS for number in range(first, self._num_read))
        return [Result(slots.losses[slot], bool(slots.computed[slot])) for slot in numbers]

    def end(self) -> None:
        """End the process at once."""
        for end in (self._requested, self._answered, self._life, self._its_life):
            os.close(end)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # a program around this one may have waited for it
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _serve(
    compute: Compute, weights: list[Any], gradients: list[Any], slots: Slots, requested: int, answered: int, life: int, main: int,
    others: Iterable[int],
) -> NoReturn:  # fmt: skip
    """Answer requests until no process can send any."""
    try:
        for other in others:
            os.close(other)
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        gc.freeze()  # what the other process has must not be finalised here
        inherited = _own_streams()  # noqa: F841  # if it were deleted, Python would write what is in its buffers
        Thread(target=_leave_with, args=(life, main), daemon=True).start()
        num_requests = 0
        for i in itertools.count():
            while num_requests <= i:
                num_requests += os.eventfd_read(requested)
            slot = i % NUM_SLOTS
            rank, start, samples, pool, at, place = REQUEST.unpack_from(slots.requests, slot * REQUEST.size)
            slots.computed[slot] = 0
            with contextlib.suppress(Exception):  # the other process computes it then, and gets the same error
                gradient, loss = compute(rank, weights[at], Batch(start, samples, pool))
                if type(loss) is float and (gradient.shape, gradient.dtype) == (gradients[place].shape, gradients[place].dtype):
                    gradients[place].copy_(gradient)
                    slots.losses[slot], slots.computed[slot] = loss, 1
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os.eventfd_write(answered, 1)
            slots.num_results[0] = i + 1
    finally:
        os._exit(0)


def _own_streams() -> list[Any]:
    """Write to the same files with empty buffers, because another thread may have printed since the flush. Returns the old streams."""
    inherited = [sys.stdout, sys.stderr]
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):
            stream = getattr(sys, name)
            options = {"encoding": stream.encoding, "errors": stream.errors, "closefd": False}
            setattr(sys, name, os.fdopen(stream.fileno(), "w", buffering=1, **options))
    return inherited


def _leave_with(life: int, main: int) -> None:
    """End with the process `main`, even if a process that it forked later keeps the other end of `life` open."""
    poll = select.poll()
    poll.register(life, select.POLLHUP)
    while not poll.poll(LOOK_MILLISECONDS) and os.getppid() == main:
        pass
    os._exit(0)
