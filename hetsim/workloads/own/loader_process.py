"""A loader worker: it reads samples of a user's own data for the process that started it, and ends with that process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from hetsim.memory import out_of_memory
from hetsim.workloads.own.chance import states
from hetsim.workloads.own.items import read_samples, underlying_dataset
from hetsim.workloads.own.packing import pack
from hetsim.workloads.own.training import Training
from hetsim.workloads.own.users_code import UsersError, reason, users_code
from hetsim.workloads.tasks.sequence import Indices, Words


@dataclass(frozen=True)
class SampleRequest:
    """Samples for a loader worker to read."""

    data: str
    """The samples' set: train or test."""
    chosen: Indices
    drawn: Words
    threads: int
    """The number of PyTorch's threads."""
    last: bool
    """Whether these are the last samples of a batch."""


@dataclass(frozen=True)
class SampleReply:
    """Samples, and after a batch's last ones the states of the generators."""

    samples: list[Any]
    generators: Any = None


@dataclass(frozen=True)
class LoaderFailure:
    """An error, as a sentence."""

    sentence: str
    notes: tuple[str, ...] = ()
    memory: bool = False
    """Whether memory was insufficient."""

    @classmethod
    def of(cls, error: Exception) -> LoaderFailure:
        """Convert an error, to be raised again in the rank's process."""
        return cls(str(error), tuple(getattr(error, "__notes__", ())), memory=out_of_memory(error) is not None)

    def error(self) -> Exception:
        """The error."""
        error: Exception = MemoryError(self.sentence) if self.memory else UsersError(self.sentence)
        for note in self.notes:
            error.add_note(note)
        return error


def main(pipe: int) -> None:
    """Answer requests from this pipe (a file descriptor) until the standard input ends. The parent process holds it open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_leave, daemon=True).start()
    parent = Connection(pipe)
    sys.argv, function, make = parent.recv()
    training = _training_of(make)
    while True:
        parent.send_bytes(_answer(training, parent.recv(), function))


def _leave() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def _training_of(make: Callable[[], Training]) -> Training | LoaderFailure:
    try:
        return make()
    except Exception as error:
        if isinstance(error, ValueError) or out_of_memory(error) is not None:
            return LoaderFailure.of(error)
        raise


def _answer(training: Training | LoaderFailure, request: SampleRequest, function: str) -> bytes:
    """The requested samples, or the error, as bytes."""
    if isinstance(training, LoaderFailure):
        return pack(training)
    if torch.get_num_threads() != request.threads:
        torch.set_num_threads(request.threads)
    try:
        with users_code(function, f"{request.data}[…]"):
            samples = read_samples(underlying_dataset(getattr(training, request.data)), request.chosen, request.drawn)
        return _pack_reply(SampleReply(samples, states() if request.last else None), request.data, function)
    except Exception as error:
        if isinstance(error, UsersError) or out_of_memory(error) is not None:
            return pack(LoaderFailure.of(error))
        raise


def _pack_reply(reply: SampleReply, data: str, function: str) -> bytes:
    try:
        return pack(reply)
    except Exception as error:
        if out_of_memory(error) is not None:
            raise
        remedy = "let them be tensors, arrays, numbers, or tuples or dictionaries of these, or take workload.loader_workers=0"
        sentence = f"the samples of {data} cannot be handed from one process to another ({reason(error)}): {remedy}"
        raise UsersError.of(function, sentence) from None
