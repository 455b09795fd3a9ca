"""A process's part in a run: connect to the others, run its rank's program, and on the leader write the files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from hetsim.checkpoints.folder import has_checkpoints, newest, path_of
from hetsim.checkpoints.resume import check_budget, continue_trace, load, reached_budget
from hetsim.checkpoints.rows import SavedTrace
from hetsim.checkpoints.saver import NoSaver, Saver
from hetsim.distributed.communication.clock_alignment import Clocks, clock_id
from hetsim.distributed.communication.gloo import RENDEZVOUS_TIMEOUT, GlooGroup, GlooTransport
from hetsim.distributed.communication.reduction import Library, Report, open_reduction, reducing_library
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.environment import NEEDS_ONE_CLOCK, RankStart, Settings, is_launched, local_ranks
from hetsim.distributed.membership.keeper import failed_key, finite_seconds, read_entry
from hetsim.distributed.membership.keeper_client import KeeperClient, failure_elsewhere
from hetsim.distributed.pacing.cpu_quota import CpuCap
from hetsim.distributed.pacing.padding import Pace, clock, reduce_timer_slack
from hetsim.distributed.rank.checkpointing import StopWatch
from hetsim.distributed.rank.cleanup import leading
from hetsim.distributed.rank.regrouping import RegroupingMembership, Succession, VersionRows
from hetsim.distributed.rank.results import close, collect_results, send_results, write_results
from hetsim.distributed.rank.run import FixedMembership, GroupMembership, RankRun, prepare_rank
from hetsim.distributed.rank.surviving import ServedMembership
from hetsim.errors import RunFailed, RunStopped
from hetsim.files.folder import run_folder
from hetsim.files.lock import folder_lock
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.trace import Trace, TracePart, append_received
from hetsim.workloads.device import CPU, KINDS, Device, split_name
from hetsim.workloads.task import Task

ALL_LOADED = "all loaded"
LOADING_POLL = (0.01, 0.1)
"""The first and the maximum seconds between two checks whether all ranks have loaded their data or one has failed. They double."""
STOPPED = "stopped"
"""The key under which the leader reports, after its program, whether the run was asked to stop."""


def take_part(
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: CpuCap, *,
    started: RankStart, connect: Callable[[], Any], stop: StopRequest, report: Report,
) -> dict[str, Any] | None:  # fmt: skip
    """Connect to the other ranks, run this rank's program, and on the leader write the run's files. The leader returns the summary.

    Also for a rank that returns or joins late. `connect()` returns a client of the processes' store. CPU caps apply to measurements before
    the run, but not to the connection, whose threads only move messages.
    """
    begun = clock()
    reduce_timer_slack()
    os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    rank, leader, saves, pace = started.rank, experiment.leader, experiment.checkpoint.enabled, Pace(settings.emulate)
    with contextlib.ExitStack() as files:
        client: KeeperClient | None = None
        if started.survives:
            client = files.enter_context(keeper_client(experiment, settings, started, connect))
            leader = client.leader
        task, optimizers = files.enter_context(load_task(experiment, rank))
        leads = rank == leader
        if leads:
            files.enter_context(leaders_folder(folder, config))
        checkpoint = None
        if not started.incarnation:  # the others get weights from the leader, and by then the file may have been replaced
            checkpoint = resumed_checkpoint(experiment, task, optimizers)
        results = None
        stopped = False
        with contextlib.ExitStack() as connections:  # which end before the leader evaluates
            everyone, clocks = connections.enter_context(all_ranks(experiment, settings, started, connect))
            run_trace, trace, saver = recording(
                experiment, folder, config, files, leads=leads, checkpoint=checkpoint, stop=stop, clocks=clocks
            )  # fmt: skip
            library: Library = "gloo"  # a server adds up what it receives
            if client is None and not experiment.coordination.needs_server:
                library = reducing_library(gpus_of(everyone, task.device))
            adding: Any = contextlib.nullcontext()
            if client is None:
                adding = open_reduction(library, everyone, task.device, settings.reduction, interface=settings.interface, report=report)
            with adding as reduction, cap:
                membership: GroupMembership
                if client is None:
                    membership = FixedMembership(everyone, leader=leader, reduction=reduction)
                else:
                    kind = RegroupingMembership if experiment.coordination.regroups else ServedMembership
                    membership = kind(client, experiment, everyone=everyone, joins_at=started.joins_at, order=settings.reduction)
                copies = [VersionRows(experiment.trace)] if started.succession else []
                run = RankRun(
                    prepare_rank(everyone, pace, experiment, task, optimizers, checkpoint=checkpoint, absent=sorted(started.absent)), trace,
                    membership=membership, pace=pace, clocks=clocks, copies=copies, saver=saver, uncapped=cap.lifted,
                    micro_batch=settings.micro_batch,
                )  # fmt: skip
                if not started.incarnation:
                    run.begun = begun
                watch: Any = StopWatch(connect(), stop, leads=leads) if saves else contextlib.nullcontext()

                def load_from(path: Path) -> Checkpoint:
                    return load(path, experiment, task, optimizers)

                def take_over(succession: Succession, restarts: bool) -> None:
                    nonlocal run_trace
                    assert client is not None
                    run_trace, run.saving.saver, saved = take_over_files(
                        experiment, folder, config, files,
                        saved=client.newest_saved(), restarts=restarts, load=load_from, stop=stop,
                    )  # fmt: skip
                    if restarts:
                        first = run.prepared.checkpoint if experiment.resume is None else load_from(experiment.resume)
                        succession.restore(saved or first)
                        run.begun = client.processes_began()
                    elif saved is not None and saved.state.version != succession.saved:
                        succession.has_saved(saved.state.version)
                    succession.writes(run_trace)
                    append_received(run_trace, succession.rows.part.pieces(), rank=rank)
                    if saves:
                        watch.leads = True
                    if saved is not None:
                        run.have_recorded_absences(max(saved.seconds))

                if isinstance(membership, RegroupingMembership) and started.succession:
                    membership.succession = Succession(run, copies[0], ledger=membership.ledger, take_over=take_over)
                    files.enter_context(copies[0].part)
                store = connect()
                with watch:
                    run.run(store, report)
            if run.record.leads:
                stopped = can_go_on(run)
                if saves:
                    store.set(STOPPED, str(int(stopped)))
                results = collect_results(run, run_trace, cap)
            elif membership.has_results:
                send_results(run, cap)
                stopped = saves and store.get(STOPPED) == b"1"
        if results is None:
            if stopped:
                raise RunStopped
            return None
        close(run, run_trace, results.states, run.record_absences(), stopped=stopped)
        return write_results(run, folder, settings, results, library=library)


def keeper_client(experiment: Experiment, settings: Settings, started: RankStart, connect: Callable[[], Any]) -> KeeperClient:
    """The client of the keeper, in a run that survives losses."""
    members = [rank for rank in range(experiment.num_ranks) if rank not in started.absent]
    return KeeperClient(
        connect, rank=started.rank, incarnation=started.incarnation, members=members, absent=started.absent,
        lost_after=settings.lost_after_seconds, beat_seconds=settings.heartbeat_seconds,
        leader=None if started.succession else experiment.leader,
    )  # fmt: skip


@contextlib.contextmanager
def all_ranks(
    experiment: Experiment, settings: Settings, started: RankStart, connect: Callable[[], Any]
) -> Iterator[tuple[Any, Clocks]]:  # fmt: skip
    """Connect all ranks, and find out their clocks. A process that was started later has no such connection (None).

    If a loss ends the run, the connection lasts as long as this context. Otherwise, the run replaces it when its members change.
    """
    rank, num_ranks, leader = started.rank, experiment.num_ranks, experiment.leader
    if not started.survives:
        with GlooTransport.connect(rank, num_ranks, connect()) as transport:
            yield transport, clocks_of(transport, settings, leader=leader)
        return
    store = connect()
    if not settings.one_host:
        store.set(f"clock/{rank}", repr(clock_id()))
    if not started.incarnation:
        wait_for_all(connect(), rank, num_ranks)
        group = GlooGroup.form(connect(), "everyone", rank=rank, members=range(num_ranks), within=RENDEZVOUS_TIMEOUT)
        yield group, clocks_of(group, settings, leader=leader)
        return
    clocks = Clocks.shared(num_ranks, leader=leader)
    if not settings.one_host:
        clocks = Clocks([read_entry(store, f"clock/{peer}", finite_seconds) for peer in range(num_ranks)], leader=leader)
    yield None, clocks


def can_go_on(run: RankRun) -> bool:
    """On the leader, at the end: whether the run stopped on request before it had reached its budget."""
    if not (run.saving.stopped and run.record.leads):
        return False
    return reached_budget(run.experiment, run.history.last, run.metrics.applied.seconds, run.prepared.task.num_samples) is None


def resumed_checkpoint(experiment: Experiment, task: Task, optimizers: Optimizers) -> Checkpoint | None:
    """The checkpoint from which the run resumes, checked; None if there is none."""
    if experiment.resume is None:
        return None
    checkpoint = load(experiment.resume, experiment, task, optimizers)
    check_budget(experiment.resume, checkpoint, experiment, task)
    return checkpoint


@contextlib.contextmanager
def load_task(experiment: Experiment, rank: int) -> Iterator[tuple[Task, Optimizers]]:
    """The task and optimizers of a rank of this host on its device, for a block in which only the calling thread uses several threads."""
    host_ranks = [host_rank for host_rank in local_ranks(experiment.num_ranks) if host_rank < experiment.num_ranks]
    devices = {host_rank: device_of(experiment, host_rank, host_ranks) for host_rank in host_ranks}
    with experiment.loaded(devices[rank], num_sharing=list(devices.values()).count(devices[rank])) as loaded:
        compute_here_alone()
        yield loaded


def device_of(experiment: Experiment, rank: int, host_ranks: Sequence[int]) -> str:
    """The device of a rank of this host, whose ranks are `host_ranks`. Ranks on cuda get the GPUs in turn, and share them if necessary."""
    kind, index = split_name(experiment.device_of(rank))
    if kind == CPU.kind or index is not None:
        return experiment.device_of(rank)
    sharing = [host_rank for host_rank in host_ranks if experiment.device_of(host_rank) == kind]
    return f"{kind}:{sharing.index(rank) % max(1, KINDS[kind].count())}"


def compute_here_alone() -> None:
    """Let every other thread of this process, such as gloo's, compute with one thread. The calling thread keeps its number.

    Otherwise a gloo thread that copies a large tensor also gets a pool of OpenMP threads. If a process has more such threads than cores,
    none of them spins, so each gradient waits for threads to wake up.
    """
    torch.get_num_threads()  # the calling thread takes its number now: a thread does so when it first needs it
    thread = Thread(target=torch.set_num_threads, args=(1,))
    thread.start()
    thread.join()


def wait_for_all(store: Any, rank: int, num_ranks: int) -> None:
    """Wait until all ranks have loaded their data. Loading may take longer than the timeout of a group's connections.

    Raises RunFailed if a rank has failed instead, in a process that continues with the next run of a sweep.
    """
    store.set(f"loaded/{rank}", "")
    if store.check([f"loaded/{peer}" for peer in range(num_ranks)]):
        store.set(ALL_LOADED, "")
    pause, longest = LOADING_POLL
    while not store.check([ALL_LOADED]):  # `wait` with a timeout would have c10d write warnings at each
        if any(store.check([failed_key(peer)]) for peer in range(num_ranks)):
            raise failure_elsewhere()
        time.sleep(pause)
        pause = min(2 * pause, longest)


def gpus_of(transport: Transport, device: Device) -> list[float]:
    """The GPU of each rank, 0 for a rank without one. A collective."""
    return [gpu for (gpu,) in transport.control.gather_numbers(device.gpu)]


def clocks_of(transport: Transport, settings: Settings, *, leader: int) -> Clocks:
    """The clocks of all ranks. Raises the same ValueError on each rank if there are several clocks and results are padded."""
    if settings.one_host:
        return Clocks.shared(transport.size, leader=leader)
    clocks = Clocks.gather(transport, clock_id(), leader=leader)
    if settings.emulate == "pad" and clocks.several:
        raise ValueError(NEEDS_ONE_CLOCK)
    return clocks


@contextlib.contextmanager
def leaders_folder(folder: Path, config: str) -> Iterator[None]:
    """On the leader: the folder of the run. No unfinished file remains, however this process ends."""
    with leading(folder), run_folder(folder, config):
        yield


def recording(
    experiment: Experiment, folder: Path, config: str, traces: contextlib.ExitStack, *,
    leads: bool, checkpoint: Checkpoint | None, stop: StopRequest, clocks: Clocks,
) -> tuple[Trace, Trace, Saver | NoSaver]:  # fmt: skip
    """The trace that finally contains a rank's rows, the trace to which it writes them, and the object that writes checkpoints.

    Both traces are the same, except on a leader with several clocks. `traces` closes them.
    """
    if not leads:
        part = traces.enter_context(TracePart(experiment.trace))
        return part, part, NoSaver()
    saves = experiment.checkpoint.enabled
    saver: Saver | NoSaver = NoSaver()
    run_trace = trace = traces.enter_context((SavedTrace if saves else Trace)(folder, experiment.trace))
    if saves:
        saver = Saver(folder, config, experiment.checkpoint, run_trace, clock=clock, stop=stop, resumed=experiment.resume)
    if checkpoint is not None and experiment.resume is not None:
        continue_trace(run_trace, experiment.resume, checkpoint, experiment)
    if clocks.several:
        trace = traces.enter_context(TracePart(experiment.trace))
    return run_trace, trace, saver


def take_over_files(
    experiment: Experiment, folder: Path, config: str, files: contextlib.ExitStack, *,
    saved: int | None, restarts: bool, load: Callable[[Path], Checkpoint], stop: StopRequest,
) -> tuple[Trace, Saver | NoSaver, Checkpoint | None]:  # fmt: skip
    """On a new leader: the run's trace from its files, the object that writes checkpoints, and the last checkpoint.

    `saved` is the version of the run's newest complete checkpoint. Without any, checkpoints in its folder belong to another run. If the
    leader `restarts` the run, a file that was written later does not count.
    """
    if is_launched():  # otherwise the launcher has it
        files.enter_context(folder_lock(folder))
    files.enter_context(leaders_folder(folder, config))
    if saved is not None and not has_checkpoints(folder):
        raise RunFailed(f"the checkpoints in {folder} are not on this host, which leads from now on: share the folder among the hosts")
    saves = experiment.checkpoint.enabled
    saver: Saver | NoSaver = NoSaver()
    last = None
    if saved is not None:
        complete = path_of(folder, saved)
        last = load(complete if restarts and complete.is_file() else newest(folder))
    run_trace = files.enter_context((SavedTrace if saves else Trace)(folder, experiment.trace))
    if saves:
        saver = Saver(
            folder, config, experiment.checkpoint, run_trace, clock=clock, stop=stop, resumed=experiment.resume, goes_on=True,
            newest=None if last is None else last.state.version,
        )  # fmt: skip
    if last is not None:
        assert isinstance(run_trace, SavedTrace)
        run_trace.go_on(last.progress["trace"])
    elif experiment.resume is not None:
        continue_trace(run_trace, experiment.resume, load(experiment.resume), experiment)
    return run_trace, saver, last
