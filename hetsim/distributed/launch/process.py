"""One process of a run: its start, by hetsim or by a launcher, and the report of its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed as dist

from hetsim.distributed.environment import Launched, RankStart, Settings, wait_less_for_names
from hetsim.distributed.launch.failure_report import CONSEQUENCE, leave_reason
from hetsim.distributed.launch.participation import take_part
from hetsim.distributed.launch.store import announce, check_interfaces, client, client_of_run, gather_texts, launchers_store, run_store
from hetsim.distributed.launch.supervision import seconds_at_begin
from hetsim.distributed.membership.faults import FaultSchedule, survives_losses, surviving_run
from hetsim.distributed.membership.keeper import failed_key
from hetsim.distributed.pacing.cpu_quota import cap_of
from hetsim.distributed.pacing.padding import permit_realtime_priority
from hetsim.distributed.rank.cleanup import leave_with_parent, remove_led
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunStopped
from hetsim.memory import out_of_memory
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment

SET_IN_A_RUN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RES_OPTIONS")
"""The variables that a rank sets for gloo, NCCL and the resolver of names."""
_runs = itertools.count()


def join(experiment: Experiment, folder: Path, config: str, settings: Settings, process: Launched) -> dict[str, Any] | None:
    """Take part in a run, in a process of a launcher. Each of several runs has its own prefix in the store."""
    with _restore_process(), stop_of(experiment) as stop:
        wait_less_for_names()
        return _join(experiment, folder, config, settings, process, stop)


@contextlib.contextmanager
def _restore_process() -> Iterator[None]:
    """Restore the variables of `SET_IN_A_RUN` at the end, and the hook for errors: the process may be a script of the user's."""
    hook, variables = sys.excepthook, {name: os.environ.get(name) for name in SET_IN_A_RUN}
    try:
        yield
    finally:
        sys.excepthook = hook
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _join(
    experiment: Experiment, folder: Path, config: str, settings: Settings, process: Launched, stop: StopRequest
) -> dict[str, Any] | None:
    number, survives, launchers = next(_runs), False, None
    if process.again is not None and number < process.again.number:
        return None  # it is over
    store = dist.PrefixStore(f"hetsim run {number}", launchers_store(process))  # type: ignore[attr-defined]
    started, connect = RankStart(process.rank, 0, {}, None, process.port, survives=False), lambda: store
    if process.goes_on:
        # device=auto is another one on a host with a GPU than on one without, and all ranks have to meet in the same way
        survives = survives_losses(experiment, gather_texts(store, process, "device", experiment.device_of(process.rank)))
        schedule = FaultSchedule(experiment, began=seconds_at_begin(experiment))
        absent = dict(schedule.absent)
        run = surviving_run(experiment, schedule, survives=survives, lost_after=settings.lost_after_seconds, number=number, announced=True)
        launchers = client(process.address, process.port)
        if process.again is None or number > process.again.number:
            announce(launchers, run if survives else None, leads=process.rank == experiment.leader)
        if survives:
            incarnation, joins_at = 0, schedule.joins.get(process.rank)
            if process.again is not None:
                incarnation, joins_at = process.again.incarnation, process.again.joins_at
            started = RankStart(process.rank, incarnation, absent, joins_at, process.port, True, run.succession)
            connect = partial(client_of_run, process, number)
    if not settings.one_host:
        check_interfaces(store, process, settings.interface)
    permit_realtime_priority(permitted=settings.emulate != "quota")
    cap = cap_of(experiment, settings, process.rank)

    def report(error: RunFailed | PeerLost) -> None:
        if not leave_reason(str(error), order=CONSEQUENCE if isinstance(error, PeerLost) else 1):
            print(f"hetsim: error: {error}", file=sys.stderr, flush=True)
        remove_led()
        cap.remove()
        os._exit(1)  # nothing else ends the program's thread, which waits in the network; the launcher ends the other processes

    try:
        return take_part(experiment, folder, config, settings, cap, started=started, connect=connect, stop=stop, report=report)
    except PeerLost as error:
        raise RunFailed(str(error)) from error
    except dist.DistError as error:
        raise RunFailed(f"rank {process.rank} cannot reach the launcher's store any more: the run is lost") from PeerLost(str(error))
    except Exception as error:
        if survives and not isinstance(error.__cause__, PeerLost):  # it would come again, so it is no loss: the run fails
            with contextlib.suppress(RuntimeError):
                run_store(launchers, number).set(failed_key(process.rank), "")
        raise


def child(experiment: Experiment, folder: Path, config: str, settings: Settings, started: RankStart, sender: Connection) -> None:
    """Take part in a run, in a process of `launch`. Report the result to it, and end when it ends.

    An error is reported with an order: the lower, the nearer to its cause.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C, too, and ends this process
    wait_less_for_names()
    with stop_of(experiment) as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # which this process was started with
        with contextlib.suppress(BrokenPipeError):  # the parent has been killed
            _child(experiment, folder, config, settings, started, sender, stop)


def _child(
    experiment: Experiment, folder: Path, config: str, settings: Settings, started: RankStart, sender: Connection, stop: StopRequest
) -> None:
    rank = started.rank
    permit_realtime_priority(permitted=settings.emulate != "quota")
    cap = cap_of(experiment, settings, rank)
    Thread(target=leave_with_parent, args=(cap,), daemon=True).start()

    def report(error: RunFailed | PeerLost) -> None:
        sender.send((3, RunFailed(str(error))) if isinstance(error, PeerLost) else (1, error))
        os._exit(1)  # nothing else ends the program's thread, which waits in the network; the parent ends the other processes

    connect = partial(client, "127.0.0.1", started.port)
    try:
        summary = take_part(experiment, folder, config, settings, cap, started=started, connect=connect, stop=stop, report=report)
    except RunStopped as stopped:
        sender.send((0, stopped if stopped.args else None))  # of the leader, with how to resume
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


@contextlib.contextmanager
def stop_of(experiment: Experiment) -> Iterator[StopRequest]:
    """Within this context, a signal to this process requests a stop of the run. Without checkpoints, no stop is ever requested.

    It begins before the data are loaded and ends after the last evaluation, because a signal may come at any time. A signal before the
    first version stops the run at that version. A signal after the last version has no effect.
    """
    stop = StopRequest()
    with stop.by_signals(again=True) if experiment.checkpoint.enabled else contextlib.nullcontext():
        yield stop
