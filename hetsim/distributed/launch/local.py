"""Start one process for each rank on this machine, and end all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from hetsim.checkpoints.resume import clock_of
from hetsim.distributed.environment import RankStart
from hetsim.distributed.launch.supervision import GRACE_SECONDS, Child, Supervision
from hetsim.distributed.membership.faults import Schedule, is_elastic
from hetsim.distributed.pacing.cpu_quota import remove_leftovers
from hetsim.distributed.settings import Settings
from hetsim.errors import RunFailed
from hetsim.results.writing.folder import abandon
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment

PRELOAD = ["torch", "hetsim.config.build", "hetsim.distributed.launch.process"]
"""Modules that each process would take seconds to import."""

NO_FORKSERVER = "the process that forks one for each rank was killed, perhaps for lack of memory: the run is lost"

UNKNOWN_STATUS = 255
"""The exit status that multiprocessing reports of a process, living or not, once the forkserver has ended. Its pipe tells which."""


def launch(experiment: Experiment, folder: Path, config: str, settings: Settings, *, port: int | None) -> dict[str, Any]:
    """Run one process for each rank. Returns the summary; in any case all processes have ended afterwards."""
    saves = experiment.checkpoint.enabled
    listening = listen(port)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *experiment.imports])
    schedule, elastic = Schedule(experiment, began=seconds_before(experiment)), is_elastic(experiment)
    members = tuple(rank for rank in range(experiment.num_ranks) if rank not in schedule.joins)
    ours, keepers = context.Pipe()
    succession = elastic and not experiment.coordination.needs_server
    about = (listening, keepers, dict.fromkeys(members, 0), settings.lost_after_seconds, saves, succession)
    keeper = Child(-1, 0, context.Process(target=_keep, args=about, name="hetsim store", daemon=True), ours)

    def prepared(rank: int, incarnation: int, joins_at: float | None) -> tuple[Child, Connection]:
        receiver, sender = context.Pipe(duplex=False)
        where = RankStart(rank, incarnation, members, joins_at, address[1], elastic, succession)
        arguments = (experiment, folder, config, settings, where, sender)
        process = context.Process(target=_child, args=arguments, name=f"hetsim rank {rank}", daemon=True)
        return Child(rank, incarnation, process, receiver, joins_at=joins_at or 0.0), sender

    def start(*about: Any) -> Child:
        child, sender = prepared(*about)
        with _no_main():
            started = _start([child.process])
        sender.close()
        if not started:
            raise RunFailed(NO_FORKSERVER)
        return child

    address = listening.getsockname()
    first = [prepared(rank, 0, schedule.joins.get(rank)) for rank in range(experiment.num_ranks)]
    children = [child for child, _ in first]
    with contextlib.chdir(Path(__file__).parent):  # it imports PyTorch, see hetsim.trust.libraries; its children go back
        _without_signals(forkserver.ensure_running)
    supervision = Supervision(
        experiment, children, keeper, start=start, elastic=elastic, schedule=schedule, lost_after=settings.lost_after_seconds
    )
    stop = StopRequest()
    try:
        with stop.by_signals(supervision.pass_on) if saves else contextlib.nullcontext():
            with _no_main():
                started = _start([keeper.process, *(child.process for child in children)])
            listening.close()
            for sender in (keepers, *(sender for _, sender in first)):
                sender.close()
            if not started:
                raise RunFailed(NO_FORKSERVER)
            if stop.asked:  # while they were being started
                supervision.pass_on()
            return supervision.outcome()
    except BaseException:
        _end([child.process for child in children], [child.pipe for child in children], kill=saves)
        abandon(folder)
        raise
    finally:
        listening.close()
        _end([child.process for child in children], [child.pipe for child in children], kill=saves)
        ours.close()  # the keeper ends with it
        _end([keeper.process], [], kill=saves)
        if settings.emulate == "quota":
            remove_leftovers()


def seconds_before(experiment: Experiment) -> float:
    """What the clock of a run with faults says when it begins: that of the checkpoint that it goes on from, or 0."""
    faults = experiment.cluster.faults
    return clock_of(experiment.resume) if experiment.resume is not None and (faults.nodes or faults.pauses) else 0.0


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
    for process, pipe in zip(processes, pipes, strict=False):
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


def _without_signals(start: Callable[[], None]) -> None:
    """Call `start` with two signals blocked in the processes that it starts.

    They ignore Ctrl-C, and the parent ends them; and what asks a rank to stop waits until it has a handler for it.
    """
    resource_tracker.ensure_running()  # it would unblock the signals if `start` started it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
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


def _keep(*about: Any) -> None:
    from hetsim.distributed.membership.keeper import keep

    keep(*about)


def _child(*about: Any) -> None:
    from hetsim.distributed.launch.process import child

    child(*about)
