"""A workload for runs under hetsim-launch, in whose processes faults happen that stand in the config: the ranks are commands there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from faulty import Faults, Faulty

from hetsim.workloads.device import Device
from hetsim.workloads.quadratic import Quadratic
from hetsim.workloads.task import Task

_watched: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Launched(Quadratic):
    """A quadratic. `faults` are such as "kill 2 6": rank 2 at update 6; each process tells what it does in `folder`.

    `evaluation_seconds` is what an evaluation takes, at the end of a run, and `loading_seconds` what rank 0 takes to begin.
    """

    folder: str
    faults: tuple[str, ...] = ()
    evaluation_seconds: float = 0.0
    loading_seconds: float = 0.0

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
        if os.environ.get("RANK") == "0":
            time.sleep(self.loading_seconds)
        task = super().load(seed=seed, dtype=dtype, device=device)
        if self.evaluation_seconds:
            evaluate = task.evaluate
            task.evaluate = lambda at: (time.sleep(self.evaluation_seconds), evaluate(at))[1]  # type: ignore[method-assign]
        return task
