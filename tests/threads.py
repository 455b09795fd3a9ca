"""A run whose ranks are threads of this process, over a fake transport: no process, no network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from threading import Barrier, Lock, Thread
from typing import Any

import torch
from elsewhere import Elsewhere, SumsElsewhere
from fake_transport import FakeNetwork

from hetsim.distributed.communication.clock_alignment import Clocks
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.pacing.padding import Pace, clock
from hetsim.distributed.rank.run import FixedMembership, RankRun, prepare_rank
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.trace import Trace, TracePart
from hetsim.workloads.device import Device
from hetsim.workloads.task import Task


class Board:
    """The store that the ranks share."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        """Write a text."""
        self.texts[key] = value

    def get(self, key: str) -> bytes:
        """Read it."""
        return self.texts[key].encode()

    def check(self, keys: list[str]) -> bool:
        """Whether all of these have been written."""
        return all(key in self.texts for key in keys)


_loading = Lock()


def loaded(experiment: Experiment, device: Device) -> tuple[Task, Optimizers]:
    """The task and its optimizer on this device."""
    with device if isinstance(device, Elsewhere) else contextlib.nullcontext():
        task = experiment.workload.load(seed=experiment.seed, dtype=experiment.dtype, device=device)
        local = None if experiment.local_optimizer is None else task.optimizer(experiment.local_optimizer)
        return task, Optimizers(task.optimizer(experiment.optimizer), local)


def _refuse_from(device: Elsewhere, transport: Transport) -> None:
    """Let the transport send nothing that is on the device."""
    send = transport.send

    def sending(tensor: torch.Tensor, to: int) -> None:
        assert not device.has(tensor), "what is sent must be in the CPU's memory"
        send(tensor, to)

    transport.send = sending  # type: ignore[method-assign]


def _on_device(transport: Transport, device: Device, order: str) -> Reduction:
    """By sums on the device, of each thread."""
    assert isinstance(device, Elsewhere)
    return Reduction.on_device(SumsElsewhere(transport, device), SumsElsewhere(transport.background, device), device, order)


def run_in_threads(
    experiment: Experiment,
    *,
    pad: bool = False,
    reduction: str = "ordered",
    sums_on_devices: bool = False,
    watch: bool = False,
    finish: Callable[[RankRun], object] | None = None,
    detail: str = "full",
    patience: float = 60.0,
    devices: Sequence[Device] | None = None,
    hosts: Sequence[Callable[[], float]] = (),
    keep: Callable[[RankState], None] | None = None,
    micro_batch: int | None = None,
) -> list[RankRun | BaseException]:
    """Every rank's run, in rank order, or the exception that ended it; a report of a standstill is the leader's.

    `devices` has each rank's device; without it, all compute on the CPU.
    With `sums_on_devices`, vectors are added up there, as NCCL does; all have to be Elsewhere then.
    `finish` is called by each rank after its run. A rank that fails is lost for the others.
    `hosts` has the clock of each rank's host. `keep` is called with each rank's state at its commits.
    """
    network, board = FakeNetwork(experiment.num_ranks), Board()
    ends: list[Any] = [None] * experiment.num_ranks
    all_loaded = Barrier(experiment.num_ranks)

    def part(rank: int) -> None:
        leads = rank == experiment.leader
        trace = Trace(None, detail) if leads and not hosts else TracePart(detail)
        clocks = Clocks([float(hosts.index(each)) for each in hosts], leader=experiment.leader) if hosts else None
        pace = Pace("pad" if pad else "none", clock=hosts[rank] if hosts else clock)

        def report(error: RunFailed) -> None:
            ends[rank] = error
            for other in range(network.size):
                network.lose(other)

        try:
            try:
                with _loading:
                    task, optimizers = experiment.load() if devices is None else loaded(experiment, devices[rank])
            finally:
                all_loaded.wait()  # a rank that computes would change the random numbers from which another draws its weights
            there = None if devices is None else devices[rank]
            with trace, there if isinstance(there, Elsewhere) else contextlib.nullcontext():
                transport = network.transport(rank)
                if isinstance(there, Elsewhere):
                    _refuse_from(there, transport)
                run = RankRun(
                    prepare_rank(transport, pace, experiment, task, optimizers),
                    trace,
                    membership=FixedMembership(
                        transport,
                        leader=experiment.leader,
                        reduction=(_on_device if sums_on_devices else Reduction.by_gloo)(transport, task.device, reduction),
                    ),
                    pace=pace,
                    clocks=clocks,
                    keep=keep,
                    micro_batch=micro_batch,
                )
                run.run(board if watch else None, report)
                if finish is not None:
                    finish(run)
            ends[rank] = run
        except PeerLost as error:
            ends[rank] = ends[rank] or error
            network.lose(rank)
        except BaseException as error:
            ends[rank] = error
            network.lose(rank)

    threads = [Thread(target=part, args=(rank,), daemon=True) for rank in range(experiment.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
        assert not thread.is_alive(), "a rank did not end in time"
    return ends
