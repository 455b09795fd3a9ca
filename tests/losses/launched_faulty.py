"""A workload for runs under hetsim-launch, in whose processes faults happen that stand in the config: the ranks are commands there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from faulty import Faults, Faulty

from hetsim.workloads.device import Device
from hetsim.workloads.quadratic import Quadratic
from hetsim.workloads.task import Task

_watched: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Launched(Quadratic):
    """A quadratic. `faults` are such as "kill 2 6": rank 2 at update 6; each process tells what it does in `folder`."""

    folder: str
    faults: tuple[str, ...] = ()

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        if not _watched and "RANK" in os.environ:
            _watched.append(int(os.environ["RANK"]))
            faults = Faults()
            for fault in self.faults:
                what, rank, at_update = fault.split()
                faults = getattr(faults, what)(rank=int(rank), at_update=int(at_update))
            watching = Faulty(
                num_parameters=self.num_parameters, num_samples=self.num_samples, condition=self.condition, noise=self.noise,
                faults=faults, folder=Path(self.folder),
            )  # fmt: skip
            watching.watch(_watched[0])
        return super().load(seed=seed, dtype=dtype, device=device)
