"""A process's part in a run: connect to the others, run its rank's program, and on the leader write the files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from hetsim.checkpoints.resume import check_budget, load, reached
from hetsim.distributed.communication.clock_alignment import Clocks, clock_id
from hetsim.distributed.communication.gloo import GlooTransport, Group
from hetsim.distributed.communication.reduction import Library, Report, connected
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.devices import device_of, local_ranks, reducing_library
from hetsim.distributed.environment import RankStart
from hetsim.distributed.launch.rendezvous import RENDEZVOUS_TIMEOUT
from hetsim.distributed.membership.faults import Schedule
from hetsim.distributed.membership.keeper import failed_key
from hetsim.distributed.membership.membership import Membership, failed_elsewhere
from hetsim.distributed.membership.peers import moment, of_peer
from hetsim.distributed.pacing.cpu_quota import Uncapped
from hetsim.distributed.pacing.padding import Pace, clock, reduce_timer_slack
from hetsim.distributed.rank.joining import ServedRun
from hetsim.distributed.rank.recording import recording, taken_over, written_to
from hetsim.distributed.rank.regrouping import RegroupingRun
from hetsim.distributed.rank.results import close, collect_results, send_results, summarised
from hetsim.distributed.rank.run import RankRun, prepared_by
from hetsim.distributed.rank.stopping import StopWatch
from hetsim.distributed.rank.succession import Succession
from hetsim.distributed.settings import NEEDS_ONE_CLOCK, Settings
from hetsim.errors import RunStopped
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.trace import append_received
from hetsim.workloads.device import Device
from hetsim.workloads.task import Task

ALL_LOADED = "all loaded"
LOADING_POLL = (0.01, 0.1)
"""The first and the maximum seconds between two checks whether all ranks have loaded their data or one has failed. They double."""
STOPPED = "stopped"
"""The key under which the leader reports, after its program, whether the run was asked to stop."""


def take_part(
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: Uncapped, *,
    rank: int, store: Any, stop: StopRequest, report: Report,
) -> dict[str, Any] | None:  # fmt: skip
    """Connect to the other ranks, run this rank's program, and on the leader write the run's files. The leader returns the summary.

    CPU caps apply to measurements before the run, but not to the connection, whose threads only move messages.
    """
    begun = clock()
    reduce_timer_slack()
    os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    leads, saves = rank == experiment.leader, experiment.checkpoint.enabled
    pace = Pace(settings.emulate)
    with contextlib.ExitStack() as files:
        task, optimizers = files.enter_context(loaded_here(experiment, rank))
        checkpoint = resumed(experiment, task, optimizers)
        if leads:
            files.enter_context(written_to(folder, config))
        with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
            clocks = clocks_of(transport, settings, leader=experiment.leader)
            whole, trace, saver = recording(experiment, folder, config, files, leads=leads, checkpoint=checkpoint, stop=stop, clocks=clocks)
            library: Library = "gloo"  # a server adds up what it receives
            if not experiment.coordination.needs_server:
                library = reducing_library(gpus_of(transport, task.device))
            adding = connected(library, transport, task.device, settings.reduction, interface=settings.interface, report=report)
            with adding as reduction, cap:
                run = RankRun(
                    prepared_by(transport, pace, experiment, task, optimizers, checkpoint=checkpoint), trace,
                    transport=transport, pace=pace, reduction=reduction, clocks=clocks, uncapped=cap.lifted,
                    micro_batch=settings.micro_batch, saver=saver,
                )  # fmt: skip
                with StopWatch(store, stop, leads=leads) if saves else contextlib.nullcontext():
                    run.run(store, report)
            results = None
            if leads:
                results = collect_results(run, whole, cap)
            else:
                send_results(run, cap)
            stopped = saves and transport.control.broadcast(float(leads and can_go_on(run)), experiment.leader) > 0
        if results is None:
            if stopped:
                raise RunStopped
            return None
        close(run, whole, results.states, run.metrics.activity, stopped=stopped)
        return summarised(run, folder, settings, results, library=library, begun=begun)


def can_go_on(run: RankRun) -> bool:
    """On the leader, at the end: whether the run stopped on request before it had reached its budget."""
    if not (run.saving.stopped and run.record.leads):
        return False
    return reached(run.experiment, run.history.last, run.metrics.applied.seconds, run.prepared.task.num_samples) is None


def resumed(experiment: Experiment, task: Task, optimizers: Optimizers) -> Checkpoint | None:
    """The checkpoint from which the run resumes, checked; None if there is none."""
    if experiment.resume is None:
        return None
    checkpoint = load(experiment.resume, experiment, task, optimizers)
    check_budget(experiment.resume, checkpoint, experiment, task)
    return checkpoint


def take_part_elastically(
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: Uncapped, *,
    started: RankStart, connect: Callable[[], Any], stop: StopRequest, report: Report,
) -> dict[str, Any] | None:  # fmt: skip
    """The same as `take_part`, in a run that survives the loss of a rank. Also for a rank that returns or joins late."""
    begun = clock()
    reduce_timer_slack()
    os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    rank, leader = started.rank, experiment.leader
    membership = Membership(
        connect, rank=rank, incarnation=started.incarnation, members=started.members, lost_after=settings.lost_after_seconds,
        beat_seconds=settings.heartbeat_seconds, leader=None if started.succession else leader,
    )  # fmt: skip
    leads = rank == membership.leader
    clocks = Clocks.shared(experiment.num_ranks, leader=leader)
    saves, checkpoint, everyone = experiment.checkpoint.enabled, None, None
    with contextlib.ExitStack() as files:
        task, optimizers = files.enter_context(loaded_here(experiment, rank))
        files.enter_context(membership)
        if leads:
            files.enter_context(written_to(folder, config))
        if not settings.one_host:
            store = connect()
            store.set(f"clock/{rank}", repr(clock_id()))
            if started.incarnation:
                ids = [of_peer(store, f"clock/{other}", moment) for other in range(experiment.num_ranks)]
                clocks = Clocks(ids, leader=leader)
        if not started.incarnation:  # the others get weights from the leader, and by then the file may have been replaced
            checkpoint = resumed(experiment, task, optimizers)
            wait_for_all(connect(), rank, experiment.num_ranks)
            everyone = Group.form(connect(), "everyone", rank=rank, members=range(experiment.num_ranks), within=RENDEZVOUS_TIMEOUT)
            clocks = clocks_of(everyone, settings, leader=leader)
        whole, trace, saver = recording(experiment, folder, config, files, leads=leads, checkpoint=checkpoint, stop=stop, clocks=clocks)
        watch: Any = StopWatch(connect(), stop, leads=leads) if saves else contextlib.nullcontext()

        def take_over(succession: Succession) -> None:
            nonlocal whole
            newest = membership.newest_saved()
            whole, saver, saved = taken_over(
                experiment, folder, config, files,
                saved=newest is not None, load=lambda path: load(path, experiment, task, optimizers), stop=stop,
            )  # fmt: skip
            if saved is not None and saved.state.version != succession.saved:
                succession.has_saved(saved.state.version)
            succession.writes(whole)
            append_received(whole, succession.rows.part.pieces(), rank=rank)
            run.saving.saver = saver
            if saves:
                watch.leads = True
            if saved is not None:
                run.have_recorded(max(saved.seconds))

        since = Schedule(experiment, began=0.0 if checkpoint is None else checkpoint.began).absent
        absent = {rank: since.get(rank, 0.0) for rank in range(experiment.num_ranks) if rank not in started.members}
        with cap:
            kind, pace = RegroupingRun if experiment.coordination.regroups else ServedRun, Pace(settings.emulate)
            run = kind(
                prepared_by(everyone, pace, experiment, task, optimizers, checkpoint=checkpoint, absent=sorted(absent)), trace,
                everyone=everyone, pace=pace, uncapped=cap.lifted, membership=membership, absent=absent, joins_at=started.joins_at,
                order=settings.reduction, micro_batch=settings.micro_batch, saver=saver, clocks=clocks,
                take_over=take_over if started.succession else None,
            )  # fmt: skip
            if run.succession is not None:
                files.enter_context(run.succession.rows.part)
            if not started.incarnation:
                run.begun = begun
            store = connect()
            with watch:
                run.run(store, report)
        stopped = False
        if not run.record.leads:
            if run.hands_in:
                send_results(run, cap)
                if saves and store.get(STOPPED) == b"1":
                    raise RunStopped
            return None
        if saves:
            stopped = can_go_on(run)
            store.set(STOPPED, str(int(stopped)))
        results = collect_results(run, whole, cap)
        close(run, whole, results.states, run.record_absences(), stopped=stopped)
        losses = membership.ledger.as_numbers(run.began)
        return summarised(run, folder, settings, results, library="gloo", begun=run.begun, losses=losses)


@contextlib.contextmanager
def loaded_here(experiment: Experiment, rank: int) -> Iterator[tuple[Task, Optimizers]]:
    """The task and optimizers of a rank of this host on its device, for a block in which only the calling thread uses several threads."""
    here = [other for other in local_ranks(experiment) if other < experiment.num_ranks]
    devices = {other: device_of(experiment, other, here) for other in here}
    with experiment.loaded(devices[rank], num_sharing=list(devices.values()).count(devices[rank])) as loaded:
        compute_here_alone()
        yield loaded


def compute_here_alone() -> None:
    """Let every other thread of this process, such as gloo's, compute with one thread. The calling thread keeps its number.

    Otherwise a gloo thread that copies a large tensor also gets a pool of OpenMP threads. If a process has more such threads than cores,
    none of them spins, so each gradient waits for threads to wake up.
    """
    torch.get_num_threads()  # the calling thread takes its number now: a thread does so when it first needs it
    other = Thread(target=torch.set_num_threads, args=(1,))
    other.start()
    other.join()


def wait_for_all(store: Any, rank: int, num_ranks: int) -> None:
    """Wait until all ranks have loaded their data. Loading may take longer than the timeout of a group's connections.

    Raises RunFailed if a rank has failed instead, in a process that continues with the next run of a sweep.
    """
    store.set(f"loaded/{rank}", "")
    if store.check([f"loaded/{other}" for other in range(num_ranks)]):
        store.set(ALL_LOADED, "")
    pause, longest = LOADING_POLL
    while not store.check([ALL_LOADED]):  # `wait` with a timeout would have c10d write warnings at each
        if any(store.check([failed_key(other)]) for other in range(num_ranks)):
            raise failed_elsewhere()
        time.sleep(pause)
        pause = min(2 * pause, longest)


def gpus_of(transport: Transport, device: Device) -> list[float]:
    """The GPU of each rank, 0 for a rank without one. A collective."""
    return [gpu for (gpu,) in transport.control.gather_numbers(device.gpu)]


def clocks_of(transport: Transport, settings: Settings, *, leader: int) -> Clocks:
    """The clocks of all ranks. Raises the same ValueError on each rank if there are several clocks and results are padded."""
    if settings.one_host:
        return Clocks.shared(transport.size, leader=leader)
    clocks = Clocks.found(transport, clock_id(), leader=leader)
    if settings.emulate == "pad" and clocks.several:
        raise ValueError(NEEDS_ONE_CLOCK)
    return clocks
