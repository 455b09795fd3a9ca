"""What one process of a run does, from meeting the others to the files."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import socket
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from hetsim.cluster.collectives import Collectives
from hetsim.cluster.compute_times import Jitter, StepTimes
from hetsim.cluster.outages import PROFILING
from hetsim.coordination.state import State
from hetsim.dist.messages import Mailbox, peers_may_leave
from hetsim.dist.pace import Lateness, Pace, clock, emulation, one_host, prompt, sleep_until, wake_on_time, warnings
from hetsim.dist.world import ProcessWorld
from hetsim.effects import Batch, Contribution, Node, PeerLost
from hetsim.errors import RunFailed
from hetsim.results.folder import run_folder
from hetsim.results.summary import write_summary
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.history import History
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import PROFILE, Trace
from hetsim.workloads.task import Task

MEETING = timedelta(minutes=5)  # until every process must have come
AHEAD = 0.02  # seconds between agreeing on the beginning and beginning
_runs = itertools.count()
SILENCE = timedelta(days=7)  # between messages: a slow step is no failure, and a dead peer is noticed at once


@cache
def _torchruns_store() -> Any:
    store, _, _ = next(dist.rendezvous("env://", timeout=MEETING))  # type: ignore[attr-defined]
    return store


def join(experiment: Experiment, folder: Path, config: str, *, rank: int, interface: str, pad: bool) -> dict[str, Any] | None:
    """Take part in a process that torchrun started, in this run of perhaps several: each meets under its own name."""
    store = dist.PrefixStore(f"hetsim run {next(_runs)}", _torchruns_store())  # type: ignore[attr-defined]
    try:
        return take_part(experiment, folder, config, rank=rank, interface=interface, pad=pad, store=store)
    except PeerLost as error:
        raise RunFailed(str(error)) from None


def child(
    experiment: Experiment, folder: Path, config: str, *, rank: int, interface: str, pad: bool,
    listening: socket.socket, port: int, telling: Connection,
) -> None:  # fmt: skip
    """A process that `launch` started: tell it the outcome, and never outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    Thread(target=_leave_with_parent, daemon=True).start()
    try:
        # the ranks' store listens on the socket that the parent bound, so no other program can take the port in between
        master = listening.detach() if rank == 0 else None
        if master is None:
            listening.close()
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, experiment.num_ranks, rank == 0, MEETING, master_listen_fd=master
        )
        summary = take_part(experiment, folder, config, rank=rank, interface=interface, pad=pad, store=store)
    except ValueError as error:
        telling.send((0, error))
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
    experiment: Experiment, folder: Path, config: str, *, rank: int, interface: str, pad: bool, store: Any
) -> dict[str, Any] | None:
    """Meet the others, run this rank's program, and on the leader write what the run leaves; the summary there."""
    begun = clock()
    wake_on_time()
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    task, optimizers = experiment.load()
    leads = rank == experiment.leader
    with run_folder(folder, config) if leads else contextlib.nullcontext(), Trace(folder if leads else None, experiment.trace) as trace:
        with _group(rank, experiment.num_ranks, store) as background:
            pace = Pace(pad)
            profile, profile_seconds = measure(experiment, task, rank=rank, trace=trace, pace=pace)
            state = experiment.coordination.initial(experiment.plan(task), task.initial(), profile)
            history = History(experiment, task, trace, state, profile_seconds=profile_seconds) if leads else None
            busy = perform(
                experiment, task, optimizers, rank=rank, state=state, trace=trace, history=history, pace=pace, background=background
            )
            parts = _collect(rank, experiment, ([] if leads else trace.rows, busy, pace.kinds))
        if history is None or parts is None:
            return None
        for rows, _, _ in parts:
            trace.rows += rows
            trace.flush()
        history.close()
        trace.close()
        kinds: dict[str, Lateness] = defaultdict(Lateness)
        for _, _, counted in parts:
            for kind, lateness in counted.items():
                kinds[kind] += lateness
        return write_summary(
            folder, history, [part[1] for part in parts[: experiment.num_workers]], backend="dist", wall_seconds=clock() - begun,
            emulation=emulation(pad, kinds), warnings=warnings(kinds, history.applied.seconds),
        )  # fmt: skip


