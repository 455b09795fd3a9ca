"""Variants of a composed experiment in split, nodes and seed, because composing takes longer than simulating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache

from hetsim.advice.bounds import Bounds
from hetsim.advice.candidates import LeaveOut
from hetsim.advice.question import BASELINE
from hetsim.advice.simulated import SimulatedRun, experiment_of, run
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster, NodeSpec
from hetsim.cluster.schedule import Schedule
from hetsim.config.build import shipped_policy
from hetsim.policies.allocation import Even, Fixed
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.phantom import PhantomWorkload

NO_TIME = ("weighting", "discount", "compensation")
"""Policies that only change what is computed, so they do not change a phantom's time."""

SPLIT_AFTER = 30
"""The number of whole batches after which a split is settled."""


@dataclass(frozen=True)
class Variant:
    """The differences from the composed experiment: the split, the nodes that are left out, and a number added to the seed."""

    split: str | None = None
    per_sample: bool = False
    """Whether gradients are weighted by samples."""
    leave_out: LeaveOut = ()
    seed: int = 0
    slower: tuple[tuple[int, float], ...] = ()
    """Ranks, and the factors by which their gradients take longer."""
    second: float | None = None
    """The second of the run whose condition of the cluster lasts; None: the cluster changes as described."""


def _slowed_cluster(cluster: Cluster, factors: Mapping[int, float]) -> Cluster:
    """The cluster with the nodes of these ranks slowed down by these factors. The nodes have tables of times."""

    @cache  # so that equal nodes stay one object
    def slowed(key: int, factor: float) -> NodeSpec:
        node = distinct[key]
        return replace(node, table=tuple((samples, factor * seconds) for samples, seconds in node.table))

    distinct = {id(node): node for node in cluster.nodes}
    nodes = (slowed(id(node), factors[rank]) if rank in factors else node for rank, node in enumerate(cluster.nodes))
    return replace(cluster, nodes=tuple(nodes)) if factors else cluster


def variant_experiment(words: Sequence[str], method: str, variant: Variant, config_dir: str | None) -> Experiment:
    """The experiment of these arguments, with this method and this variant. Raises ValueError if they are invalid."""
    experiment = _composed_experiment((*words, f"method={method}"), config_dir)
    coordination = experiment.coordination
    if variant.split is not None:
        weighting = shipped_policy("weighting", "per_sample") if variant.per_sample else coordination.weighting
        coordination = replace(coordination, allocation=shipped_policy("allocation", variant.split), weighting=weighting)
    cluster = _slowed_cluster(experiment.cluster, dict(variant.slower))
    leave_out = set(variant.leave_out)
    if variant.second is not None:
        schedule = Schedule(cluster)
        condition, _ = schedule.at(variant.second)
        cluster, leave_out = schedule.steady(condition), leave_out | condition.absent
    cluster = without(cluster, leave_out) if leave_out else cluster
    return replace(experiment, coordination=coordination, cluster=cluster, seed=experiment.seed + variant.seed)


@lru_cache(maxsize=200)
def _composed_experiment(words: tuple[str, ...], config_dir: str | None) -> Experiment:
    return experiment_of(words, config_dir)


def simulate_variant(words: Sequence[str], method: str, variant: Variant, config_dir: str | None) -> tuple[SimulatedRun, str]:
    """Simulate a variant. Returns the outcome, and a text that is equal for variants with equal times.

    The split of a batch is that after whole batches: the last batch of an epoch may be smaller, and its times are of other shares.
    """
    experiment = variant_experiment(words, method, variant, config_dir)
    outcome = run(experiment)
    workload, settled = experiment.workload, type(experiment.coordination.allocation) in (Even, Fixed)
    if isinstance(workload, PhantomWorkload) and workload.num_samples % experiment.batch_size and not settled:
        workload = replace(workload, num_samples=SPLIT_AFTER * experiment.batch_size)
        split = run(replace(experiment, workload=workload)).numbers["batch_sizes"]
        outcome = replace(outcome, numbers={**outcome.numbers, "batch_sizes": split})
    return outcome, timing_of(experiment)


def timing_of(experiment: Experiment) -> str:
    """The properties of a method on which a phantom's time depends."""
    policies = {
        field.name: getattr(experiment.coordination, field.name) for field in fields(experiment.coordination) if field.name not in NO_TIME
    }
    return repr(
        (type(experiment.coordination).__name__, policies, experiment.local_optimizer is None, experiment.regional_optimizer is None)
    )


@lru_cache(maxsize=4)
def _bounds(words: tuple[str, ...], config_dir: str | None) -> Bounds:
    experiment = _composed_experiment((*words, f"method={BASELINE}"), config_dir)
    task, _ = experiment.load()
    return Bounds(experiment.cluster, task, experiment.batch_size)


def least_seconds(words: Sequence[str], method: str, variant: Variant, subsets: Sequence[LeaveOut], config_dir: str | None) -> list[float]:
    """For each set of nodes, the lower bound of a sample's seconds."""
    bounds = _bounds(tuple(words), config_dir)
    experiment = variant_experiment(words, method, variant, config_dir)
    return [bounds.least_seconds(experiment, leave_out) for leave_out in subsets]
