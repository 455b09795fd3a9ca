"""The backend `dist`: one process for each rank, started by hetsim or by torchrun."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from hetsim import checks
from hetsim.dist.launch import launch
from hetsim.dist.pace import one_host
from hetsim.dist.placement import check_devices
from hetsim.dist.quota import check_quotas
from hetsim.dist.settings import Emulation, Settings
from hetsim.dist.torchrun import under_torchrun
from hetsim.runtime.backend import Backend
from hetsim.runtime.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Processes(Backend):
    """backend=dist: real processes that compute real gradients, and send them over gloo.

    With `emulate` pad, every result is held until the cluster's description says that it is due. With quota, each worker that has a
    `cpu_quota` gets that share of a core, and the hardware determines all times; with none, it does so without quotas. None is pad,
    but none under torchrun. With `reduction` ordered, an all-reduce adds up in rank order, so that its sum equals the simulator's to the
    last bit; with native it is gloo's own, which adds up in another order.
    """

    emulate: Emulation | None = None
    interface: str | None = None
    port: int | None = None
    reduction: str = "ordered"

    name: ClassVar[str] = "dist"

    def __post_init__(self) -> None:
        if self.emulate is not None:
            checks.choice("backend.emulate", self.emulate, get_args(Emulation))
        checks.choice("backend.reduction", self.reduction, ("ordered", "native"))
        interfaces = [name for _, name in socket.if_nameindex()]
        if self.interface is not None and self.interface not in interfaces:
            raise ValueError(
                f"backend.interface must be a network interface of this machine ({', '.join(interfaces)}), not {self.interface!r}"
            )
        if self.port is not None and checks.whole("backend.port", self.port) > 65535:
            raise ValueError(f"backend.port must be at most 65535, not {self.port}")

    @property
    def settings(self) -> Settings:
        """What the processes have to know."""
        interface = self.interface or ("lo0" if sys.platform == "darwin" else "lo")
        return Settings(interface=interface, emulate=self.emulates, reduction=self.reduction)

    @property
    def emulates(self) -> Emulation:
        """What `emulate` stands for."""
        return self.emulate or ("none" if under_torchrun() else "pad")

    def num_copies(self, experiment: Experiment) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", experiment.num_ranks)) if under_torchrun() else experiment.num_ranks

    def check(self, experiment: Experiment) -> None:
        super().check(experiment)
        check_devices(experiment)
        if experiment.cluster.faults.nodes:
            raise ValueError("cluster.faults are simulated only: take backend=sim, or cluster.faults=null")
        if self.emulates == "pad" and experiment.coordination.needs_server and experiment.cluster.shares_links:
            raise ValueError(
                "backend.emulate=pad holds each message by itself and cannot let messages share links: take backend=sim, "
                "backend.emulate=none on real links, or a cluster without uplink_bytes_per_second and downlink_bytes_per_second"
            )
        if self.emulates == "quota":
            check_quotas(experiment)
        if not under_torchrun():
            return
        if self.port is not None:
            raise ValueError(f"backend.port={self.port}: torchrun chose the port already, set --master-port there")
        if self.emulates == "pad" and not one_host():
            raise ValueError("backend.emulate=pad needs one clock, so all processes on one host: use backend.emulate=none across hosts")
        world_size, server = int(os.environ["WORLD_SIZE"]), experiment.coordination.needs_server
        if world_size != experiment.num_ranks:
            raise ValueError(
                f"torchrun started {world_size} processes, but method={experiment.method} on cluster={experiment.cluster.name} takes "
                f"{experiment.num_ranks}: {experiment.num_workers} workers{' and a server' if server else ''}; "
                f"set --nproc-per-node {experiment.num_ranks}"
            )

    def leads(self, experiment: Experiment) -> bool:
        return not under_torchrun() or int(os.environ["RANK"]) == experiment.leader

    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any] | None:
        experiment = replace(experiment, watch=None)  # it is a matter of this process alone, and of virtual time
        if under_torchrun():
            from hetsim.dist.process import join

            return join(experiment, folder, config, self.settings, rank=int(os.environ["RANK"]))
        return launch(experiment, folder, config, self.settings, port=self.port)
