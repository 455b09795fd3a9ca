"""A loader prepares samples beside the computing: a gradient takes the longer of both."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import NO_NETWORK, built, timed, times, world
from test_lockstep import reported
from worlds import cluster, experiment, node

from hetsim.cluster.compute_times import share_ready
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.resolved import resolved
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.sim.world import EventWorld

CERTAIN = {"distribution": "uniform", "loc": 3.0, "scale": 1e-300}


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        (node(1.0, 2.0, loading=0.5), 6.0),
        (node(1.0, 2.0, loading=3.0), 12.0),
        (node(1.0, 2.0, loading=3.0, micro_batch=2), 12.0),
        (node(1.0, 2.0, loading=1.75, micro_batch=2), 8.0),
        (node(1.0, 2.0, loading=3.0, noise=CERTAIN), 18.0),
        (node(1.0, 2.0, loading=5.0, noise=CERTAIN), 20.0),
        (node(1.0, 2.0, loading=3.0, cpu_quota=0.5), 12.0),
        ({"count": 1, "table": [[1, 3.0], [4, 6.0]], "loading": 2.0}, 8.0),
    ],
)
def test_a_gradient_takes_the_longer_of_loading_and_computing(row: dict[str, Any], seconds: float) -> None:
    """Of four samples. Noise, a quota and passes belong to the computing."""
    assert times(row).seconds(4) == seconds


def test_a_slow_loader_makes_each_step_wait() -> None:
    """The second of two equal nodes loads a sample in 3 s and computes it in 1 s."""
    run = timed("ssgd", workers=world(node(1.0), node(1.0, loading=3.0), network=NO_NETWORK), updates=2, batch_size=2)

    assert run.seconds == [3.0, 6.0]


def test_a_node_waits_before_it_computes() -> None:
    """Loading takes 12 s and computing 4 s: half of the gradient is ready 2 s before the end."""
    slow = built(node(1.0, loading=3.0)).nodes[0]

    assert share_ready(slow, 4, 0.5) == pytest.approx(10 / 12)
    assert share_ready(built(node(1.0, loading=0.5)).nodes[0], 4, 0.5) == 0.5
    assert share_ready(built(node(1.0, loading=3.0, cpu_quota=0.5)).nodes[0], 4, 0.5) == pytest.approx(8 / 12)


@pytest.mark.parametrize("choices", [("method=ssgd",), ("method=ddp",), ("method=dbs",), ("method=local_sgd",)])
def test_both_simulations_load_alike(choices: tuple[str, ...]) -> None:
    """Rank by rank and for all ranks at once, to the last bit."""
    workers = cluster(
        node(4e-3, 2e-3, loading=6e-3, seconds_per_update=1e-3),
        node(1e-3, 5e-3, loading=2e-4, noise={"distribution": "lognorm", "s": 0.3}),
        node(2e-3, loading=1e-2),
        network={"latency_seconds": 1e-3, "bytes_per_second": 1e6},
    )
    sizes = {"num_parameters": 1000, "num_samples": 100}
    described = experiment(*choices, "workload=phantom", workload=sizes, cluster=workers, batch_size=30, budget={"updates": 9})

    assert LockstepWorld.suits(described, described.load()[0])
    assert reported(LockstepWorld, described) == reported(EventWorld, described)


def machines(*described: dict[str, Any]) -> list[float]:
    """The loading of each node."""
    config = resolved({"cluster": {"name": "x", "machines": [*described]}})["cluster"]
    return [node.loading for node in parse_cluster(config).nodes]


def test_gpus_share_the_loader_of_their_machine() -> None:
    """Those of its `gpus` have one each."""
    gpus = {"count": 2, "seconds_per_sample": "1 ms"}
    box = {"inside": "1 GB/s", "network": "1 GB/s"}

    assert machines({"gpus": {**gpus, "loading": "3 ms"}, **box}) == [3e-3, 3e-3]
    assert machines({"gpus": [gpus, {"count": 1, "seconds_per_sample": 1}], "loading": "3 ms", **box}) == pytest.approx([9e-3] * 3)
    assert machines({"seconds_per_sample": 1, "network": 1e9, "loading": "3 ms"}) == [3e-3]


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        ({"gpus": {"count": 2, "seconds_per_sample": 1, "loading": 1}, "loading": 1, "inside": 1e9}, "that of the machine is shared"),
        ({"seconds_per_sample": 1, "loading": -1}, "loading must be a finite number"),
        ({"seconds_per_sample": 1, "loading": 1, "host": "a"}, "has a loader and a host"),
    ],
)
def test_a_loader_that_cannot_be_is_one_sentence(machine: dict[str, Any], sentence: str) -> None:
    """It names the key."""
    with pytest.raises(ValueError, match=sentence):
        machines({**machine, "network": 1e9})
