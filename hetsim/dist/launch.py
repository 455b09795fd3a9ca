"""Start one process for each rank on this machine, and leave none behind."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hetsim.errors import RunFailed
from hetsim.results.folder import abandon
from hetsim.runtime.experiment import Experiment

PRELOAD = ["torch", "torch._dynamo", "hetsim.cli.build", "hetsim.dist.process"]
"""What each process would spend seconds to import."""


PATIENCE = 3.0
"""Seconds that other processes get to report what went wrong, after the first one has."""


def launch(experiment: Experiment, folder: Path, config: str, *, interface: str, pad: bool, port: int | None) -> dict[str, Any]:
    """Run one process for each rank; whatever happens, all of them are gone afterwards. The summary."""
    listening = listen(port)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *experiment.workload.imports])
    pipes = [context.Pipe(duplex=False) for _ in range(experiment.num_ranks)]
    processes = [
        context.Process(
            target=_child,
            args=(experiment, folder, config, rank, interface, pad, listening, listening.getsockname()[1], telling),
            name=f"hetsim rank {rank}",
            daemon=True,
        )
        for rank, (_, telling) in enumerate(pipes)
    ]
    _without_interrupts(forkserver.ensure_running)
    try:
        for process in processes:
            process.start()
        listening.close()
        for _, telling in pipes:
            telling.close()
        return outcome([heard for heard, _ in pipes], processes)
    except BaseException:
        _end(processes)
        abandon(folder)
        raise
    finally:
        listening.close()
        _end(processes)


def _end(processes: Sequence[Any]) -> None:
    """Terminate them; kill those that do not end."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        if process.pid is not None:
            process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _without_interrupts(start: Callable[[], None]) -> None:
    """Start processes that Ctrl-C does not reach: the parent ends them."""
    resource_tracker.ensure_running()  # which would unblock the signal, were it started by `start`
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listen(port: int | None) -> socket.socket:
    """A listening socket on the loopback address, for the store where the processes meet."""
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port or 0))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ValueError(f"backend.port={port} cannot be had ({error.strerror}): choose another, or null for any free one") from None
    return listening


def outcome(pipes: Sequence[Connection], processes: Sequence[Any]) -> dict[str, Any]:
    """The summary, or the reason why there is none: what a user can fix before what follows from it."""
    summary: dict[str, Any] | None = None
    reasons: list[tuple[int, Exception]] = []
    heard: dict[int, bool] = {}
    while len(heard) < len(pipes):
        open_pipes = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in heard}
        ready = wait(list(open_pipes), PATIENCE if reasons else None)
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = open_pipes[pipe]
            try:
                grave, answer = pipe.recv()
            except EOFError:
                processes[rank].join(PATIENCE)
                grave, answer = (
                    1,
                    RunFailed(f"the process of rank {rank} ended by itself (exit status {processes[rank].exitcode}): the run is lost"),
                )
            heard[rank] = True
            if isinstance(answer, Exception):
                reasons.append((grave, answer))
            elif answer is not None:
                summary = answer
    if reasons:
        raise min(reasons, key=lambda reason: reason[0])[1]
    assert summary is not None
    return summary


def _child(
    experiment: Experiment,
    folder: Path,
    config: str,
    rank: int,
    interface: str,
    pad: bool,
    listening: socket.socket,
    port: int,
    telling: Connection,
) -> None:
    from hetsim.dist.process import child

    child(experiment, folder, config, rank=rank, interface=interface, pad=pad, listening=listening, port=port, telling=telling)
