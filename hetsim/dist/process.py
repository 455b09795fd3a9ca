"""One process of a run: rendezvous, the rank's run, and on the leader the files."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed as dist

from hetsim.checkpoints.resume import check_budget, load, reached
from hetsim.dist.announced import Announced, announce, client, client_of_run, run_store
from hetsim.dist.clocks import Clocks, clock_id
from hetsim.dist.elastic import ElasticRun
from hetsim.dist.faults import Schedule, is_elastic
from hetsim.dist.group import Group
from hetsim.dist.handed_in import close, collect_results, send_results, summarised
from hetsim.dist.keeper import failed_key
from hetsim.dist.launched import Launched
from hetsim.dist.membership import Membership, failed_elsewhere
from hetsim.dist.orphan import leave_with_parent
from hetsim.dist.pace import Pace, clock, reduce_timer_slack
from hetsim.dist.placement import device_of, local_ranks, reducing_library
from hetsim.dist.quota import Uncapped, cap_of
from hetsim.dist.rank import RankRun
from hetsim.dist.recording import recording, taken_over, written_to
from hetsim.dist.reduction import Library, Report, connected
from hetsim.dist.rendezvous import RENDEZVOUS_TIMEOUT, check_interfaces, launchers_store, told
from hetsim.dist.settings import NEEDS_ONE_CLOCK, Settings
from hetsim.dist.started import Started
from hetsim.dist.stopping import StopWatch
from hetsim.dist.succession import Succession
from hetsim.dist.torchrun import CONSEQUENCE, leave_reason
from hetsim.dist.transport import GlooTransport, Transport
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunStopped
from hetsim.memory import out_of_memory
from hetsim.results.folder import abandon
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.files import keep_names
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.trace import append_received
from hetsim.workloads.device import Device
from hetsim.workloads.task import Task

_runs = itertools.count()
ALL_LOADED = "all loaded"
LOADING_POLL = (0.01, 0.1)
"""Seconds between two looks whether all ranks have loaded their data, or one has failed: at first, and at most, as each look doubles it."""
STOPPED = "stopped"
"""Where the leader says, when its program has ended, whether the run was asked to stop."""


def join(experiment: Experiment, folder: Path, config: str, settings: Settings, here: Launched) -> dict[str, Any] | None:
    """Take part in a run in a process that a launcher started. Each of several runs has its own prefix in the store."""
    with stop_of(experiment) as stop:
        return _join(experiment, folder, config, settings, here, stop)


def _join(
    experiment: Experiment, folder: Path, config: str, settings: Settings, here: Launched, stop: StopRequest
) -> dict[str, Any] | None:
    number, elastic, launchers = next(_runs), False, None
    store = dist.PrefixStore(f"hetsim run {number}", launchers_store(here))  # type: ignore[attr-defined]
    if here.goes_on:
        # device=auto is another one on a host with a GPU than on one without, and all ranks have to meet in the same way
        elastic = is_elastic(experiment, told(store, here, "device", experiment.device_of(here.rank)))
        announced = Announced(
            number=number, num_workers=experiment.num_workers, num_ranks=experiment.num_ranks, leader=experiment.leader,
            lost_after=settings.lost_after_seconds, saves=experiment.checkpoint.enabled,
        )  # fmt: skip
        launchers = client(here.address, here.port)
        announce(launchers, announced if elastic else None, leads=here.rank == experiment.leader)
    if not settings.one_host:
        check_interfaces(store, here, settings.interface)
    cap = cap_of(experiment, settings, here.rank)

    def report(error: RunFailed | PeerLost) -> None:
        if not leave_reason(str(error), order=CONSEQUENCE if isinstance(error, PeerLost) else 1):
            print(f"hetsim: error: {error}", file=sys.stderr, flush=True)
        if here.rank == experiment.leader:
            keep_names()
            abandon(folder)
        cap.remove()
        os._exit(1)  # nothing else ends the program's thread, which waits in the network; the launcher ends the other processes

    try:
        if elastic:
            started = Started(here.rank, 0, tuple(range(experiment.num_ranks)), None, here.port, True)
            connect = partial(client_of_run, here, number)
            return take_part_elastically(
                experiment, folder, config, settings, cap, started=started, connect=connect, stop=stop, report=report
            )
        return take_part(experiment, folder, config, settings, cap, rank=here.rank, store=store, stop=stop, report=report)
    except PeerLost as error:
        raise RunFailed(str(error)) from error
    except dist.DistError as error:
        raise RunFailed(f"rank {here.rank} cannot reach the launcher's store any more: the run is lost") from PeerLost(str(error))
    except Exception as error:
        if elastic and not isinstance(error.__cause__, PeerLost):  # it would come again, so it is no loss: the run fails
            with contextlib.suppress(RuntimeError):
                run_store(launchers, number).set(failed_key(here.rank), "")
        raise


def child(experiment: Experiment, folder: Path, config: str, settings: Settings, started: Started, sender: Connection) -> None:
    """Take part in a run in a process that `launch` started: report the result to it, and end when it ends.

    An error is reported with a number: the lower, the nearer to its cause.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C, too, and ends this process
    with stop_of(experiment) as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # which this process was started with
        _child(experiment, folder, config, settings, started, sender, stop)


