"""What one process of a run does, from meeting the others to the files."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
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
from typing import Any

import torch.distributed as dist

from hetsim.dist.pace import Lateness, Pace, clock, emulation, wake_on_time, warnings
from hetsim.dist.rank import RankRun
from hetsim.dist.transport import GlooTransport
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed
from hetsim.results.folder import abandon, run_folder
from hetsim.results.summary import write_summary
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import Trace, TracePart, append_received

MEETING = timedelta(minutes=5)
"""Until every process must have come."""
_runs = itertools.count()

Report = Callable[[RunFailed], None]


@cache
def _torchruns_store() -> Any:
    store, _, _ = next(dist.rendezvous("env://", timeout=MEETING))  # type: ignore[attr-defined]
    return store


def join(experiment: Experiment, folder: Path, config: str, *, rank: int, interface: str, pad: bool) -> dict[str, Any] | None:
    """Take part in a process that torchrun started, in this run of perhaps several: each meets under its own name."""
    store = dist.PrefixStore(f"hetsim run {next(_runs)}", _torchruns_store())  # type: ignore[attr-defined]

    def report(error: RunFailed) -> None:
        print(f"hetsim: error: {error}", file=sys.stderr, flush=True)
        abandon(folder)
        os._exit(1)  # the program's thread waits in the network, and nothing else ends it; torchrun ends the others

    try:
        return take_part(experiment, folder, config, rank=rank, interface=interface, pad=pad, store=store, report=report)
    except PeerLost as error:
        raise RunFailed(str(error)) from None


def child(
    experiment: Experiment, folder: Path, config: str, *, rank: int, interface: str, pad: bool,
    listening: socket.socket, port: int, telling: Connection,
) -> None:  # fmt: skip
    """A process that `launch` started: report the outcome to it, and never outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    Thread(target=_leave_with_parent, daemon=True).start()

    def report(error: RunFailed) -> None:
        telling.send((1, error))
        os._exit(1)  # the program's thread waits in the network, and nothing else ends it; the parent ends the others

    try:
        # the ranks' store listens on the socket that the parent bound, so no other program can take the port in between
        master = listening.detach() if rank == 0 else None
        if master is None:
            listening.close()
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, experiment.num_ranks, rank == 0, MEETING, master_listen_fd=master
        )
        summary = take_part(experiment, folder, config, rank=rank, interface=interface, pad=pad, store=store, report=report)
    except ValueError as error:
        telling.send((0, error))
    except RunFailed as error:
        telling.send((1, error))
    except PeerLost as error:
        telling.send((3, RunFailed(str(error))))
    except OSError as error:
        telling.send((1, RunFailed(str(error))))
    except Exception as error:
        traceback.print_exc()
        telling.send((2, RunFailed(f"rank {rank} failed: {type(error).__name__}: {error}")))
    else:
        telling.send((0, summary))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def take_part(
    experiment: Experiment, folder: Path, config: str, *, rank: int, interface: str, pad: bool, store: Any, report: Report
) -> dict[str, Any] | None:
    """Meet the others, run this rank's program, and on the leader write what the run leaves; the summary there."""
    begun = clock()
    wake_on_time()
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    task, optimizers = experiment.load()
    leads = rank == experiment.leader
    pace = Pace(pad)
    trace = Trace(folder, experiment.trace) if leads else TracePart(experiment.trace)
    with run_folder(folder, config) if leads else contextlib.nullcontext(), trace:
        with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
            part = RankRun(experiment, task, optimizers, trace, rank=rank, transport=transport, pace=pace)
            part.run(store, report)
            if not leads:
                hand_in(part)
                return None
            lateness = collect(part)
        part.close()
        return write_summary(
            folder, part.outcome, backend="dist", wall_seconds=clock() - begun,
            emulation=emulation(pad, lateness), warnings=warnings(lateness, part.metrics.applied.seconds),
        )  # fmt: skip


def hand_in(part: RankRun) -> None:
    """Send the leader what this rank did: numbers as JSON, and its part of the trace as an Arrow stream."""
    assert isinstance(part.trace, TracePart)
    works = part.rank < part.experiment.num_workers
    numbers = {
        "activity": part.metrics.activity[part.rank].as_numbers() if works else None,
        "lateness": {kind: vars(lateness) for kind, lateness in part.pace.kinds.items()},
    }
    part.close()
    part.transport.send_bytes([json.dumps(numbers).encode()], part.experiment.leader)
    part.transport.send_bytes(part.trace.pieces(), part.experiment.leader)


def collect(part: RankRun) -> dict[str, Lateness]:
    """On the leader: take in what the others did, in rank order; the lateness of all ranks together."""
    experiment, transport = part.experiment, part.transport
    in_all: dict[str, Lateness] = defaultdict(Lateness, part.pace.kinds)
    for rank in range(experiment.num_ranks):
        if rank == part.rank:
            continue
        numbers = json.loads(b"".join(transport.receive_bytes(rank)))
        if numbers["activity"] is not None:
            part.metrics.activity[rank] = RankActivity.of_numbers(numbers["activity"], experiment.coordination.num_ahead)
        for kind, counts in numbers["lateness"].items():
            in_all[kind] += Lateness(**counts)
        append_received(part.trace, transport.receive_bytes(rank), rank=rank)
    return in_all
