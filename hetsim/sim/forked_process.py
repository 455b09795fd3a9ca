"""A forked process that computes gradients: weights and gradients are in memory that it shares with the simulation."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import select
import signal
import sys
import warnings
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple, NoReturn

import torch

from hetsim.effects import Batch
from hetsim.sim.gradient_batching import Compute

REQUEST = Struct("<6q")
"""Rank, start, samples and pool of the batch, the place of the weights, and that of the gradient."""
RESULT = Struct("<dq")
"""The mean loss, and 1; or 0 and 0 if computing failed."""
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
"""Signals that end or stop a run: its main process ends the others."""
PAGE = mmap.PAGESIZE


class SharedVectors:
    """Vectors like `like`, in memory without a name that forked processes share: it ends with the last of them.

    Args:
        like: a flat tensor on the CPU.
        count: the number of vectors.
    """

    def __init__(self, like: torch.Tensor, count: int) -> None:
        stride = -(-like.nbytes // PAGE) * PAGE
        memory = mmap.mmap(-1, count * stride)
        self.vectors = [torch.frombuffer(memory, dtype=like.dtype, count=len(like), offset=i * stride) for i in range(count)]


class Result(NamedTuple):
    """The mean loss of a gradient, and whether it was computed."""

    loss: float
    computed: bool


class ForkedProcess:
    """A copy of this process that computes gradients, one after another in the order of the requests.

    It ends when this process ends, however that ends. Signals that end a run do not reach it.
    """

    def __init__(self, compute: Compute, weights: SharedVectors, gradients: SharedVectors) -> None:
        self._num_written = memoryview(mmap.mmap(-1, PAGE)).cast("q")
        requests, self._requests = os.pipe()
        self._results, results = os.pipe()
        life, self._life = os.pipe()
        others = (self._requests, self._results, self._life)
        self._num_read = 0
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # what is in a buffer would be written twice
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # other threads of this process take no lock that a gradient needs
                self.pid = os.fork()
            if self.pid == 0:
                _serve(compute, weights.vectors, gradients.vectors, requests, results, life, others, self._num_written)
        except BaseException:
            for other in others:
                os.close(other)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for end in (requests, results, life):
                os.close(end)

    def request(self, *request: int) -> None:
        """Ask for a gradient, by the numbers of a REQUEST. BrokenPipeError if the process has ended."""
        os.write(self._requests, REQUEST.pack(*request))

    @property
    def num_ready(self) -> int:
        """How many results can be read without waiting."""
        return self._num_written[0] - self._num_read

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return bool(select.select([self._results], [], [], 0)[0]) and self.num_ready <= 0

    def results(self, most: int) -> list[Result]:
        """Wait for results, and return them in the order of the requests: at least one; none if the process has ended."""
        found = os.read(self._results, most * RESULT.size)
        self._num_read += len(found) // RESULT.size
        return [Result(loss, bool(computed)) for loss, computed in RESULT.iter_unpack(found)]

    def end(self) -> None:
        """End the process at once."""
        for end in (self._requests, self._results, self._life):
            os.close(end)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # a program around this one may have waited for it
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _serve(
    compute: Compute, weights: list[Any], gradients: list[Any], requests: int, results: int, life: int, others: tuple[int, ...],
    num_written: memoryview,
) -> NoReturn:  # fmt: skip
    """Answer requests until nobody can ask any more."""
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        gc.freeze()  # what the other process has must not be finalised here
        for other in others:
            os.close(other)
        Thread(target=_leave_with, args=(life,), daemon=True).start()
        while request := os.read(requests, REQUEST.size):
            rank, start, samples, pool, at, place = REQUEST.unpack(request)
            loss, computed = 0.0, 0
            with contextlib.suppress(Exception):  # the other process computes it then, and gets the same error
                gradient, loss = compute(rank, weights[at], Batch(start, samples, pool))
                if type(loss) is float and (gradient.shape, gradient.dtype) == (gradients[place].shape, gradients[place].dtype):
                    gradients[place].copy_(gradient)
                    computed = 1
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os.write(results, RESULT.pack(loss, computed))
            num_written[0] += 1
    finally:
        os._exit(0)


def _leave_with(life: int) -> None:
    while os.read(life, 1):
        pass
    os._exit(0)
