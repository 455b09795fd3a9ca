"""Start one process for each rank on this machine, and end all of them."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from hetsim.distributed.environment import RankStart, Settings
from hetsim.distributed.launch.supervision import BEGIN_SECONDS, GRACE_SECONDS, End, SupervisedProcess, Supervision, seconds_at_begin
from hetsim.distributed.membership.faults import FaultSchedule, survives_losses, surviving_run
from hetsim.distributed.membership.keeper import BEGAN, FAILED, SurvivingRun
from hetsim.distributed.pacing.cpu_quota import remove_leftovers
from hetsim.distributed.pacing.padding import clock
from hetsim.distributed.pacing.shared_links import remove_leftovers as remove_transfers
from hetsim.errors import RunFailed, RunStopped
from hetsim.files.folder import abandon
from hetsim.files.temporary import own_multiprocessings_folder
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment

PRELOAD = ["torch", "pyarrow", "hetsim.config.build", "hetsim.distributed.launch.process"]
"""Modules whose import would take long in each process."""

NO_FORKSERVER = "the process that forks one for each rank was killed, perhaps for lack of memory: the run is lost"

UNKNOWN_STATUS = 255
"""The exit status that multiprocessing reports for any process after the forkserver's end. The process's pipe shows whether it lives."""


MAX_WAIT = 3600.0
"""The maximum seconds of one wait, because it cannot last forever."""


@dataclass(kw_only=True, eq=False)
class ForkedRank(SupervisedProcess):
    """A forked process, and the end of a pipe for its result or error."""

    process: Any
    pipe: Connection

    def end(self) -> End | None:
        if not self.pipe.poll():
            return None
        try:
            return End(*self.pipe.recv())
        except (EOFError, OSError):
            return End()

    def status(self) -> int | None:
        self.process.join(GRACE_SECONDS)
        return self.process.exitcode  # type: ignore[no-any-return]

    def signal(self, number: int) -> None:
        if self.process.pid is not None:  # it is being started
            with contextlib.suppress(ProcessLookupError):  # it has just ended, which is heard by its pipe
                os.kill(self.process.pid, number)


class PipeToKeeper:
    """The keeper in a separate process. `run` is None for a run that ends with any of its processes."""

    def __init__(self, pipe: Connection, run: SurvivingRun | None, faults: FaultSchedule) -> None:
        self.pipe = pipe
        self.faults = faults
        self.began: float | None = None
        self.lives = True
        self._run = run

    def reports(self) -> Iterator[tuple[Any, ...]]:
        try:
            while self.lives and self.pipe.poll():
                report = self.pipe.recv()
                if report[0] == BEGAN:
                    self.began = report[1]
                else:
                    yield report
        except (EOFError, OSError):
            self.lives = False
            yield FAILED, 1, "the process that keeps the run's store ended by itself: the run is lost"

    def tell(self, event: str, rank: int, incarnation: int, at: float = 0.0, why: str = "") -> None:
        with contextlib.suppress(OSError):  # it is gone, which is heard by its pipe
            self.pipe.send((event, rank, incarnation, at, why))

    def run_without(self, rank: int) -> SurvivingRun | None:
        return self._run

    def has_left(self, rank: int) -> bool:
        return True  # it has said so by its own pipe


def launch(experiment: Experiment, folder: Path, config: str, settings: Settings, *, port: int | None) -> dict[str, Any]:
    """Run one process for each rank. Returns the summary. In any case, all processes have ended afterwards."""
    saves = experiment.checkpoint.enabled
    listening = listen(port)
    context = multiprocessing.get_context("forkserver")
    schedule, survives = FaultSchedule(experiment, began=seconds_at_begin(experiment)), survives_losses(experiment)
    absent = dict(schedule.absent)
    run = surviving_run(experiment, schedule, survives=survives, lost_after=settings.lost_after_seconds)
    own_end, keepers_end = context.Pipe()
    keeper = context.Process(target=_keep, args=(listening, keepers_end, run), name="hetsim store", daemon=True)
    senders: list[Connection] = []

    def new_rank(rank: int, incarnation: int = 0, joins_at: float | None = None) -> ForkedRank:
        receiver, sender = context.Pipe(duplex=False)
        senders.append(sender)
        rank_start = RankStart(rank, incarnation, absent, joins_at, address[1], survives, run.succession)
        arguments = (experiment, folder, config, settings, rank_start, sender)
        process = context.Process(target=_child, args=arguments, name=f"hetsim rank {rank}", daemon=True)
        return ForkedRank(rank=rank, incarnation=incarnation, process=process, pipe=receiver)

    def start(*processes: Any) -> None:
        with own_server(), _no_main():
            started = _start(processes)
        while senders:
            senders.pop().close()
        if not started:
            raise RunFailed(NO_FORKSERVER)

    def start_again(rank: int, incarnation: int, joins_at: float) -> ForkedRank:
        again = new_rank(rank, incarnation, joins_at)
        ranks.append(again)
        start(again.process)
        return again

    def pass_on() -> None:
        """Pass the stop signal to the leader, or to all ranks. Any rank that receives it informs the leader."""
        for process in supervision.running:
            if run.succession or process.rank == experiment.leader:
                process.signal(signal.SIGUSR1)

    address = listening.getsockname()
    ranks = [new_rank(rank, joins_at=schedule.joins.get(rank)) for rank in range(experiment.num_ranks)]
    own_multiprocessings_folder()
    begin_server(experiment.imports)
    to_keeper = PipeToKeeper(own_end, run if survives else None, schedule)
    supervision = Supervision(ranks, to_keeper, start=start_again)
    stop = StopRequest()
    try:
        with stop.by_signals(pass_on) if saves else contextlib.nullcontext():
            senders.append(keepers_end)
            start(keeper, *(rank.process for rank in ranks))
            listening.close()
            if stop.asked:  # while they were being started
                pass_on()
            return outcome(supervision, to_keeper)
    except BaseException:
        _end(ranks, kill=saves)
        abandon(folder)
        raise
    finally:
        listening.close()
        _end(ranks, kill=saves)
        own_end.close()  # the keeper ends with it
        _terminate([keeper], kill=saves)
        remove_transfers(Path(tempfile.gettempdir()))
        if settings.emulate == "quota":
            remove_leftovers()


def outcome(supervision: Supervision, keeper: PipeToKeeper) -> dict[str, Any]:
    """The summary. Raises the process error with the lowest order, which is nearest to the cause.

    Raises RunStopped if the run was asked to stop and has saved a checkpoint.
    """
    deadline = math.inf
    while not supervision.complete and clock() < deadline:
        pipes = [process.pipe for process in supervision.running if isinstance(process, ForkedRank)]
        wait([*pipes, *([keeper.pipe] if keeper.lives else [])], min(supervision.pause(clock()), deadline - clock(), MAX_WAIT))
        supervision.look(clock())
        if not supervision.undecided:
            deadline = min(deadline, clock() + GRACE_SECONDS)
    deadline = clock() + BEGIN_SECONDS  # the keeper may have to say what the last loss means
    while supervision.undecided and keeper.lives and keeper.pipe.poll(max(0.0, deadline - clock())):
        supervision.look(clock())
    supervision.look(clock())
    if supervision.failures:
        raise min(supervision.failures, key=lambda failure: failure[0])[1]
    if supervision.summary is None:
        raise RunFailed("all processes of the run have ended, and none has reported its results: the run is lost")
    if isinstance(supervision.summary, RunStopped):
        raise supervision.summary
    return supervision.summary  # type: ignore[no-any-return]


def _start(processes: Sequence[Any]) -> bool:
    """Start the processes. Returns False if their forkserver has ended."""
    try:
        for process in processes:
            process.start()
    except (EOFError, ConnectionError):
        return False
    return True


def _end(ranks: Sequence[ForkedRank], *, kill: bool = False) -> None:
    """End the ranks, including those that have lost their forkserver. With `kill`, kill all, because the run is saved."""
    _terminate([rank.process for rank in ranks], kill=kill)
    for rank in ranks:
        if rank.process.exitcode == UNKNOWN_STATUS and not _ends_within(rank.pipe, 0):
            os.kill(rank.process.pid, signal.SIGKILL)
            _ends_within(rank.pipe, GRACE_SECONDS)


def _terminate(processes: Sequence[Any], *, kill: bool) -> None:
    """Terminate the processes, and kill those that still run. With `kill`, kill all."""
    for process in processes:
        if process.is_alive():
            (process.kill if kill else process.terminate)()
    for process in processes:
        if process.pid is not None:
            process.join(GRACE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _ends_within(pipe: Connection, seconds: float) -> bool:
    """Whether the process at the other end of the pipe ends within these seconds."""
    try:
        while pipe.poll(seconds):
            pipe.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Within this context, a new process does not import the main module, which may be a script that calls `hetsim.run`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_own = vars(forkserver.ForkServer())
"""The state of hetsim's own forkserver, which may also serve later runs."""


