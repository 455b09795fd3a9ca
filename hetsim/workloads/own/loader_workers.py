"""Processes that read the samples of a user's own data for a rank.

A rank's process cannot fork, because threads of PyTorch and gloo may hold locks. So each worker is a fresh interpreter that calls the
user's function again, as every rank does, with the same seed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import ORIGINAL_DIR  # type: ignore[attr-defined]
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from hetsim.workloads.own.loader_process import LoaderFailure, SampleReply, SampleRequest
from hetsim.workloads.own.training import Training
from hetsim.workloads.own.users_code import UsersError
from hetsim.workloads.tasks.sequence import Indices, Words

CODE = "import sys; sys.path[:] = sys.argv[2:]; from hetsim.workloads.own.loader_process import main; main(int(sys.argv[1]))"
GRACE_SECONDS = 3.0
"""The time for a process to end after its pipe is closed."""


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    """The process. It ends when its standard input does, so it never outlives this process."""
    pipe: Connection

    @classmethod
    def start(cls, function: str, make: Callable[[], Training]) -> _Worker:
        """Start a worker, which imports only from where this process does."""
        pipe, workers_end = multiprocessing.Pipe()
        options = ["-P", *["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
        places = [place or ORIGINAL_DIR for place in sys.path]
        with workers_end:
            process = subprocess.Popen(
                [sys.executable, *options, "-c", CODE, str(workers_end.fileno()), *places],
                stdin=subprocess.PIPE, pass_fds=[workers_end.fileno()], process_group=0,
            )  # fmt: skip
        pipe.send((sys.argv, function, make))
        return cls(process, pipe)


class LoaderWorkers:
    """The loader workers of a rank. Their number does not change the samples.

    `make` calls the user's function, which `function` names. Several threads may send requests, one at a time.
    """

    def __init__(self, make: Callable[[], Training], *, function: str, count: int) -> None:
        self.function = function
        self._lock = Lock()
        workers: list[_Worker] = []
        self.close = weakref.finalize(self, _end, workers)
        """End the workers. A thread that waits for a sample then gets an error."""
        for _ in range(count):
            workers.append(_Worker.start(function, make))
        self._workers = workers

    @property
    def processes(self) -> list[int]:
        """The process ids."""
        return [worker.process.pid for worker in self._workers]

    def read(self, data: str, chosen: Indices, drawn: Words, *, together: bool) -> tuple[list[Any], Any]:
        """The samples of these data ("train", "test"), and the states of the generators after the last sample.

        Each worker reads a part of the samples, or one worker reads all `together`. Raises the error of the first sample that fails.
        """
        count = 1 if together else min(len(self._workers), len(chosen))
        threads = torch.get_num_threads()
        with self._lock:
            workers = self._workers[:count]
            shares = zip(workers, np.array_split(chosen, count), np.array_split(drawn, count), strict=True)
            for worker, indices, words in shares:
                with contextlib.suppress(OSError):  # of a worker that has ended: no answer comes
                    worker.pipe.send(SampleRequest(data, indices, words, threads, last=worker is workers[-1]))
            answers = [self._answer(worker) for worker in workers]
        samples: list[Any] = []
        for answer in answers:
            if isinstance(answer, LoaderFailure):
                raise answer.error()
            samples += answer.samples
        return samples, answers[-1].generators  # type: ignore[union-attr]

    def _answer(self, worker: _Worker) -> SampleReply | LoaderFailure:
        try:
            answer: SampleReply | LoaderFailure = pickle.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(GRACE_SECONDS)
            problem = f"a loader worker ended by itself (exit status {worker.process.returncode})"
            raise UsersError.of(
                self.function, f"{problem}: lower workload.loader_workers if memory is short, or take 0 to see what happens"
            ) from None
        return answer


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        assert worker.process.stdin is not None
        worker.process.stdin.close()
