"""One process of a run: rendezvous, the rank's run, and on the leader the files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch.distributed as dist

from hetsim.dist.orphan import leave_with_parent
from hetsim.dist.pace import Lateness, Pace, clock, emulation, late_warnings, reduce_timer_slack
from hetsim.dist.placement import device_of, local_ranks
from hetsim.dist.quota import Uncapped, cap_of, quota_warnings
from hetsim.dist.rank import RankRun
from hetsim.dist.settings import Settings
from hetsim.dist.torchrun import leave_reason
from hetsim.dist.transport import GlooTransport
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed
from hetsim.memory import out_of_memory
from hetsim.results.folder import abandon, run_folder
from hetsim.results.summary import write_summary
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.files import keep_names
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import Trace, TracePart, append_received

RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
"""Time in which all processes have to connect to the store."""
_runs = itertools.count()

Report = Callable[[RunFailed], None]


@cache
def _torchruns_store() -> Any:
    store, _, _ = next(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))  # type: ignore[attr-defined]
    return store


def join(experiment: Experiment, folder: Path, config: str, settings: Settings, *, rank: int) -> dict[str, Any] | None:
    """Take part in a run in a process that torchrun started. Each of several runs has its own prefix in the store."""
    store = dist.PrefixStore(f"hetsim run {next(_runs)}", _torchruns_store())  # type: ignore[attr-defined]
    cap = cap_of(experiment, settings, rank)

    def report(error: RunFailed) -> None:
        leave_reason(str(error))
        print(f"hetsim: error: {error}", file=sys.stderr, flush=True)
        keep_names()
        abandon(folder)
        cap.remove()
        os._exit(1)  # nothing else ends the program's thread, which waits in the network; torchrun ends the other processes

    try:
        return take_part(experiment, folder, config, settings, cap, rank=rank, store=store, report=report)
    except PeerLost as error:
        raise RunFailed(str(error)) from None


def child(
    experiment: Experiment, folder: Path, config: str, settings: Settings, *, rank: int,
    listening: socket.socket, port: int, sender: Connection,
) -> None:  # fmt: skip
    """Take part in a run in a process that `launch` started: report the result to it, and end when it ends.

    An error is reported with a number: the lower, the nearer to its cause.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C, too, and ends this process
    cap = cap_of(experiment, settings, rank)
    Thread(target=leave_with_parent, args=(folder if rank == experiment.leader else None, cap), daemon=True).start()

    def report(error: RunFailed) -> None:
        sender.send((1, error))
        os._exit(1)  # nothing else ends the program's thread, which waits in the network; the parent ends the other processes

    try:
        # the ranks' store listens on the socket that the parent bound, so no other program can take the port in between
        master = listening.detach() if rank == 0 else None
        if master is None:
            listening.close()
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, experiment.num_ranks, rank == 0, RENDEZVOUS_TIMEOUT, master_listen_fd=master
        )
        summary = take_part(experiment, folder, config, settings, cap, rank=rank, store=store, report=report)
    except ValueError as error:
        sender.send((0, error))
    except RunFailed as error:
        sender.send((1, error))
    except PeerLost as error:
        sender.send((3, RunFailed(str(error))))
    except OSError as error:
        sender.send((1, OSError(error.errno, error.strerror, error.filename) if error.filename else RunFailed(str(error))))
    except Exception as error:
        if (short := out_of_memory(error)) is not None:
            sender.send((2, RunFailed(f"rank {rank}: {short}")))
            return
        traceback.print_exc()
        sender.send((2, RunFailed(f"rank {rank} failed: {type(error).__name__}: {error}")))
    else:
        sender.send((0, summary))


def take_part(
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: Uncapped, *, rank: int, store: Any, report: Report
) -> dict[str, Any] | None:
    """Connect to the other ranks, run this rank's program, and on the leader write the run's files. Returns the summary there.

    What is measured before the run is capped as the run is; the connection is not, whose threads only move messages.
    """
    begun = clock()
    reduce_timer_slack()
    os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    task, optimizers = experiment.load(device_of(experiment, rank, local_ranks(experiment)))
    leads = rank == experiment.leader
    pace = Pace(settings.emulate)
    trace = Trace(folder, experiment.trace) if leads else TracePart(experiment.trace)
    with run_folder(folder, config) if leads else contextlib.nullcontext(), trace:
        with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
            with cap:
                run = RankRun(
                    experiment, task, optimizers, trace, rank=rank, transport=transport, pace=pace, reduction=settings.reduction,
                    uncapped=cap.lifted,
                )  # fmt: skip
                run.run(store, report)
            if not leads:
                send_results(run, cap)
                return None
            results = collect_results(run, cap)
        run.close()
        emulated, warnings = emulation(settings, results.lateness), late_warnings(results.lateness, run.metrics.applied.seconds)
        if settings.emulate == "quota":
            emulated["workers"] = [{"rank": rank, **done} for rank, done in sorted(results.caps.items()) if done is not None]
            warnings = quota_warnings(experiment, emulated["workers"])
        return write_summary(
            folder, run.outcome, backend="dist", wall_seconds=clock() - begun, devices=results.devices,
            emulation=emulated, warnings=warnings,
        )  # fmt: skip


def send_results(run: RankRun, cap: Uncapped) -> None:
    """Send this rank's results to the leader: numbers as JSON, and its part of the trace as an Arrow stream."""
    assert isinstance(run.trace, TracePart)
    is_worker = run.rank < run.experiment.num_workers
    numbers = {
        "activity": run.metrics.activity[run.rank].as_numbers() if is_worker else None,
        "device": run.prepared.task.device.name,
        "lateness": {kind: vars(lateness) for kind, lateness in run.pace.kinds.items()},
        "cap": cap.report,
    }
    run.close()
    run.transport.send_bytes([json.dumps(numbers).encode()], run.experiment.leader)
    run.transport.send_bytes(run.trace.pieces(), run.experiment.leader)


class Results(NamedTuple):
    """What the ranks hand in beside their rows and their activity."""

    lateness: dict[str, Lateness]
    """Of all ranks together, by kind."""
    devices: list[str]
    """Of each rank."""
    caps: dict[int, dict[str, Any] | None]
    """How each rank was capped; None if it was not."""


def collect_results(run: RankRun, cap: Uncapped) -> Results:
    """On the leader: receive the other ranks' results, in rank order."""
    experiment, transport = run.experiment, run.transport
    lateness: dict[str, Lateness] = defaultdict(Lateness, run.pace.kinds)
    devices = [run.prepared.task.device.name] * experiment.num_ranks
    caps = {run.rank: cap.report}
    for rank in range(experiment.num_ranks):
        if rank == run.rank:
            continue
        numbers = json.loads(b"".join(transport.receive_bytes(rank)))
        if numbers["activity"] is not None:
            run.metrics.activity[rank] = RankActivity.of_numbers(numbers["activity"], experiment.coordination.num_ahead)
        devices[rank] = numbers["device"]
        for kind, counts in numbers["lateness"].items():
            lateness[kind] += Lateness(**counts)
        caps[rank] = numbers["cap"]
        append_received(run.trace, transport.receive_bytes(rank), rank=rank)
    return Results(lateness, devices, caps)