@contextlib.contextmanager
def own_server() -> Iterator[None]:
    """Within this context, multiprocessing forks from hetsim's own server. A script's server has other modules and other signals."""
    server: Any = forkserver._forkserver
    scripts_state, method = dict(vars(server)), multiprocessing.get_start_method(allow_none=True)
    vars(server).update(_own)
    try:
        yield
    finally:
        _own.update(vars(server))
        vars(server).update(scripts_state)
        if multiprocessing.get_start_method(allow_none=True) != method:  # a start chooses one, which a script could not change any more
            multiprocessing.set_start_method(method, force=True)


def begin_server(imports: Sequence[str]) -> None:
    """Start the server unless it runs. It imports these modules and those of `PRELOAD`, none of them from the current folder."""
    with own_server(), contextlib.chdir(os.sep):  # a process that it forks goes back
        forkserver.set_forkserver_preload([*PRELOAD, *imports])
        _block_signals(forkserver.ensure_running)


def _block_signals(start: Callable[[], None]) -> None:
    """Call `start` with three signals blocked in the processes that it starts.

    These processes ignore Ctrl-C and a closed terminal, because the parent ends them. A stop signal waits until the rank has a handler.
    """
    resource_tracker.ensure_running()  # it would unblock the signals if `start` started it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGUSR1})
    try:
        start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def listen(port: int | None) -> socket.socket:
    """A listening socket on the loopback address, for the processes' store."""
    try:
        return socket.create_server(("127.0.0.1", port or 0), backlog=1024)
    except OSError as error:
        raise ValueError(
            f"backend.port={port} is not available ({os.strerror(error.errno or 0)}): choose another, or null for any free one"
        ) from None


def _keep(*arguments: Any) -> None:
    from hetsim.distributed.membership.keeper import keep

    keep(*arguments)


def _child(*arguments: Any) -> None:
    from hetsim.distributed.launch.process import child

    child(*arguments)
