"""Choose what computes a simulation's gradients: `backend.processes` processes, or one that computes several together (`batched`)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hetsim import checks
from hetsim.pool.cores import free_cores
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import Task

if TYPE_CHECKING:
    from hetsim.sim.gradient_batching import Compute, GradientBatcher

AUTO = "auto"
MOST = 1024
"""The maximum number of processes that a user may set."""
MOST_CHOSEN = 8
"""The maximum number of processes with `auto`."""


def check(processes: object, batched: object, experiment: Experiment) -> None:
    """Raise ValueError unless `processes` is `auto`, 1, or a number that has an effect, and `batched` is false or `auto`."""
    if batched is not False and batched != AUTO:
        raise ValueError(f"backend.batched must be false or auto, not {checks.shown(batched)}")
    if processes == AUTO:
        return
    if isinstance(processes, str):
        raise ValueError(f"backend.processes must be auto or a number from 1, not {checks.shown(processes)}")
    count = checks.whole("backend.processes", processes, most=MOST)
    if count > 1 and (reason := only_one(experiment)) is not None:
        raise ValueError(f"backend.processes={count} would do nothing, because {reason}: leave it out")
    if count > 1 and batched:
        raise ValueError(f"backend.batched={batched} takes one process, not backend.processes={count}: leave one of them out")


def only_one(experiment: Experiment) -> str | None:
    """The reason why one process computes all gradients of this experiment; None if several can."""
    if isinstance(experiment.workload, PhantomWorkload):
        return f"workload={experiment.workload.name} computes no gradients"
    if sys.platform != "linux":
        return "processes are forked on Linux alone"
    if experiment.device != "cpu":
        return f"device={experiment.device} computes one gradient at a time"
    if experiment.threads != 1:
        return f"threads={experiment.threads} takes several cores for each gradient"
    if experiment.num_workers == 1:
        return "a single worker computes one gradient at a time"
    if experiment.cluster.shares_cores:
        return f"cluster={experiment.cluster.name} has hosts whose cores are shared, so the order of gradients is not known before they end"
    if experiment.coordination.gives_up_gradients:
        return f"method={experiment.method} may give up gradients, which are not computed before they end"
    return None


def gradients_of(experiment: Experiment, task: Task, gradient: Compute, processes: int | str, batched: bool | str) -> GradientBatcher:
    """The object that computes the gradients of a run in this many processes, or `auto`; with `batched`, several together."""
    from hetsim.sim.gradient_batching import GradientBatcher  # with SimPy, which lockstep does not need

    if batched and task.least_together is not None and task.least_together <= experiment.num_workers:
        from hetsim.sim.joint_gradients import JointGradients, max_together

        if max_together(task) >= task.least_together:
            return JointGradients(task, gradient, experiment.cluster.nodes)
    if processes == AUTO:
        most = min(free_cores(), experiment.num_workers, MOST_CHOSEN)
        if most > 1 and task.forkable and only_one(experiment) is None:
            from hetsim.sim.parallel_gradients import AutomaticGradients  # imports torch, which phantoms do not need

            return AutomaticGradients(task, gradient, most)
        return GradientBatcher(task, gradient)
    assert isinstance(processes, int)
    if processes == 1:
        return GradientBatcher(task, gradient)
    if task.forkable is False:
        raise ValueError(
            f"backend.processes={processes} is not for workload={experiment.workload.name} with loader workers, which one process asks for "
            "samples: leave one of them out"
        )
    from hetsim.sim.parallel_gradients import ParallelGradients

    return ParallelGradients(task, gradient, min(processes, experiment.num_workers))
