"""What each worker's gradients take before a run, in virtual time."""

from __future__ import annotations

from hetsim.cluster.collectives import Collectives
from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.distributions import PROFILING
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.profiling import Profile


def run_profiling(experiment: Experiment) -> Profile:
    """All workers measure at the same time and gather the times; that ends at 0 s. The gradients themselves are not computed."""
    repetitions, batches = experiment.coordination.allocation.repetitions, experiment.profile_batches
    seconds = []
    for rank, node in enumerate(experiment.cluster.nodes):
        times = StepTimes(node, seed=experiment.seed, rank=rank, stream=PROFILING)
        took: list[float] = []
        for _ in range(repetitions):
            took.append(times.seconds(batches[rank].samples, sum(took)))
        seconds.append(took)
    return Profile(seconds, max(map(sum, seconds)) + Collectives(experiment.cluster).gather_seconds())
