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
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hetsim.checkpoints.resume import check_budget, continue_trace, load
from hetsim.checkpoints.rows import SavedTrace
from hetsim.checkpoints.saver import Saver
from hetsim.dist.clocks import Clocks, clock_id
from hetsim.dist.launched import Launched
from hetsim.dist.orphan import leading, leave_with_parent
from hetsim.dist.pace import Lateness, Pace, clock, emulation, late_warnings, reduce_timer_slack
from hetsim.dist.placement import device_of, local_ranks, reducing_library, shared_gpu_warnings
from hetsim.dist.quota import Uncapped, cap_of, quota_warnings
from hetsim.dist.rank import RankRun
from hetsim.dist.reduction import Library, Report, connected
from hetsim.dist.rendezvous import RENDEZVOUS_TIMEOUT, check_interfaces, launchers_store
from hetsim.dist.settings import NEEDS_ONE_CLOCK, Settings
from hetsim.dist.stopping import StopWatch
from hetsim.dist.torchrun import CONSEQUENCE, leave_reason
from hetsim.dist.transport import GlooTransport, Transport
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunStopped
from hetsim.memory import out_of_memory
from hetsim.results.folder import abandon, run_folder
from hetsim.results.summary import write_summary
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.files import keep_names
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import Trace, TracePart, append_received
from hetsim.workloads.device import Device

_runs = itertools.count()


def join(experiment: Experiment, folder: Path, config: str, settings: Settings, here: Launched) -> dict[str, Any] | None:
    """Take part in a run in a process that a launcher started. Each of several runs has its own prefix in the store."""
    store = dist.PrefixStore(f"hetsim run {next(_runs)}", launchers_store(here))  # type: ignore[attr-defined]
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
        with leading(folder) if here.rank == experiment.leader else contextlib.nullcontext():
            return take_part(experiment, folder, config, settings, cap, rank=here.rank, store=store, report=report)
    except PeerLost as error:
        raise RunFailed(str(error)) from error


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

    def report(error: RunFailed | PeerLost) -> None:
        sender.send((3, RunFailed(str(error))) if isinstance(error, PeerLost) else (1, error))
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
    except RunStopped as stopped:
        sender.send((0, stopped if rank == experiment.leader else None))
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
    experiment: Experiment, folder: Path, config: str, settings: Settings, cap: Uncapped, *, rank: int, store: Any, report: Report
) -> dict[str, Any] | None:
    """Connect to the other ranks, run this rank's program, and on the leader write the run's files. Returns the summary there.

    What is measured before the run is capped as the run is; the connection is not, whose threads only move messages.
    """
    begun = clock()
    reduce_timer_slack()
    os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    task, optimizers = experiment.load(device_of(experiment, rank, local_ranks(experiment)))
    leads, saves, stop = rank == experiment.leader, experiment.checkpoint.enabled, StopRequest()
    pace = Pace(settings.emulate)
    checkpoint = None
    if experiment.resume is not None:
        checkpoint = load(experiment.resume, experiment, task, optimizers)
        check_budget(experiment.resume, checkpoint, experiment, task)
    with contextlib.closing(task), run_folder(folder, config) if leads else contextlib.nullcontext(), contextlib.ExitStack() as traces:
        with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
            clocks = clocks_of(transport, settings, leader=experiment.leader)
            own = SavedTrace if saves else Trace
            trace = whole = traces.enter_context(own(folder, experiment.trace) if leads else TracePart(experiment.trace))
            saver = None
            if leads and saves:
                saver = Saver(folder, config, experiment.checkpoint, whole, clock=clock, stop=stop, resumed=experiment.resume)
            if leads and checkpoint is not None and experiment.resume is not None:
                continue_trace(whole, experiment.resume, checkpoint, experiment)
            if leads and clocks.several:
                trace = traces.enter_context(TracePart(experiment.trace))
            gpus = gpus_of(transport, task.device)
            library: Library = (
                "gloo" if experiment.coordination.needs_server else reducing_library(gpus)
            )  # a server adds up what it receives
            adding = connected(library, transport, task.device, settings.reduction, interface=settings.interface, report=report)
            with adding as reduction, cap:
                run = RankRun(
                    experiment, task, optimizers, trace, rank=rank, transport=transport, pace=pace, reduction=reduction,
                    clocks=clocks, uncapped=cap.lifted, micro_batch=settings.micro_batch,
                    checkpoint=checkpoint, saver=saver,
                )  # fmt: skip
                with stopping(store, stop, leads=leads) if saves else contextlib.nullcontext():
                    run.run(store, report)
            results = None
            if leads:
                results = collect_results(run, whole, cap)
            else:
                send_results(run, cap)
            stopped = run.saving is not None and transport.control.broadcast(float(run.saving.stopped), experiment.leader) > 0
        if results is None:
            if stopped:
                raise RunStopped
            return None
        close(run, whole)
        if saver is not None:
            write_last(run, results.states)
            if stopped:
                raise RunStopped(saver.sentence(run.outcome.last, run.metrics.applied.seconds))
        emulated = emulation(settings, results.lateness, library=library, shared_links=run.links is not None)
        warnings = late_warnings(results.lateness, run.metrics.applied.seconds)
        if settings.emulate == "quota":
            server = results.caps.pop(experiment.num_workers, None)
            emulated["workers"] = [
                {"rank": rank, **done} for rank, done in sorted(results.caps.items()) if done is not None and rank < experiment.num_workers
            ]
            emulated |= {} if server is None else {"server": server}
            warnings = quota_warnings(experiment, emulated["workers"])
        warnings += shared_gpu_warnings(gpus) + calibration_warnings(experiment)
        if clocks.several:
            emulated["clocks"] = clocks.as_numbers()
        return write_summary(
            folder, run.outcome, backend="dist", wall_seconds=clock() - begun, devices=results.devices,
            emulation=emulated, warnings=warnings,
        )  # fmt: skip


