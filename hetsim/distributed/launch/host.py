"""Start and end this host's processes of a run: one call of hetsim-launch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hetsim.distributed.environment import AGAIN, GOES_ON, WATCH
from hetsim.distributed.launch.call import POLL_SECONDS, Call, agree, open_store
from hetsim.distributed.launch.failure_report import ENDED, Failure, LauncherStop
from hetsim.distributed.launch.host_exchange import Hosts
from hetsim.distributed.launch.host_keeper import HostKeeper
from hetsim.distributed.launch.host_losses import CommandRank, HostLosses, StoreToKeeper
from hetsim.distributed.launch.store import ask_to_stop, client
from hetsim.distributed.launch.supervision import GRACE_SECONDS
from hetsim.distributed.pacing.cpu_quota import remove_leftovers
from hetsim.distributed.rank.cleanup import remove_of_killed
from hetsim.errors import RunFailed, RunStopped
from hetsim.files.temporary import temporary_folder
from hetsim.pool.interpreter import python
from hetsim.runtime.checkpointing import STOPPED

CALIBRATE = "hetsim-calibrate"
"""The first argument that starts this command instead of hetsim."""
NO_CAUSE = 9
"""The order of a failure without information about its cause."""


def run_on_this_host(call: Call, stop: LauncherStop) -> None:
    """Run this host's processes together with other hosts' processes. Raises RunFailed with the failure nearest to the cause on any host.

    Raises RunStopped if the run has saved a checkpoint and stopped. A requested `stop` is passed to the processes.
    """
    store, port = open_store(call)
    try:
        counts = agree(store, call)
        first = sum(counts[: call.node])
    except ValueError:
        leave(store, call)
        raise
    connect = partial(client, call.address, port)
    keeper = HostKeeper(counts, connect) if call.node == 0 else None
    keeping = keeper.keeping() if keeper is not None else contextlib.nullcontext()
    with temporary_folder("hetsim-launch-") as folder, keeping, contextlib.ExitStack() as at_end:
        at_end.callback(remove_of_killed, folder)  # not before: who leads next may write to the same folder
        hosts = at_end.enter_context(Hosts(store, call, keeper).talking())
        stopped = False
        failure: Failure | None = Failure(1, f"the run was ended on node rank {call.node}")
        try:
            with host_processes(call, first, sum(counts), port, folder) as (processes, start):
                stop.running = True
                to_keeper = StoreToKeeper(call.node, [command.rank for command in processes], connect, stop)
                with HostLosses(list(processes), to_keeper, partial(start, to_keeper)).watching() as losses:
                    ended = outcome(processes, hosts, stop, losses, keeper)
                stopped = any(command.process.poll() == STOPPED for command in processes)
            if keeper is not None and ended is None:  # what the last losses mean, on any host, is said here
                wait(lambda: hosts.others_complete or bool(keeper.failures), hosts, stop, connect)
                keeper.settle()
                ended = min(keeper.failures, default=None)
            failure = ended
        finally:
            hosts.end(failure, stopped=stopped)
        wait(lambda: hosts.complete, hosts, stop, connect)
        if hosts.failure is not None:
            raise RunFailed(hosts.failure.sentence)
        if hosts.stopped:
            raise RunStopped


def leave(store: Any, call: Call) -> None:
    """Before any process has started: let the launcher with the store wait briefly, until all launchers have read the reason."""
    num_refused = store.add("refused", 1)
    deadline = time.monotonic() + GRACE_SECONDS
    while call.node == 0 and num_refused < call.nodes and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        num_refused = store.add("refused", 0)


@contextlib.contextmanager
def host_processes(
    call: Call, first: int, size: int, port: int, folder: Path
) -> Iterator[tuple[list[CommandRank], Callable[..., CommandRank]]]:
    """This host's processes, and a function that starts one more. No process survives the block.

    Each process reads a pipe that is closed to end the process, or when this process ends.
    """
    read_end, write_end = os.pipe()
    processes: list[CommandRank] = []

    def start(keeper: StoreToKeeper | None, rank: int, incarnation: int = 0, joins_at: float = 0.0) -> CommandRank:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it does not get Ctrl-C: this process ends it
        try:
            number = rank - first
            reason = folder / f"{number}-{incarnation}" / "error.json"
            reason.parent.mkdir()
            calibrates = call.words[:1] == (CALIBRATE,)
            variables = {
                "RANK": first + number,
                "WORLD_SIZE": size,
                "LOCAL_RANK": number,
                "LOCAL_WORLD_SIZE": call.processes,
                "MASTER_ADDR": call.address,
                "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": True,
                "TORCHELASTIC_ERROR_FILE": reason,
                WATCH: f"{os.getpid()}:{read_end}",
                GOES_ON: int(not calibrates),
            }
            if keeper is not None:
                variables[AGAIN] = json.dumps([incarnation, keeper.number, joins_at])
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            module = ["hetsim.cli.calibrate", *call.words[1:]] if calibrates else ["hetsim", *call.words]
            command = [*python(), "-m", *module]
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[read_end])
            processes.append(CommandRank(rank=rank, incarnation=incarnation, process=process, path=reason))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return processes[-1]

    try:
        for number in range(call.processes):
            start(None, first + number)
        yield processes, start
    finally:
        os.close(write_end)
        os.close(read_end)
        end([command.process for command in processes])
        with contextlib.suppress(OSError):  # there are no cgroups here, so no process had one
            remove_leftovers()


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for processes that were asked to end, terminate the remaining ones, and kill those that still run."""
    for urge in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in processes:
            if urge is not None and process.poll() is None:
                urge(process)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def outcome(
    processes: Sequence[CommandRank], hosts: Hosts, stop: LauncherStop, losses: HostLosses, keeper: HostKeeper | None
) -> Failure | None:
    """The end of this host's processes: None if all succeed, except processes without which the run continues.

    After a failure, here or elsewhere, the other processes have a short time to report theirs.
    """
    deadline = None
    passed_on = False

    def failures() -> list[Failure]:
        return losses.failures() + ([] if keeper is None else keeper.failures)

    while not losses.complete and (deadline is None or time.monotonic() < deadline):
        if (failures() or hosts.failure) and deadline is None:
            deadline = time.monotonic() + GRACE_SECONDS
        if stop.asked and not passed_on:
            passed_on = True
            for command in processes:
                command.signal(signal.SIGTERM)
        time.sleep(POLL_SECONDS)
    unended = [Failure(NO_CAUSE, "processes were ended")] if any(command.process.poll() is None for command in processes) else []
    return min(failures() + unended, default=None)


def wait(condition: Callable[[], bool], hosts: Hosts, stop: LauncherStop, connect: Callable[[], Any]) -> None:
    """Wait until the condition holds for the other hosts. After a failure, wait only as long as another host may take to report.

    The wait may be long if this host's processes are lost. A request to stop is passed to the run. If the run saves no
    checkpoints, this launcher ends, and the run continues without it.
    """
    deadline = None
    passed_on = stop.asked
    while not condition() and (deadline is None or time.monotonic() < deadline):
        if deadline is None and hosts.failure:
            deadline = time.monotonic() + 5 * GRACE_SECONDS
        if stop.asked and not passed_on:
            passed_on = True
            if not ask_to_stop(connect()):
                sys.exit(ENDED)
        time.sleep(POLL_SECONDS)
