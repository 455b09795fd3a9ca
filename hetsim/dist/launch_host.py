"""Start this host's part of the processes of a run, and end all of them: one call of hetsim-launch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hetsim.dist.hosts import POLL_SECONDS, Call, Failure, Hosts, agree, open_store
from hetsim.dist.launched import WATCH
from hetsim.dist.stopping import LauncherStop
from hetsim.dist.supervision import GRACE_SECONDS
from hetsim.errors import RunFailed, RunStopped
from hetsim.runtime.checkpointing import STOPPED

CALIBRATE = "hetsim-calibrate"
"""The first word with which this command is started in the place of hetsim."""
CONSEQUENCE = 9
"""The order of a failure that says nothing of its cause."""


@dataclass(frozen=True)
class Started:
    """One process that this launcher started."""

    rank: int
    process: subprocess.Popen[bytes]
    reason: Path
    """Where it writes why it failed."""

    def failure(self) -> Failure | None:
        """Why it failed; None if it did not, or runs."""
        status = self.process.poll()
        with contextlib.suppress(OSError, ValueError, KeyError):
            message = json.loads(self.reason.read_text(encoding="utf-8"))["message"]
            return Failure(int(message["extraInfo"]["order"]), str(message["message"]))
        if status in (None, 0, STOPPED):
            return None
        return Failure(1 if status < 0 else 2, f"the process of rank {self.rank} ended by itself (exit status {status}): the run is lost")


def run_on_this_host(call: Call, stop: LauncherStop) -> None:
    """Run this host's processes with those of the other hosts. RunFailed with the failure nearest to the cause, on any host.

    RunStopped if the run has saved a checkpoint and stopped. A `stop` that is asked for is passed on to the processes.
    """
    store, port = open_store(call)
    try:
        counts = agree(store, call)
        first = sum(counts[: call.node])
    except ValueError:
        leave(store, call)
        raise
    with TemporaryDirectory(prefix="hetsim-launch-") as folder, Hosts(store, call).talking() as hosts:
        stopped = False
        failure: Failure | None = Failure(1, f"the run was ended on node rank {call.node}")
        try:
            with started(call, first, sum(counts), port, Path(folder)) as processes:
                stop.running = True
                failure = outcome(processes, hosts, stop)
                stopped = any(each.process.poll() == STOPPED for each in processes)
        finally:
            hosts.end(failure)
        wait(hosts, failure)
        if hosts.failure is not None:
            raise RunFailed(hosts.failure.sentence)
        if stopped:
            raise RunStopped


def leave(store: Any, call: Call) -> None:
    """Before any process has started: the launcher with the store waits a moment, until all launchers have read why."""
    gone = store.add("refused", 1)
    deadline = time.monotonic() + GRACE_SECONDS
    while call.node == 0 and gone < call.nodes and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        gone = store.add("refused", 0)


@contextlib.contextmanager
def started(call: Call, first: int, size: int, port: int, folder: Path) -> Iterator[list[Started]]:
    """This host's processes, of which none lives after the block: each reads a pipe that is closed when this process lets go, or ends."""
    read, write = os.pipe()
    processes: list[Started] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # they do not get Ctrl-C: this process ends them
    try:
        for number in range(call.processes):
            reason = folder / str(number) / "error.json"
            reason.parent.mkdir()
            variables = {
                "RANK": first + number,
                "WORLD_SIZE": size,
                "LOCAL_RANK": number,
                "LOCAL_WORLD_SIZE": call.processes,
                "MASTER_ADDR": call.address,
                "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": True,
                "TORCHELASTIC_ERROR_FILE": reason,
                WATCH: f"{os.getpid()}:{read}",
            }
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            calibrates = call.words[:1] == (CALIBRATE,)
            module = ["hetsim.cli.calibrate", *call.words[1:]] if calibrates else ["hetsim", *call.words]
            command = [sys.executable, "-m", *module]
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[read])
            processes.append(Started(first + number, process, reason))
        os.close(read)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield processes
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        end([each.process for each in processes])


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for processes that were let go, terminate those that do not end, and kill those that do not end then."""
    for urge in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in processes:
            if urge is not None and process.poll() is None:
                urge(process)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def outcome(processes: Sequence[Started], hosts: Hosts, stop: LauncherStop) -> Failure | None:
    """How this host's processes end: None if all succeed. After a failure, here or elsewhere, the others have a moment to report theirs."""
    deadline = None
    passed_on = False
    while any(each.process.poll() is None for each in processes) and (deadline is None or time.monotonic() < deadline):
        if deadline is None and (hosts.failure or any(each.failure() for each in processes)):
            deadline = time.monotonic() + GRACE_SECONDS
        if stop.asked and not passed_on:
            passed_on = True
            for each in processes:
                each.process.send_signal(signal.SIGTERM)
        time.sleep(POLL_SECONDS)
    failures = [failure for each in processes if (failure := each.failure()) is not None]
    if any(each.process.poll() is None for each in processes):
        failures.append(Failure(CONSEQUENCE, "processes were ended"))
    return min(failures) if failures else None


def wait(hosts: Hosts, failure: Failure | None) -> None:
    """Until it is known how the processes of all hosts ended; after a failure, for as long as another host may take to say so."""
    deadline = None
    while not hosts.complete and (deadline is None or time.monotonic() < deadline):
        if deadline is None and (failure or hosts.failure):
            deadline = time.monotonic() + 5 * GRACE_SECONDS
        time.sleep(POLL_SECONDS)
