"""The backend `sim`: runs an experiment in virtual time, and writes its files."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from hetsim.errors import RunStopped
from hetsim.files.folder import run_folder
from hetsim.results.writing.summary import summary_of, write_summary
from hetsim.runtime.backend import Backend
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.trace import Trace
from hetsim.sim.gradient_processes import AUTO, check
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.workloads.device import check_present
from hetsim.workloads.task import Task

if TYPE_CHECKING:
    from hetsim.checkpoints.rows import SavedTrace
    from hetsim.checkpoints.saver import Saver
    from hetsim.sim.world import EventWorld

THRESHOLD = 50_000
"""The number of allocated objects after which Python collects cycles. A run on ten thousand nodes allocates ten times as many."""


@dataclass(frozen=True, kw_only=True)
class Simulator(Backend):
    """backend=sim: SimPy's clock, the cluster's described times, and the workload's real gradients.

    If all ranks do the same and nothing is computed, they run in lockstep, with the same times at a fraction of the cost.

    Args:
        processes: the number of processes that compute gradients, including this one; `auto` for the fastest number. The results
            do not depend on it.
        batched: `auto` to compute gradients of equal batch sizes together where that is faster; their last bits differ.
    """

    processes: int | str = AUTO
    batched: bool | str = False

    name: ClassVar[str] = "sim"

    def check(self, experiment: Experiment) -> None:
        super().check(experiment)
        check(self.processes, self.batched, experiment)
        check_present("device", experiment.device)

    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any]:
        with rare_garbage_collection():
            return self._run(experiment, folder, config)

    def _run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any]:
        stop = StopRequest()
        with stop.by_signals() if experiment.checkpoint.enabled else nullcontext():
            return self._run_with_stop(stop, experiment, folder, config)

    def _run_with_stop(self, stop: StopRequest, experiment: Experiment, folder: Path, config: str) -> dict[str, Any]:
        begun = perf_counter()
        with experiment.loaded() as (task, optimizers):
            checkpoint = None
            kind_of_trace: type[SavedTrace | Trace] = Trace
            saves = experiment.checkpoint.enabled
            if saves or experiment.resume is not None:  # most runs do neither, and need not import it
                from hetsim.checkpoints.resume import check_budget, continue_trace, load
                from hetsim.checkpoints.rows import SavedTrace
                from hetsim.checkpoints.saver import Saver

                kind_of_trace = SavedTrace if saves else Trace
            if experiment.resume is not None:
                checkpoint = load(experiment.resume, experiment, task, optimizers)
                check_budget(experiment.resume, checkpoint, experiment, task)
            with run_folder(folder, config), kind_of_trace(folder, experiment.trace) as trace:
                saver = None
                if saves:
                    saver = Saver(folder, config, experiment.checkpoint, trace, clock=perf_counter, stop=stop, resumed=experiment.resume)
                if checkpoint is not None and experiment.resume is not None:
                    continue_trace(trace, experiment.resume, checkpoint, experiment)
                options: dict[str, Any] = {"processes": self.processes, "batched": self.batched}
                world = world_of(experiment, task, optimizers, [trace], checkpoint=checkpoint, saver=saver, **options)
                at_end = world.run()
                if saver is not None and at_end is not None:
                    saver.write(at_end)
                return write_summary(folder, world.outcome, _summary(world, task, begun))


def world_of(
    experiment: Experiment, task: Task, optimizers: Optimizers, recorders: Sequence[Recorder], *,
    checkpoint: Checkpoint | None = None, saver: Saver | None = None, processes: int | str = AUTO, batched: bool | str = False,
) -> EventWorld | LockstepWorld:  # fmt: skip
    """The world for an experiment: lockstep if it gives the same results."""
    keep, wants = (None, None) if saver is None else (partial(save, saver, experiment, task.num_samples), saver.due)
    if LockstepWorld.suits(experiment, task):
        return LockstepWorld(experiment, task, optimizers, recorders, checkpoint=checkpoint, keep=keep, wants=wants)
    from hetsim.sim.world import EventWorld  # with SimPy, which lockstep does not need

    kind = EventWorld
    if experiment.cluster.shares_cores:
        from hetsim.sim.hosts.world import HostWorld

        kind = HostWorld
    return kind(
        experiment, task, optimizers, recorders, checkpoint=checkpoint, keep=keep, wants=wants, processes=processes, batched=batched,
    )  # fmt: skip


def save(saver: Saver, experiment: Experiment, num_samples: int, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. Raises RunStopped if the run was asked to stop before it reached its budget."""
    from hetsim.checkpoints.resume import reached_budget

    saver.write(checkpoint)
    seconds = max(checkpoint.seconds)
    if saver.stop.asked and reached_budget(experiment, checkpoint.state, seconds, num_samples) is None:
        raise RunStopped(saver.sentence(checkpoint.state, seconds))


class Simulation:
    """An experiment in virtual time, for programs that build its objects themselves. It writes no files.

    Recorders observe the run (`hetsim.runtime.recording.recorder`).
    """

    def __init__(self, experiment: Experiment, recorders: Sequence[Recorder] = ()) -> None:
        self.experiment = experiment
        self.recorders = recorders

    def run(self) -> dict[str, Any]:
        """Run the experiment, and return the numbers of its summary.json. Raises ValueError for an experiment that cannot run."""
        with rare_garbage_collection():
            return self._run()

    def _run(self) -> dict[str, Any]:
        begun = perf_counter()
        Simulator().check(self.experiment)
        with self.experiment.loaded() as (task, optimizers):
            world = world_of(self.experiment, task, optimizers, self.recorders)
            world.run()
            return _summary(world, task, begun)


def _summary(world: EventWorld | LockstepWorld, task: Task, begun: float) -> dict[str, Any]:
    """The summary of a run that has just ended."""
    return summary_of(world.outcome, backend=Simulator.name, wall_seconds=perf_counter() - begun, devices=[task.device.name])


@contextlib.contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Within this context, Python collects cycles rarely, and only among new objects. At its end, it collects once more.

    A world is a cycle, and refers to the task with its data. Python's full collections are rare: with these alone, a sweep over MNIST in
    one process kept the images of more than a hundred runs. Older objects are not collected, because that would take a tenth of a second.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(THRESHOLD, thresholds[0]), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        gc.unfreeze()
