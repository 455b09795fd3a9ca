"""Clusters described by hand, and runs on them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import worlds
from worlds import NO_NETWORK, Run, experiment, node, simulate

from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Commit, Node, Program
from hetsim.runtime.experiment import Experiment

SIZES = {"num_parameters": 8, "num_samples": 60_000}  # 32 bytes
FREE: dict[str, Any] = {"seconds_per_update": 0.0}
WIRE = {"latency_seconds": 0.125, "bytes_per_second": 64.0, "sharing": "none"}


def world(*nodes: dict[str, Any], network: dict[str, Any] = NO_NETWORK, server: dict[str, Any] = FREE, **more: Any) -> dict[str, Any]:
    """A whole `cluster`, with all that a server and a network may have."""
    return {**worlds.cluster(*nodes, network=network), "server": {**FREE, **server}, **more}


def built(*nodes: dict[str, Any], **parts: Any) -> Cluster:
    """The cluster that these parts describe."""
    return parse_cluster(world(*nodes, **parts))


def times(row: dict[str, Any], *, seed: int = 0, rank: int = 0) -> StepTimes:
    """Of the one node that a row describes."""
    return StepTimes(built(row).nodes[0], seed=seed, rank=rank)


def timed(method: str, *choices: str, workers: dict[str, Any], updates: int, trace: str = "none", **keys: Any) -> Run:
    """A run of so many updates, on a workload that has sizes only."""
    described = experiment(
        f"method={method}", "workload=phantom", *choices, workload=SIZES, budget={"updates": updates}, cluster=workers, **keys
    )
    return simulate(described, trace=trace)


def certain(number: float) -> dict[str, Any]:
    """A law that always draws this number: what is added to it is too small to change it."""
    return {"distribution": "uniform", "loc": number, "scale": 1e-300}


Asking = Callable[[Node, Any], Generator[Any, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Script(Coordination):
    """What each rank asks, written in the test; the last rank serves, and the run ends with it."""

    needs_server: ClassVar[bool] = True
    asks: Asking

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from self.asks(node, state.weights)
        if node.rank == node.server:
            yield from Commit(1, replace(state, version=1))


@cache
def base(*choices: str, batch_size: int, num_samples: int = 60_000, updates: int = 1) -> Experiment:
    """An experiment whose cluster is another in each test: that is the quicker part to make."""
    return experiment(
        *("workload=phantom", *choices),
        workload={"num_parameters": 8, "num_samples": num_samples},
        budget={"updates": updates},
        cluster=world(node(1.0, count=4)),
        batch_size=batch_size,
    )


def play(asks: Asking, workers: dict[str, Any], *, seed: int = 0, trace: str = "none") -> Run:
    """Let every rank ask what is written in the test."""
    asgd = base("method=asgd", batch_size=64)
    axes = ("allocation", "weighting", "discount", "compensation", "admission", "compression")
    script = Script(asks=asks, **{axis: getattr(asgd.coordination, axis) for axis in axes})
    return simulate(replace(asgd, cluster=parse_cluster(workers), coordination=script, seed=seed), trace=trace)


def recorded(folder: Path, *points: tuple[float, float]) -> str:
    """The name of a file with this trace."""
    path = folder / "slowdown.csv"
    path.write_text("seconds,factor\n" + "".join(f"{seconds},{factor}\n" for seconds, factor in points))
    return str(path)