def measure(experiment: Experiment, task: Task, *, rank: int, trace: Trace, pace: Pace) -> tuple[tuple[Contribution, ...], float]:
    """What each worker's gradients of B samples take before the run, if the allocation wants to know; and how long all of it took."""
    repetitions = experiment.coordination.allocation.repetitions
    if not repetitions:
        return (), 0.0
    batches = experiment.profile_batches
    batch = batches[min(rank, experiment.num_workers - 1)]
    weights = task.initial()
    times = None
    if rank < experiment.num_workers:
        times = StepTimes(experiment.cluster.nodes[rank], seed=experiment.seed, rank=rank, stream=PROFILING)
        task.gradient(weights, batch)  # sets libraries up
    with peers_may_leave():
        dist.barrier()
    began = at = clock()
    moments = [began]
    if times is not None:
        for _ in range(repetitions):
            task.gradient(weights, batch)
            at = pace.due("profile", at, times.seconds(batch.samples, at - began))
            moments.append(at)
    mine = torch.tensor([moments[0], *(moments[1:] or [began] * repetitions)], dtype=torch.float64)
    everyones = [torch.empty_like(mine) for _ in range(experiment.num_ranks)]
    with peers_may_leave():
        dist.all_gather(everyones, mine)
    workers = [[float(moment) for moment in its] for its in everyones[: experiment.num_workers]]
    longest = max(its[-1] - its[0] for its in workers)
    took = longest + Collectives(experiment.cluster).gather_seconds() if pace.pad else clock() - began
    if trace.full and times is not None:
        for start, end in itertools.pairwise(moments):
            trace.add(start - began - took, end - began - took, rank, PROFILE, 0, batch.samples)
    profile = [
        Contribution(worker, batches[worker], 0, end - start, 0.0)
        for worker, its in enumerate(workers)
        for start, end in itertools.pairwise(its)
    ]
    return tuple(profile), took


def perform(
    experiment: Experiment, task: Task, optimizers: Optimizers, *, rank: int, state: State, trace: Trace, history: History | None,
    pace: Pace, background: Any,
) -> RankActivity:  # fmt: skip
    """Run this rank's program among its peers, from this state; what it did."""
    coordination, num_workers = experiment.coordination, experiment.num_workers
    _warm_up(task, optimizers, state, samples=-(-experiment.batch_size // num_workers))
    began = _began(experiment.leader)
    mailbox = None
    if coordination.needs_server:
        peers = range(num_workers) if rank == num_workers else [num_workers]
        mailbox = Mailbox(peers, described(experiment, rank), pace, began=began)
    driver = ProcessWorld(
        experiment, task, optimizers, rank=rank, state=state, trace=trace, pace=pace,
        history=history, mailbox=mailbox, background=background, began=began,
    )  # fmt: skip
    sleep_until(began)
    gc.freeze()
    result = driver.run(coordination.program(Node(rank, num_workers), experiment.plan(task), state))
    gc.unfreeze()
    if history is not None:
        history.record_discarded(result)
    if mailbox is not None:
        mailbox.close()
    return driver.busy


def described(experiment: Experiment, rank: int) -> Callable[[int, int], float]:
    """What a message of so many bytes from a peer to this rank takes, by the cluster's description; asked once for each, in order."""
    cluster, jitters = experiment.cluster, {}
    if cluster.network.jitter_seconds is not None:
        jitters = {peer: Jitter(cluster, peer, rank, seed=experiment.seed) for peer in range(experiment.num_ranks)}

    def seconds(peer: int, nbytes: int) -> float:
        alone = cluster.message_seconds(peer, rank, nbytes)
        return alone + jitters[peer].next() if jitters else alone

    return seconds


@contextlib.contextmanager
def _group(rank: int, world_size: int, store: Any) -> Iterator[Any]:
    """The process group, and a second one for what a second thread starts."""
    with prompt(), peers_may_leave():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=SILENCE)
        background = dist.new_group()
    try:
        yield background
        with peers_may_leave():
            dist.barrier()
    finally:
        dist.destroy_process_group()


def _warm_up(task: Task, optimizers: Optimizers, state: State, samples: int) -> None:
    """A first gradient and a first step set libraries up, which is not what a run measures; both are thrown away."""
    gradient, _ = task.gradient(state.weights, Batch(0, samples))
    for optimizer in optimizers:
        if optimizer is not None:
            optimizer.step(optimizer.initial(), state.weights, gradient, 0)


def _began(leader: int) -> float:
    """The moment at which this rank begins: on one host the same for all, a little ahead, said by the leader."""
    with peers_may_leave():
        dist.barrier()
        moment = torch.tensor([clock() + AHEAD], dtype=torch.float64)
        dist.broadcast(moment, leader)
    return float(moment.item()) if one_host() else clock()


def _collect(rank: int, experiment: Experiment, mine: Any) -> list[Any] | None:
    """Everyone's part, on the leader, in rank order."""
    parts: list[Any] | None = [None] * experiment.num_ranks if rank == experiment.leader else None
    with peers_may_leave():
        dist.gather_object(mine, parts, dst=experiment.leader)
    return parts
