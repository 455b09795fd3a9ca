"""Runs in virtual time that are saved, and go on from their files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hetsim.checkpoints.folder import newest
from hetsim.checkpoints.resume import load
from hetsim.coordination.state import State
from hetsim.effects import Batch
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.recorder import Recorder
from hetsim.sim.backend import Simulator, world_of

CONFIG = "seed: 0\n"


def run(experiment: Experiment, folder: Path, *, resume: Path | None = None, config: str = CONFIG) -> dict[str, Any]:
    """The summary of a run whose files are in this folder, from the newest checkpoint of another run's folder if one is given."""
    resumed = replace(experiment, resume=None if resume is None else newest(resume))
    return Simulator().run(resumed, folder, config)


def loaded(experiment: Experiment, folder: Path) -> Checkpoint:
    """The newest checkpoint in a folder, read for this experiment."""
    return load(newest(folder), experiment, *experiment.load())


@dataclass
class Applied(Recorder):
    """The ranges of which each version was made, and its weights."""

    batches: list[Batch] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def commit(self, seconds: float, rank: int, state: State, applied: Any) -> None:
        """A version."""
        self.batches += [c.batch for c in applied]
        self.states.append(state)


def applied(experiment: Experiment, checkpoint: Checkpoint | None = None) -> Applied:
    """What a run applies, from a checkpoint on if one is given."""
    task, optimizers = experiment.load()
    seen = Applied()
    world = world_of(experiment, task, optimizers, [seen], checkpoint=checkpoint)
    world.run()
    seen.states.append(world.history.last)
    return seen
