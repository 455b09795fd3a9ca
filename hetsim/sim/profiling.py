"""The profile before a run, in virtual time."""

from __future__ import annotations

from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.distributions import PROFILING
from hetsim.cluster.network.collectives import Collectives
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.profiling import Profile


def run_profiling(experiment: Experiment) -> Profile:
    """The profile of all workers, measured at the same time and gathered. It ends at 0 s. No gradient is computed."""
    repetitions, batches = experiment.coordination.allocation.repetitions, experiment.profile_batches
    seconds = []
    for rank, node in enumerate(experiment.cluster.nodes):
        times = StepTimes(node, seed=experiment.seed, rank=rank, stream=PROFILING)
        worker_seconds: list[float] = []
        now = 0.0
        for _ in range(repetitions):
            worker_seconds.append(times.seconds(batches[rank].samples, now))
            now += worker_seconds[-1]
        seconds.append(worker_seconds)
    return Profile(seconds, max(map(sum, seconds)) + Collectives(experiment.cluster, seed=experiment.seed).gather_seconds())
