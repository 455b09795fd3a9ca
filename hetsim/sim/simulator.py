"""The backend `sim`: plays a run in virtual time, and leaves its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from hetsim import report
from hetsim.experiment import Backend, Experiment
from hetsim.sim.lockstep import Lockstep
from hetsim.sim.simulation import Simulation
from hetsim.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Simulator(Backend):
    """backend=sim: SimPy's clock, the cluster's times, the workload's real numbers.

    Where all ranks do the same and nothing is computed, they are played in lockstep: the same times, at a fraction of the cost.
    """

    name: ClassVar[str] = "sim"

    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any]:
        begun = perf_counter()
        task, optimizers = experiment.load()
        driver = Lockstep if Lockstep.suits(experiment, task) else Simulation
        with report.begun(folder, config), Trace(folder, experiment.trace) as trace:
            simulation = driver(experiment, task, optimizers, trace)
            simulation.run()
            report.check(simulation.history, simulation.busy)
            trace.close()
            return report.write(folder, simulation.history, simulation.busy, backend=self.name, wall_seconds=perf_counter() - begun)
