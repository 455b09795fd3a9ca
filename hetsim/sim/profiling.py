"""What each worker's gradients take before a run, in virtual time."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hetsim import effects as fx
from hetsim.cluster.collectives import Collectives
from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.outages import PROFILING
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.trace import PROFILE, Trace


def run_profiling(experiment: Experiment, trace: Trace) -> tuple[tuple[fx.Contribution, ...], float]:
    """What each worker's gradients take before the run, if the allocation wants to know; and how long all of it took.

    They are thrown away, so they are not computed. Everyone measures at once and gathers the times; that ends at 0 s.
    """
    repetitions, batches = experiment.coordination.allocation.repetitions, experiment.profile_batches
    if not repetitions:
        return (), 0.0
    everyones = []
    for rank, node in enumerate(experiment.cluster.nodes):
        times = StepTimes(node, seed=experiment.seed, rank=rank, stream=PROFILING)
        took: list[float] = []
        for _ in range(repetitions):
            took.append(times.seconds(batches[rank].samples, sum(took)))
        everyones.append(took)
    in_all = max(map(sum, everyones)) + Collectives(experiment.cluster).gather_seconds()
    for rank, its in enumerate(everyones):
        for start, end in pairwise(accumulate(its, initial=-in_all)):
            if trace.full:
                trace.add(start, end, rank, PROFILE, 0, batches[rank].samples)
    return tuple(fx.Contribution(rank, batches[rank], 0, t, 0.0) for rank, its in enumerate(everyones) for t in its), in_all
