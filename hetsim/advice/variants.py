"""Variants of a composed experiment in split, nodes and seed, because composing takes longer than simulating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from hetsim.advice.bounds import Bounds
from hetsim.advice.candidates import LeaveOut
from hetsim.advice.question import BASELINE
from hetsim.advice.simulated import SimulatedRun, experiment, run
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster, NodeSpec
from hetsim.runtime.experiment import Experiment

NO_TIME = ("weighting", "discount", "compensation")
"""Policies that only change what is computed, so they do not change a phantom's time."""


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


def _slowed(cluster: Cluster, factors: Mapping[int, float]) -> Cluster:
    """The cluster with the nodes of these ranks slowed down by these factors. The nodes have tables of times."""

    def slowed(node: NodeSpec, factor: float) -> NodeSpec:
        return replace(node, table=tuple((samples, factor * seconds) for samples, seconds in node.table))

    return (
        replace(cluster, nodes=tuple(slowed(node, factors.get(rank, 1.0)) for rank, node in enumerate(cluster.nodes)))
        if factors
        else cluster
    )


def varied(words: Sequence[str], method: str, its: Variant, config_dir: str | None) -> Experiment:
    """The experiment of these arguments, with this method and this variant. Raises ValueError if they are invalid."""
    made = _composed((*words, f"method={method}"), config_dir)
    coordination = made.coordination
    if its.split is not None:
        of_split = _composed((*words, f"method={BASELINE}", f"allocation={its.split}", "weighting=per_sample"), config_dir).coordination
        coordination = replace(coordination, allocation=of_split.allocation)
        if its.per_sample:
            coordination = replace(coordination, weighting=of_split.weighting)
    cluster = _slowed(made.cluster, dict(its.slower))
    cluster = without(cluster, its.leave_out) if its.leave_out else cluster
    return replace(made, coordination=coordination, cluster=cluster, seed=made.seed + its.seed)


@lru_cache(maxsize=200)
def _composed(words: tuple[str, ...], config_dir: str | None) -> Experiment:
    return experiment(words, config_dir)


def timed(words: Sequence[str], method: str, its: Variant, config_dir: str | None) -> tuple[SimulatedRun, str]:
    """Simulate a variant. Returns the outcome, and a text that is equal for variants with equal times."""
    made = varied(words, method, its, config_dir)
    return run(made), timing_of(made)


def timing_of(made: Experiment) -> str:
    """The properties of a method on which a phantom's time depends."""
    policies = {each.name: getattr(made.coordination, each.name) for each in fields(made.coordination) if each.name not in NO_TIME}
    return repr((type(made.coordination).__name__, policies, made.local_optimizer is None, made.regional_optimizer is None))


@lru_cache(maxsize=4)
def _bounds(words: tuple[str, ...], config_dir: str | None) -> Bounds:
    made = _composed((*words, f"method={BASELINE}"), config_dir)
    task, _ = made.load()
    return Bounds(made.cluster, task, made.batch_size)


def least_seconds(words: Sequence[str], method: str, its: Variant, subsets: Sequence[LeaveOut], config_dir: str | None) -> list[float]:
    """For each set of nodes, the lower bound of a sample's seconds."""
    bounds = _bounds(tuple(words), config_dir)
    made = varied(words, method, its, config_dir)
    return [bounds.least_seconds(made, leave_out) for leave_out in subsets]
