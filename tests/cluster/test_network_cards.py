"""Machines have network cards: what each sends, and what each receives, at the same time shares `network.bytes_per_second`."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import WIRE, built, timed, world
from worlds import node

from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.collectives import Collectives

CARDS = {**WIRE, "latency_seconds": 0.0, "sharing": "max_min"}
BOTH = {"uplink_bytes_per_second": 64.0, "downlink_bytes_per_second": 64.0}
SPEEDS = (1.0, 1.0, 0.5, 0.25)


def ways(cluster: Cluster, sender: int, receiver: int) -> dict[str, float]:
    """The links between two ranks, and what they carry."""
    return {" ".join(map(str, link)): cluster.capacity(link) for link in cluster.path(sender, receiver).links}


@pytest.mark.parametrize(
    "method",
    ["asgd", "ssgd", "fedbuff", "backup", "od_sgd", "decoupled_diloco", "halos"],
)
def test_a_card_is_a_link_that_is_described_of_each_node_and_the_server(method: str):
    """The same commits, to the last bit; `sharing: none` alone lets each message go as if it were the only one."""
    rows = [node(seconds, seconds_per_update=0.5) for seconds in SPEEDS]
    choices = ["coordination=parameter_server"] if method == "ssgd" else []
    choices += ["coordination.num_regions=2"] if method == "halos" else []

    def moments(network: dict[str, Any], server: dict[str, Any]) -> list[float]:
        workers = world(*rows, network=network, server={"seconds_per_update": 0.25, **server})
        return timed(method, *choices, workers=workers, updates=12, batch_size=16).seconds

    described = moments({**CARDS, **BOTH, "sharing": "none"}, BOTH)

    assert moments(CARDS, {}) == described
    assert moments({**CARDS, "sharing": "none"}, {}) != described


def test_what_the_server_sends_and_receives_shares_its_card():
    """Weights to two at 32 bytes per second each, gradients of 1 s, two pushes at 32 bytes per second each: a round takes 3 s."""
    run = timed("asgd", workers=world(node(1.0, count=2), network=CARDS), updates=4, batch_size=2)

    assert run.seconds == [3.0, 3.0, 6.0, 6.0]


def test_a_described_link_goes_before_the_card():
    """Of a row, of everyone, of the server: each way by itself."""
    cluster = built(
        node(1.0, uplink_bytes_per_second=4.0),
        node(1.0),
        network={**CARDS, "downlink_bytes_per_second": 1024.0},
        server={"uplink_bytes_per_second": 128.0},
    )

    assert ways(cluster, 0, 1) == {"up 0": 4.0, "down 1": 1024.0}
    assert ways(cluster, 1, 2) == {"up 1": 64.0, "down server": 64.0}
    assert ways(cluster, 2, 1) == {"up server": 128.0, "down 1": 1024.0}


def test_switches_have_no_card():
    """A rack carries what is described of it, or any number of messages; an oversubscribed one a part of its nodes' cards."""
    racks = {"a": {}, "b": {"oversubscription": 4}}
    cluster = built(node(1.0, rack="a"), node(1.0, count=2, rack="b"), network={**CARDS, "racks": racks})

    assert ways(cluster, 0, 1) == {"up 0": 64.0, "down rack b": 32.0, "down 1": 64.0}


def test_each_shard_and_each_local_server_is_a_machine_with_a_card():
    """k shards have k cards; a local server has as many of its own."""
    cluster = built(node(1.0, count=2), network=CARDS, server={"shards": 3})

    assert ways(cluster, 0, 2) == {"up 0": 64.0, "down server": 192.0}
    assert ways(cluster, 2, 3) == {"up server": 192.0, "down server of region 0": 192.0}


def test_processes_of_one_host_share_its_card_and_need_none_among_themselves():
    """So with hosts a ring of two hosts with two processes each crosses a card at each boundary."""
    hosts = {"lab": {"cores": 2}, "attic": {"cores": 2}}
    rows = [node(1.0, count=2, host="lab"), node(1.0, count=2, host="attic"), node(1.0)]
    cluster = built(*rows, network=CARDS, hosts=hosts, server={"host": "lab"})

    assert ways(cluster, 0, 1) == ways(cluster, 0, 5) == {}
    assert ways(cluster, 0, 2) == {"up host lab": 64.0, "down host attic": 64.0}
    assert ways(cluster, 4, 5) == {"up 4": 64.0, "down host lab": 64.0}


def test_an_all_reduce_on_cards_of_their_own_takes_no_longer():
    """In each step a rank sends one message and receives one; where two processes of a host send at once, each has half a card."""
    rows = [node(1.0, count=4)]
    for algorithm in ("ring", "halving_doubling"):
        network = {**CARDS, "all_reduce": algorithm}
        alone, shared = built(*rows, network={**network, "sharing": "none"}), built(*rows, network=network)
        assert Collectives(shared).all_reduce_seconds(64) == Collectives(alone).all_reduce_seconds(64)

    turned = [node(1.0, host=host) for host in ("lab", "attic", "lab", "attic")]
    cluster = built(*turned, network=CARDS, hosts={"lab": {"cores": 2}, "attic": {"cores": 2}})
    assert Collectives(cluster).all_reduce_seconds(64) == 6 * 16 / 32


def test_a_cluster_without_some_nodes_keeps_the_cards_of_the_others():
    """And what they share them by."""
    cluster = without(built(node(1.0), node(1.0, uplink_bytes_per_second=4.0), network=CARDS), [0])

    assert ways(cluster, 0, 1) == {"up 0": 4.0, "down server": 64.0}
