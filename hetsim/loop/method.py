"""The method of a Team: the same config as a run's, for the ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.overlapped_all_reduce import OverlappedAllReduce
from hetsim.gradcheck.turning import Turning, batch_of_all, refused
from hetsim.policies.allocation.base import Allocation, Fixed
from hetsim.policies.weighting import PerSample, PerWorker
from hetsim.runtime.experiment import Experiment

COMMON = ("workload=phantom", "budget.epochs=1000000", "trace=none", "pictures=false")
"""What a Team does not use of a config."""

STEADY = {
    "dbs": ("allocation.reallocate_every=5", "allocation.smoothing=0.5", "allocation.dead_band=0.05"),
    "omnilearn": ("allocation.reallocate_every=5",),
}
"""The options of allocations that a Team knows by name, whose own are their papers': real steps differ by chance."""


def experiment_of_words(words: Sequence[str], num_ranks: int, *, max_samples: Sequence[int] | None = None) -> Experiment:
    """The method that these words describe, on as many equal nodes as there are ranks besides the method's servers."""
    for num_workers in range(num_ranks, 0, -1):
        nodes = ",".join(
            f"{{count:1,seconds_per_sample:1ms,overhead_seconds:0{'' if max_samples is None else f',max_samples:{max_samples[rank]}'}}}"
            for rank in range(num_workers)
        )
        experiment = experiment_of([*COMMON, "cluster=uniform4", f"cluster.nodes=[{nodes}]", *words], None)
        if experiment.num_ranks <= num_ranks:
            break
    check_num_ranks(experiment, num_ranks)
    return experiment


def experiment_of(words: Sequence[str], config_dir: str | Path | None) -> Experiment:
    """The experiment of a config."""
    from hetsim.config.build import build_without_backend  # with Hydra, which a script's import need not load
    from hetsim.config.compose import composed

    return build_without_backend(composed(words, config_dir=config_dir, folder=".").entries)


def with_whole_batches(experiment: Experiment) -> Experiment:
    """The experiment whose synchronous gradients are those of the whole batch: a rank counts by its samples."""
    coordination = experiment.coordination
    if coordination.needs_server or coordination.trains_locally or type(coordination.weighting) is not PerWorker:
        return experiment
    return replace(experiment, coordination=replace(coordination, weighting=PerSample()))


def with_allocation(experiment: Experiment, allocation: Allocation) -> Experiment:
    """The experiment with this allocation."""
    return replace(experiment, coordination=replace(experiment.coordination, allocation=allocation))


def check_num_ranks(experiment: Experiment, num_ranks: int) -> None:
    """Raise ValueError if the process group has another number of ranks than the method on this cluster."""
    if experiment.num_ranks == num_ranks:
        return
    servers = experiment.num_ranks - experiment.num_workers
    with_servers = f" and {servers} server{'s' * (servers > 1)}" if servers else ""
    raise ValueError(
        f"method={experiment.method} has {experiment.num_workers} workers{with_servers}, and the process group has {num_ranks} ranks: "
        f"start {experiment.num_ranks} processes"
    )


def check_allocation(experiment: Experiment) -> None:
    """Raise ValueError for an allocation that a Team cannot follow."""
    allocation = experiment.coordination.allocation
    if allocation.repetitions:
        raise ValueError(
            f"allocation={type(allocation).__name__} measures gradients before the run, and your loop has none before it begins: set "
            "allocation.repetitions=0, or take allocation=dbs, which measures your steps"
        )


def with_uneven_shares(experiment: Experiment, num_ranks: int, models: Sequence[Any]) -> Experiment:
    """The experiment under `hetsim-ddp-check`: shares are uneven, and change unless a model is sharded. One rank is one worker.

    Raises ValueError for a method whose steps are not along the gradient of a whole batch.
    """
    if type(experiment.coordination) not in (SynchronousAllReduce, OverlappedAllReduce):
        raise refused(
            f"method={experiment.method} does not step along the gradient of a whole batch, so there is nothing to compare: check the "
            "script with method=ddp"
        )
    batch_size = batch_of_all(experiment.batch_size, num_ranks)
    if num_ranks == 1:
        node = replace(experiment.cluster.nodes[0], max_samples=None)
        experiment = replace(experiment, cluster=replace(experiment.cluster, nodes=(node,)), batch_size=batch_size)
    is_sharded = any(hasattr(model, "set_requires_gradient_sync") for model in models)
    allocation = Fixed(parts=list(range(experiment.num_workers, 0, -1))) if is_sharded else Turning()
    return with_allocation(experiment, allocation)