def _child(
    experiment: Experiment, folder: Path, config: str, settings: Settings, started: Started, sender: Connection, stop: StopRequest
) -> None:
    rank = started.rank
    cap = cap_of(experiment, settings, rank)
    Thread(target=leave_with_parent, args=(cap,), daemon=True).start()

    def report(error: RunFailed | PeerLost) -> None:
        sender.send((3, RunFailed(str(error))) if isinstance(error, PeerLost) else (1, error))
        os._exit(1)  # nothing else ends the program's thread, which waits in the network; the parent ends the other processes

    def connect() -> Any:
        return dist.TCPStore("127.0.0.1", started.port, None, False, RENDEZVOUS_TIMEOUT)  # type: ignore[attr-defined]

    try:
        if started.elastic:
            summary = take_part_elastically(
                experiment, folder, config, settings, cap, started=started, connect=connect, stop=stop, report=report
            )
        else:
            summary = take_part(experiment, folder, config, settings, cap, rank=rank, store=connect(), stop=stop, report=report)
    except RunStopped as stopped:
        sender.send((0, stopped if stopped.args else None))  # of the leader, with how to go on
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
        failed = RunFailed(f"rank {rank} failed: {type(error).__name__}: {error}")
        failed.add_note(traceback.format_exc())  # the process that started this one shows it, as it knows what not to show
        sender.send((2, failed))
    else:
        sender.send((0, summary))


def take_part(
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: Uncapped, *,
    rank: int, store: Any, stop: StopRequest, report: Report,
) -> dict[str, Any] | None:  # fmt: skip
    """Connect to the other ranks, run this rank's program, and on the leader write the run's files. Returns the summary there.

    What is measured before the run is capped as the run is; the connection is not, whose threads only move messages.
    """
    begun = clock()
    reduce_timer_slack()
    os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    task, optimizers = load_here(experiment, rank)
    leads, saves = rank == experiment.leader, experiment.checkpoint.enabled
    pace = Pace(settings.emulate)
    checkpoint = resumed(experiment, task, optimizers)
    with contextlib.closing(task), written_to(folder, config) if leads else contextlib.nullcontext(), contextlib.ExitStack() as traces:
        with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
            clocks = clocks_of(transport, settings, leader=experiment.leader)
            whole, trace, saver = recording(
                experiment, folder, config, traces, leads=leads, checkpoint=checkpoint, stop=stop, clocks=clocks
            )
            library: Library = "gloo"  # a server adds up what it receives
            if not experiment.coordination.needs_server:
                library = reducing_library(gpus_of(transport, task.device))
            adding = connected(library, transport, task.device, settings.reduction, interface=settings.interface, report=report)
            with adding as reduction, cap:
                run = RankRun(
                    experiment, task, optimizers, trace, rank=rank, transport=transport, pace=pace, reduction=reduction,
                    clocks=clocks, uncapped=cap.lifted, micro_batch=settings.micro_batch,
                    checkpoint=checkpoint, saver=saver,
                )  # fmt: skip
                with StopWatch(store, stop, leads=leads) if saves else contextlib.nullcontext():
                    run.run(store, report)
            results = None
            if leads:
                results = collect_results(run, whole, cap)
            else:
                send_results(run, cap)
            stopped = run.saving is not None and transport.control.broadcast(float(leads and can_go_on(run)), experiment.leader) > 0
        if results is None:
            if stopped:
                raise RunStopped
            return None
        close(run, whole, results.states, run.metrics.activity, stopped=stopped)
        return summarised(run, folder, settings, results, library=library, begun=begun)


def can_go_on(run: RankRun) -> bool:
    """On the leader, at the end: whether the run was asked to stop and did so before it had reached its budget."""
    if run.saving is None or not run.saving.stopped or run.history is None:
        return False
    return reached(run.experiment, run.history.last, run.metrics.applied.seconds, run.prepared.task.num_samples) is None


def resumed(experiment: Experiment, task: Task, optimizers: Optimizers) -> Checkpoint | None:
    """The checkpoint that the run goes on from, if it does, checked."""
    if experiment.resume is None:
        return None
    checkpoint = load(experiment.resume, experiment, task, optimizers)
    check_budget(experiment.resume, checkpoint, experiment, task)
    return checkpoint