@contextlib.contextmanager
def stopping(store: Any, stop: StopRequest, *, leads: bool) -> Iterator[None]:
    """While this lasts, a signal to any of the processes asks the leader to stop the run."""
    with stop.by_signals(again=True), StopWatch(store, stop, leads=leads):
        yield


def write_last(run: RankRun, states: dict[int, bytes]) -> None:
    """On the leader: write the checkpoint of the run as it has ended."""
    assert run.saving is not None
    assert run.history is not None
    run.saving.write_last(
        run.history.last, run.state, states,
        num_gradients=run.num_gradients(), seconds=run.metrics.applied.seconds, progress=run.progress_at_end,
    )  # fmt: skip


def calibration_warnings(experiment: Experiment) -> list[str]:
    """A sentence if the cluster was calibrated with another PyTorch, or on other threads or devices."""
    calibrated = experiment.cluster.calibrated
    if calibrated is None:
        return []
    remark = calibrated.otherwise(torch=str(torch.__version__), threads=experiment.threads, device=experiment.device)
    return [] if remark is None else [remark]


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
    if run.saving is not None:
        run.transport.send_bytes([run.saving.last_part(run.state)], run.experiment.leader)


class Results(NamedTuple):
    """What the ranks hand in beside their rows and their activity."""

    lateness: dict[str, Lateness]
    """Of all ranks together, by kind."""
    devices: list[str]
    """Of each rank."""
    caps: dict[int, dict[str, Any] | None]
    """How each rank was capped; None if it was not."""
    states: dict[int, bytes]
    """Of each other rank, its state at the end, where the run is saved."""


def collect_results(run: RankRun, trace: Trace, cap: Uncapped) -> Results:
    """On the leader: receive the other ranks' results, in rank order, with their rows for this trace."""
    experiment, transport, clocks = run.experiment, run.transport, run.clocks
    lateness: dict[str, Lateness] = defaultdict(Lateness, run.pace.kinds)
    devices = [run.prepared.task.device.name] * experiment.num_ranks
    caps, states = {run.rank: cap.report}, {}
    for rank in range(experiment.num_ranks):
        if rank == run.rank:
            continue
        numbers = json.loads(b"".join(transport.receive_bytes(rank)))
        if numbers["activity"] is not None:
            activity = RankActivity.of_numbers(numbers["activity"], experiment.coordination.num_ahead)
            run.metrics.activity[rank] = activity.on_clock(*clocks.line(rank)) if clocks.several else activity
        devices[rank] = numbers["device"]
        for kind, counts in numbers["lateness"].items():
            lateness[kind] += Lateness(**counts)
        caps[rank] = numbers["cap"]
        append_received(trace, transport.receive_bytes(rank), rank=rank, change=clocks.change(rank))
        if run.saving is not None:
            states[rank] = b"".join(transport.receive_bytes(rank))
    return Results(lateness, devices, caps, states)


def close(run: RankRun, trace: Trace) -> None:
    """On the leader: close all recorders, and this trace of all ranks; across hosts the leader's own rows are a part of it."""
    run.close()
    if isinstance(run.trace, TracePart):
        append_received(trace, run.trace.pieces(), rank=run.rank, change=run.clocks.change(run.rank))
        trace.close()
