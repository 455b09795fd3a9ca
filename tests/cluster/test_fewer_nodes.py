"""A cluster from which nodes are left out is the cluster that was described without them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from cluster_runs import built, timed, world
from worlds import node

from hetsim.cluster.fewer import rescale_all_reduce_table, without
from hetsim.cluster.parse.cluster import parse_cluster

NOISE = {"distribution": "lognorm", "s": 0.2}
ROWS = [node(seconds, 1e-3, noise=NOISE) for seconds in (1e-3, 2e-3, 3e-3, 4e-3)]


@pytest.mark.parametrize("method", ["ssgd", "asgd", "local_sgd"])
@pytest.mark.parametrize("out", [[0], [3], [1, 2], []])
def test_a_run_without_nodes_is_a_run_on_the_others(method: str, out: list[int]) -> None:
    """To the last bit: ranks, streams of chance and faults are those of a cluster that never had them."""
    fewer = timed(method, workers=world(*ROWS, leave_out=out), updates=30, trace="full")
    described = timed(method, workers=world(*(row for rank, row in enumerate(ROWS) if rank not in out)), updates=30, trace="full")
    assert fewer.rows() == described.rows()


def test_draws_of_the_other_nodes_stay() -> None:
    """Leaving one out of a drawn row does not draw the others anew."""
    row = node(1.0, count=5) | {"seconds_per_sample": {"distribution": "lognorm", "s": 0.5}}
    whole, fewer = built(row), parse_cluster(world(row, leave_out=[2]))
    assert fewer.nodes == whole.nodes[:2] + whole.nodes[3:]


def test_faults_go_with_their_nodes() -> None:
    faults = {"schedule": [{"nodes": [1], "crash": 1.0}, {"nodes": [3], "crash": 2.0}]}
    fewer = parse_cluster(world(*ROWS, faults=faults, leave_out=[1]))
    assert [(rank, outage.scheduled) for rank, outage in fewer.faults.nodes.items()] == [(2, ((2.0, math.inf),))]


def test_measured_all_reduces_become_those_of_a_smaller_ring() -> None:
    """2(N−1)(latency + n/(N · rate)): from four workers to two, a third of the steps, each of twice the bytes."""
    latency, rate = 1e-4, 1e8
    ring = {num: [(size, 2 * (num - 1) * (latency + size / (num * rate))) for size in (0, 1000, 10**6)] for num in (2, 4)}
    assert [point[1] for point in rescale_all_reduce_table(ring[4], 4, 2)] == pytest.approx([point[1] for point in ring[2]])
    assert rescale_all_reduce_table(ring[4], 4, 4) == ring[4]
    assert rescale_all_reduce_table([], 4, 2) == []


def test_what_they_cost_together() -> None:
    cluster = built(node(1.0, count=3, cost_per_hour=0.5), node(1.0, cost_per_hour=2))
    assert cluster.cost_per_hour == 3.5
    assert without(cluster, [3]).cost_per_hour == 1.5


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [
        ([4], "cluster.leave_out: there is no node 4, because the cluster has 4: count from 0"),
        ([1, 1], "cluster.leave_out names a node twice: [1, 1]"),
        ([0, 1, 2, 3], "cluster.leave_out names every node, which leaves none to train: leave some of them in"),
        (3, "cluster.leave_out must be a list of nodes by their rank, such as [6, 7], not 3"),
        ([-1], "cluster.leave_out must be at least 0, not -1"),
        (["a"], "cluster.leave_out must be a whole number, not 'a'"),
    ],
)
def test_each_mistake_is_one_sentence(left_out: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        parse_cluster(world(*ROWS, leave_out=left_out))


@pytest.mark.parametrize("cost", [-1, "dear", 1e12, math.nan])
def test_a_cost_is_a_number_of_at_least_zero(cost: Any) -> None:
    with pytest.raises(ValueError, match=r"^cluster\.nodes\.0\.cost_per_hour must be"):
        built(node(1.0, cost_per_hour=cost))
