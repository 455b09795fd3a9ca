"""The backend `sim`: runs an experiment in virtual time, and writes its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from hetsim.results.folder import run_folder
from hetsim.results.summary import write_summary
from hetsim.runtime.backend import Backend
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.trace import Trace
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.sim.world import EventWorld


@dataclass(frozen=True, kw_only=True)
class Simulator(Backend):
    """backend=sim: SimPy's clock, the cluster's described times, and the workload's real gradients.

    If all ranks do the same and nothing is computed, they run in lockstep: the same times, at a fraction of the cost.
    """

    name: ClassVar[str] = "sim"

    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any]:
        begun = perf_counter()
        task, optimizers = experiment.load()
        kind = LockstepWorld if LockstepWorld.suits(experiment, task) else EventWorld
        with run_folder(folder, config), Trace(folder, experiment.trace) as trace:
            world = kind(experiment, task, optimizers, [trace])
            world.run()
            return write_summary(folder, world.outcome, backend=self.name, wall_seconds=perf_counter() - begun)
