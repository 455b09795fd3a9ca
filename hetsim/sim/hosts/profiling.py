"""The profile before a run, if workers that are measured at the same time share cores."""

from __future__ import annotations

from itertools import pairwise

from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.distributions import PROFILING
from hetsim.cluster.network.collectives import Collectives
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.profiling import Profile, seconds_for_quota
from hetsim.sim.clock import VirtualClock
from hetsim.sim.hosts.processors import Processors


def profile_on_hosts(experiment: Experiment) -> Profile:
    """The profile of all workers, measured at the same time and gathered. It ends at 0 s. No gradient is computed."""
    clock, cluster = VirtualClock(), experiment.cluster
    processors = Processors(clock, cluster, seed=experiment.seed, widths=experiment.widths)
    times = [StepTimes(node, seed=experiment.seed, rank=rank, stream=PROFILING) for rank, node in enumerate(cluster.nodes)]
    ends: list[list[float]] = [[0.0] for _ in cluster.nodes]
    least_seconds = [
        seconds_for_quota(node.cpu_quota or 0.0, node.cpu_quota_period_seconds or 0.0, experiment.widths[rank])
        for rank, node in enumerate(cluster.nodes)
    ]

    def measure(rank: int) -> None:
        processors.compute(rank, times[rank].seconds(experiment.profile_batches[rank].samples), record_end, rank)

    def record_end(rank: int) -> None:
        ends[rank].append(clock.now)
        if len(ends[rank]) <= experiment.coordination.allocation.repetitions or clock.now < least_seconds[rank]:
            measure(rank)

    for rank in range(cluster.num_workers):
        measure(rank)
    clock.run_all()
    seconds = [[after - before for before, after in pairwise(moments)] for moments in ends]
    return Profile(seconds, max(moments[-1] for moments in ends) + Collectives(cluster, seed=experiment.seed).gather_seconds())