def take_part_elastically(
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: Uncapped, *,
    started: Started, connect: Callable[[], Any], stop: StopRequest, report: Report,
) -> dict[str, Any] | None:  # fmt: skip
    """As `take_part`, in a run that goes on when a rank is lost; also of a rank that comes back, or joins late."""
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
    task, optimizers = load_here(experiment, rank)
    saves, checkpoint, everyone = experiment.checkpoint.enabled, None, None
    with membership, contextlib.closing(task), contextlib.ExitStack() as files:
        if leads:
            files.enter_context(written_to(folder, config))
        if not started.incarnation:  # the others get weights from the leader, and by then the file may have been replaced
            checkpoint = resumed(experiment, task, optimizers)
            wait_for_all(connect(), experiment.num_ranks)
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
            if run.saving is not None:
                run.saving.saver, watch.leads = saver, True
            if saved is not None:
                run.have_recorded(max(saved.seconds))

        since = Schedule(experiment, began=0.0 if checkpoint is None else checkpoint.began).absent
        absent = {rank: since.get(rank, 0.0) for rank in range(experiment.num_ranks) if rank not in started.members}
        with cap:
            run = ElasticRun(
                experiment, task, optimizers, trace, rank=rank, transport=everyone, pace=Pace(settings.emulate), uncapped=cap.lifted,
                membership=membership, absent=absent, joins_at=started.joins_at, order=settings.reduction, micro_batch=settings.micro_batch,
                checkpoint=checkpoint, saver=saver, clocks=clocks, take_over=take_over if started.succession else None,
            )  # fmt: skip
            if run.succession is not None:
                files.enter_context(run.succession.rows.part)
            if not started.incarnation:
                run.begun = begun
            store = connect()
            with watch:
                run.run(store, report)
        stopped = False
        if run.history is None:
            if run.hands_in:
                send_results(run, cap, run.way_to_leader)
                if saves and store.get(STOPPED) == b"1":
                    raise RunStopped
            return None
        if run.saving is not None:
            stopped = can_go_on(run)
            store.set(STOPPED, str(int(stopped)))
        results = collect_results(run, whole, cap, run.sources)
        close(run, whole, results.states, run.record_absences(), stopped=stopped)
        losses = membership.ledger.as_numbers(run.began)
        return summarised(run, folder, settings, results, library="gloo", begun=run.begun, losses=losses)


def load_here(experiment: Experiment, rank: int) -> tuple[Task, Optimizers]:
    """What a rank of this host computes with, on its device."""
    here = [other for other in local_ranks(experiment) if other < experiment.num_ranks]
    devices = {other: device_of(experiment, other, here) for other in here}
    return experiment.load(devices[rank], num_sharing=list(devices.values()).count(devices[rank]))


def wait_for_all(store: Any, num_ranks: int) -> None:
    """Wait until all ranks have loaded what they compute with, which takes some of them longer than the connections of a group may take.

    RunFailed if one of them has failed instead, in a process that goes on: with the next run of a sweep.
    """
    if store.add("loaded", 1) == num_ranks:
        store.set(ALL_LOADED, "")
    pause, longest = LOADING_POLL
    while not store.check([ALL_LOADED]):  # `wait` with a timeout would have c10d write warnings at each
        if any(store.check([failed_key(rank)]) for rank in range(num_ranks)):
            raise failed_elsewhere()
        time.sleep(pause)
        pause = min(2 * pause, longest)


@contextlib.contextmanager
def stop_of(experiment: Experiment) -> Iterator[StopRequest]:
    """Whether the run is asked to stop, if it is saved: until this ends, by a signal to this process.

    It begins before the data are loaded and ends after the last evaluation, as a signal may come at any time: before the first version it
    stops the run there, after the last one it changes nothing.
    """
    stop = StopRequest()
    with stop.by_signals(again=True) if experiment.checkpoint.enabled else contextlib.nullcontext():
        yield stop


def gpus_of(transport: Transport, device: Device) -> list[float]:
    """The GPU of each rank, 0 for a rank that has none; a collective."""
    return [gpu for (gpu,) in transport.control.gather_numbers(device.gpu)]


def clocks_of(transport: Transport, settings: Settings, *, leader: int) -> Clocks:
    """The clocks of all ranks. ValueError with one sentence, the same on each rank, if they are several and results are to be padded."""
    if settings.one_host:
        return Clocks.shared(transport.size, leader=leader)
    clocks = Clocks.found(transport, clock_id(), leader=leader)
    if settings.emulate == "pad" and clocks.several:
        raise ValueError(NEEDS_ONE_CLOCK)
    return clocks
