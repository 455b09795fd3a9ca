"""Ways between two racks that have a bandwidth and a latency of their own, and the setting of HALoS that is made of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cluster_runs import timed, world
from worlds import composed, experiment, node

from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.distributed.rank.run import described_message_seconds

NETWORK: dict[str, Any] = {"latency_seconds": 0.25, "bytes_per_second": 64.0, "sharing": "none"}
WAYS = [{"racks": ["a", "b"], "bytes_per_second": 16.0, "latency_seconds": 1.0}, {"racks": ["c", "a"], "bytes_per_second": 128.0}]
INNER = {"a": {}, "b": {}, "c": {}, "inner": {"within": "b"}, "other": {"within": "b", "latency_seconds": 0.5}}


def between(*ways: dict[str, Any], **server: Any) -> dict[str, Any]:
    """Nodes 0 and 1 in a, 2 in b, 3 and 4 in racks within b, 5 in c, 6 in none."""
    rows = [node(1.0, rack=rack) for rack in ("a", "a", "b", "inner", "other", "c", None)]
    return world(*rows, network={**NETWORK, "racks": INNER, "between": list(ways)}, server=server)


def test_a_way_between_two_racks_takes_the_place_of_the_networks_numbers():
    """In both directions, also from racks within them; other messages go as the network says, and racks' own latencies are added."""
    cluster = parse_cluster(between(*WAYS, {"racks": ["inner", "other"], "bytes_per_second": 32.0, "latency_seconds": 0}, rack="c"))

    def way(sender: int, receiver: int) -> tuple[float, float]:
        path = cluster.path(sender, receiver)
        return path.latency_seconds, path.bytes_per_second

    assert way(0, 1) == (0.25, 64.0)
    assert way(0, 2) == way(2, 0) == way(1, 3) == (1.0, 16.0)
    assert way(0, 4) == (1.5, 16.0)
    assert way(3, 4) == (0.5, 32.0)
    assert way(2, 5) == way(0, 6) == way(6, 2) == (0.25, 64.0)
    assert way(0, 5) == way(0, 7) == way(7, 1) == (0.25, 128.0)
    assert cluster.message_seconds(0, 2, 32) == 3.0


def test_a_way_may_have_a_latency_alone():
    """Its rate is then the network's."""
    path = parse_cluster(between({"racks": ["a", "b"], "latency_seconds": 1.0})).path(0, 2)

    assert (path.latency_seconds, path.bytes_per_second) == (1.0, 64.0)


def test_messages_and_rings_take_the_time_of_their_way():
    """32 bytes to a server in rack b: 0.75 s from there, 3 s from a; a ring is as slow as its slowest link."""
    rows = [node(1.0, rack="a"), node(1.0, rack="b")]
    network = {**NETWORK, "racks": {"a": {}, "b": {}}, "between": WAYS[:1]}
    workers = world(*rows, network=network, server={"rack": "b"})

    run = timed("asgd", workers=workers, updates=4, batch_size=2)

    # a request for work has no bytes, but a latency; then the model comes, there is a second of work, and the gradient goes
    assert list(zip(run.seconds, [group[0].rank for group in run.applied], strict=True)) == [
        *[(0.25 + 0.75 + 1 + 0.75, 1), (2.75 + 2.5, 1), (5.25 + 2.5, 1)],
        (1 + 3 + 1 + 3, 0),
    ]
    assert Collectives(parse_cluster(workers)).all_reduce_seconds(32) == 2 * (1.0 + 16 / 16.0)


def test_real_ranks_hold_a_message_as_long():
    """Of n bytes from each peer: what padding gives it is the path's time, in either direction."""
    made = experiment("method=asgd", "workload=phantom", cluster=between(*WAYS, rack="a"))

    assert described_message_seconds(made, 7)(2, 32) == described_message_seconds(made, 2)(7, 32) == 3.0


@pytest.mark.parametrize(
    ("ways", "why"),
    [
        ([{"racks": ["a", "d"], "bytes_per_second": 1.0}], "between.0 names rack 'd', which cluster.network.racks does not describe"),
        ([{"racks": ["a", "a"], "bytes_per_second": 1.0}], "between.0.racks must be two racks, such as [a, b], not ['a', 'a']"),
        ([{"racks": ["a"], "bytes_per_second": 1.0}], "between.0.racks must be two racks"),
        ([{"racks": "ab", "bytes_per_second": 1.0}], "between.0.racks must be a list of two racks, not 'ab'"),
        ([{"racks": ["a", "inner"], "bytes_per_second": 1.0}], "between.0.racks are within different racks, a and inner: give the way"),
        ([WAYS[0], {"racks": ["b", "a"], "bytes_per_second": 1.0}], "between has the way between b and a twice: leave one of them out"),
        ([{"racks": ["a", "b"], "bytes_per_second": 0}], "between.0.bytes_per_second must be"),
        ([{"racks": ["a", "b"]}], "between.0 describes nothing: give bytes_per_second, latency_seconds or link_slowdown"),
        ([{"racks": ["a", "b"], "bytes_per_second": 1.0, "latency": 1}], "between.0.latency is unknown; did you mean 'latency_seconds'?"),
        ([{"racks": ["a", "b"], "bytes_per_second": 1.0, "latency_seconds": -1}], "between.0.latency_seconds must be"),
        ({"a": 1}, "between must be a list of ways such as {racks: [a, b], bytes_per_second: 1e8}"),
    ],
)
def test_a_way_that_is_none_is_refused_in_one_sentence(ways: Any, why: str):
    """What is wrong, and where."""
    described = between()
    described["network"]["between"] = ways

    with pytest.raises(ValueError, match="^" + re.escape(f"cluster.network.{why}")) as refused:
        parse_cluster(described)

    assert "\n" not in str(refused.value)


def test_halos16_is_the_published_setting():
    """238.391 ms for a step of 64 sequences on the fastest worker, 16 speeds, 4 × 4 bandwidths; its ring is as slow as 0.127 Gbit/s."""
    cluster = parse_cluster(composed("cluster=halos16").cluster)
    gbit = {(one, other): cluster.path(4 * one, 4 * other + 1).bytes_per_second * 8e-9 for one in range(4) for other in range(4)}

    steps = [64 * each.seconds_per_sample for each in cluster.nodes]
    assert min(steps) == pytest.approx(0.238391, rel=1e-5)
    assert max(steps) / min(steps) == pytest.approx(0.907 / 0.107, rel=1e-5)
    assert sum(min(steps) / step for step in steps) == pytest.approx(8.979 / 0.907, rel=1e-4)
    assert [round(gbit[pair], 6) for pair in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))] == [0.537, 0.935, 0.202, 0.386, 0.117, 0.127]
    assert all(gbit[one, other] == gbit[other, one] and gbit[one, one] == pytest.approx(100) for one in range(4) for other in range(4))
    assert cluster.regions == (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4
    assert cluster.path(16, 0).bytes_per_second == cluster.path(16, 17).bytes_per_second == 12.5e9
    assert Collectives(cluster).all_reduce_seconds(10**6) == pytest.approx(2 * 15 / 16 * 8e6 / 0.127e9)
