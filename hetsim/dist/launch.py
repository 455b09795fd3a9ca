"""Start one process for each rank on this machine, and end all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from hetsim.dist.quota import remove_leftovers
from hetsim.dist.settings import Settings
from hetsim.errors import RunFailed, RunStopped
from hetsim.results.folder import abandon
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment

PRELOAD = ["torch", "hetsim.cli.build", "hetsim.dist.process"]
"""Modules that each process would take seconds to import."""

GRACE_SECONDS = 3.0
"""Seconds that other processes have to report their errors after the first one, and that a process has to end."""

UNKNOWN_STATUS = 255
"""The exit status that multiprocessing reports of a process, living or not, once the forkserver has ended. Its pipe tells which."""


def launch(experiment: Experiment, folder: Path, config: str, settings: Settings, *, port: int | None) -> dict[str, Any]:
    """Run one process for each rank. Returns the summary; in any case all processes have ended afterwards."""
    saves = experiment.checkpoint.enabled
    listening = listen(port)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *experiment.imports])
    pipes = [context.Pipe(duplex=False) for _ in range(experiment.num_ranks)]
    processes = [
        context.Process(
            target=_child,
            args=(experiment, folder, config, settings, rank, listening, listening.getsockname()[1], sender),
            name=f"hetsim rank {rank}",
            daemon=True,
        )
        for rank, (_, sender) in enumerate(pipes)
    ]
    receivers = [receiver for receiver, _ in pipes]
    with contextlib.chdir(Path(__file__).parent):  # it imports PyTorch, see hetsim.libraries; its children go back
        _without_interrupts(forkserver.ensure_running)
    try:
        with _no_main():
            started = _start(processes)
        listening.close()
        for _, sender in pipes:
            sender.close()
        if not started:
            raise RunFailed("the process that forks one for each rank was killed, perhaps for lack of memory: the run is lost")
        leader = processes[experiment.leader].pid
        assert leader is not None
        with StopRequest().by_signals(partial(os.kill, leader, signal.SIGUSR1)) if saves else contextlib.nullcontext():
            return outcome(receivers, processes)
    except BaseException:
        _end(processes, receivers, kill=saves)
        abandon(folder)
        raise
    finally:
        listening.close()
        _end(processes, receivers, kill=saves)
        if settings.emulate == "quota":
            remove_leftovers()


def _start(processes: Sequence[Any]) -> bool:
    """Start the processes. False if their forkserver has ended."""
    try:
        for process in processes:
            process.start()
    except (EOFError, ConnectionError):
        return False
    return True


def _end(processes: Sequence[Any], pipes: Sequence[Connection], *, kill: bool = False) -> None:
    """Terminate the processes; kill those that do not end, that have lost their forkserver, or all, with `kill`: of a run that is saved."""
    for process in processes:
        if process.is_alive():
            (process.kill if kill else process.terminate)()
    for process in processes:
        if process.pid is not None:
            process.join(GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    for process, pipe in zip(processes, pipes, strict=True):
        if process.exitcode == UNKNOWN_STATUS and not _closed(pipe, 0):
            os.kill(process.pid, signal.SIGKILL)
            _closed(pipe, GRACE_SECONDS)


def _closed(pipe: Connection, seconds: float) -> bool:
    """Whether the process at the other end of the pipe ends within these seconds."""
    try:
        while pipe.poll(seconds):
            pipe.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """While this lasts, a process that starts does not import the program's main module, a script that may call `hetsim.run` at its top."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _without_interrupts(start: Callable[[], None]) -> None:
    """Call `start` with SIGINT blocked: the processes that it starts ignore Ctrl-C, and the parent ends them."""
    resource_tracker.ensure_running()  # it would unblock the signal if `start` started it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listen(port: int | None) -> socket.socket:
    """A listening socket on the loopback address, for the store that the processes share."""
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port or 0))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ValueError(f"backend.port={port} is not available ({error.strerror}): choose another, or null for any free one") from None
    return listening


def outcome(pipes: Sequence[Connection], processes: Sequence[Any]) -> dict[str, Any]:
    """The summary. Raises the error of a process that is nearest to the cause: the one of the lowest number."""
    summary: dict[str, Any] | None = None
    reasons: list[tuple[int, Exception]] = []
    reported: dict[int, bool] = {}
    stopped: list[RunStopped] = []
    while len(reported) < len(pipes):
        open_pipes = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in reported}
        ready = wait(list(open_pipes), GRACE_SECONDS if reasons else None)
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = open_pipes[pipe]
            try:
                order, answer = pipe.recv()
            except EOFError:
                processes[rank].join(GRACE_SECONDS)
                order, answer = (
                    1,
                    RunFailed(f"the process of rank {rank} ended by itself (exit status {processes[rank].exitcode}): the run is lost"),
                )
            reported[rank] = True
            if isinstance(answer, RunStopped):
                stopped.append(answer)
                continue
            if isinstance(answer, Exception):
                reasons.append((order, answer))
            elif answer is not None:
                summary = answer
    if reasons:
        raise min(reasons, key=lambda reason: reason[0])[1]
    if stopped:
        raise stopped[0]
    assert summary is not None
    return summary


def _child(
    experiment: Experiment,
    folder: Path,
    config: str,
    settings: Settings,
    rank: int,
    listening: socket.socket,
    port: int,
    sender: Connection,
) -> None:
    from hetsim.dist.process import child

    child(experiment, folder, config, settings, rank=rank, listening=listening, port=port, sender=sender)
