"""The backend `dist`: one process for each rank, started by hetsim or by a launcher."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from hetsim import checks
from hetsim.distributed.environment import LOOPBACK, NEEDS_ONE_CLOCK, Emulation, Settings, interface_to, is_launched, launched, local_ranks
from hetsim.distributed.launch.local import launch
from hetsim.distributed.membership.faults import check_faults
from hetsim.distributed.pacing.cpu_quota import check_quotas
from hetsim.runtime.backend import Backend
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.device import check_present


@dataclass(frozen=True, kw_only=True)
class Processes(Backend):
    """backend=dist: real processes that compute real gradients, and send them over gloo.

    Args:
        emulate: how unequal nodes are made. `pad` holds every result until the cluster's description says that it is due. `quota` gives
            each worker (and the server) that has a `cpu_quota` that share of a core; the hardware determines all times. `none` does
            neither. None stands for `pad`, or for `none` under a launcher.
        interface: the network interface of the processes; by default loopback, or the one that reaches the master.
        port: the TCP port of the store; by default a free one.
        reduction: `ordered` adds in rank order, so that a sum equals the simulator's to the last bit. `native` leaves the order to the
            library: NCCL where each rank has a GPU of its own, otherwise gloo.
        micro_batch: without padding, the samples of one part of a gradient that can be given up: it ends between two parts. None
            computes the gradient to its end. Sums in parts have other last bits, and batch norm other statistics.
        heartbeat_seconds: the interval of the processes' heartbeats.
        lost_after_seconds: a process without a heartbeat for this time counts as lost.
    """

    emulate: Emulation | None = None
    interface: str | None = None
    port: int | None = None
    reduction: str = "ordered"
    micro_batch: int | None = None
    heartbeat_seconds: float = 0.5
    lost_after_seconds: float = 10.0

    name: ClassVar[str] = "dist"

    def __post_init__(self) -> None:
        if self.emulate is not None:
            checks.choice("backend.emulate", self.emulate, get_args(Emulation))
        checks.choice("backend.reduction", self.reduction, ("ordered", "native"))
        if self.micro_batch is not None:
            checks.whole("backend.micro_batch", self.micro_batch)
        checks.seconds("backend.heartbeat_seconds", self.heartbeat_seconds)
        checks.seconds("backend.lost_after_seconds", self.lost_after_seconds)
        if not 0 < 2 * self.heartbeat_seconds <= self.lost_after_seconds:
            raise ValueError(
                f"backend.lost_after_seconds={self.lost_after_seconds:g} must be at least twice "
                f"backend.heartbeat_seconds={self.heartbeat_seconds:g}, which must be above 0: raise the one, or lower the other"
            )
        interfaces = [name for _, name in socket.if_nameindex()]
        if self.interface is not None and self.interface not in interfaces:
            raise ValueError(
                f"backend.interface must be a network interface of this machine ({', '.join(interfaces)}), not {self.interface!r}"
            )
        if self.port is not None and checks.whole("backend.port", self.port) > 65535:
            raise ValueError(f"backend.port must be at most 65535, not {self.port}")

    @property
    def settings(self) -> Settings:
        """The settings for the processes."""
        process = launched()
        one_host = process is None or process.one_host
        interface = self.interface or (LOOPBACK if process is None or one_host else interface_to(process.address, process.port))
        return Settings(
            interface=interface, emulate=self.emulates, reduction=self.reduction, micro_batch=self.micro_batch, one_host=one_host,
            heartbeat_seconds=self.heartbeat_seconds, lost_after_seconds=self.lost_after_seconds,
        )  # fmt: skip

    @property
    def emulates(self) -> Emulation:
        """The kind of emulation."""
        return self.emulate or ("none" if is_launched() else "pad")

    def num_copies(self, experiment: Experiment) -> int:
        process = launched()
        return experiment.num_ranks if process is None else process.local_size or 1

    def check(self, experiment: Experiment) -> None:
        super().check(experiment)
        check_devices(experiment)
        if experiment.cluster.faults.nodes or experiment.cluster.faults.pauses:
            check_faults(experiment, lost_after=self.lost_after_seconds)
        if self.micro_batch is not None and not experiment.coordination.gives_up_gradients:
            raise ValueError(
                f"backend.micro_batch={self.micro_batch} would do nothing, because "
                f"method={experiment.method} gives up no gradient: leave it out"
            )
        if self.micro_batch is not None and self.emulates == "pad":
            raise ValueError(
                f"backend.micro_batch={self.micro_batch} would do nothing with padding, which knows when a gradient ends: leave it out, or "
                "take backend.emulate=none or quota"
            )
        if self.emulates == "quota":
            check_quotas(experiment)
        if self.emulates == "pad" and experiment.cluster.shares_cores:
            raise ValueError(
                f"cluster={experiment.cluster.name} has hosts, CPU work of messages or quotas by periods, which padding cannot emulate: "
                "take backend.emulate=none or quota, or backend=sim"
            )
        process = launched()
        if process is None:
            return
        if self.port is not None:
            raise ValueError(f"backend.port={self.port}: {process.by} chose the port already: leave backend.port out, or set it there")
        if self.emulates == "pad" and process.local_size is not None and not process.one_host:
            raise ValueError(NEEDS_ONE_CLOCK)
        if process.size != experiment.num_ranks:
            server = " and a server" if experiment.coordination.needs_server else ""
            server = server if experiment.regions is None else f", a server and {experiment.regions.num_regions} local servers"
            raise ValueError(
                f"{process.by} started {process.size} processes, but method={experiment.method} on cluster={experiment.cluster.name} takes "
                f"{experiment.num_ranks}: {experiment.num_workers} workers{server}; {process.how_to_start(experiment.num_ranks)}"
            )

    def leads(self, experiment: Experiment) -> bool:
        process = launched()
        return process is None or (process.rank == experiment.leader and process.again is None)

    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any] | None:
        experiment = replace(experiment, watch=None)  # it is a matter of this process alone, and of virtual time
        if (described := experiment.weight_checkpoints) is not None:
            experiment = replace(experiment, checkpoint=experiment.checkpoint.at_least_every(described.every))
        process = launched()
        if process is not None:
            from hetsim.distributed.launch.process import join

            return join(experiment, folder, config, self.settings, process)
        return launch(experiment, folder, config, self.settings, port=self.port)


def check_devices(experiment: Experiment) -> None:
    """Raise ValueError if this host lacks a rank's device."""
    for rank in local_ranks(experiment.num_ranks):
        if rank < experiment.num_ranks:
            is_server = rank >= experiment.num_workers
            device = experiment.cluster.end(rank).device
            try:
                check_present("cluster.server.device" if device is not None and is_server else "device", experiment.device_of(rank))
            except ValueError as error:
                if device is None or is_server:
                    raise
                raise ValueError(f"node {rank}, in its row of cluster.nodes: {error}") from None
