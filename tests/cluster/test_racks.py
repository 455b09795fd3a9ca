"""Racks, racks within racks, and what leaves them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from cluster_runs import WIRE, built, play, timed, world
from worlds import node

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.effects import Node, Now, Receive, Send


def test_who_is_in_the_server_s_rack_does_not_pass_its_uplink():
    """Two workers in its rack push in 1/2 s; two in another share that one's 32 bytes per second up, and down each has 64."""
    racks = {"a": {"uplink_bytes_per_second": 128.0}, "b": {"uplink_bytes_per_second": 32.0, "downlink_bytes_per_second": 128.0}}
    workers = world(
        node(1.0, count=2, rack="a"),
        node(1.0, count=2, rack="b"),
        network={**WIRE, "latency_seconds": 0.0, "racks": racks},
        server={"rack": "a"},
    )

    run = timed("asgd", workers=workers, updates=4, batch_size=4)

    assert list(zip(run.seconds, [group[0].rank for group in run.applied], strict=True)) == [(2.0, 0), (2.0, 1), (3.5, 2), (3.5, 3)]


NESTED: dict[str, Any] = {
    "row": {"latency_seconds": 0.5, "uplink_bytes_per_second": 32.0},
    "a": {"within": "row", "latency_seconds": 0.25, "uplink_bytes_per_second": 16.0},
    "b": {"within": "row", "latency_seconds": 0.125},
}


def nested(**server: Any) -> dict[str, Any]:
    """Nodes 0 and 1 in rack a and 2 in b, both in a row in which 3 stands; 4 in none."""
    rows = [node(1.0, rack=rack, uplink_bytes_per_second=64.0) for rack in ("a", "a", "b", "row", None)]
    return world(*rows, network={"latency_seconds": 0.0, "bytes_per_second": 64.0, "sharing": "none", "racks": NESTED}, server=server)


def test_a_message_leaves_only_the_racks_that_its_receiver_is_not_in():
    """Nearest first on the way out, farthest first on the way in; what no number is given for carries everything."""
    cluster = parse_cluster(nested(rack="b"))

    def way(sender: int, receiver: int) -> tuple[float, list[str]]:
        path = cluster.path(sender, receiver)
        return path.latency_seconds, [" ".join(map(str, link)) for link in path.links]

    assert way(0, 1) == (0.0, ["up 0"])
    assert way(0, 2) == (0.375, ["up 0", "up rack a"])
    assert way(2, 0) == (0.375, ["up 2", "down rack a"])
    assert way(0, 3) == (0.25, ["up 0", "up rack a"])
    assert way(3, 0) == (0.25, ["up 3", "down rack a"])
    assert way(0, 4) == (0.75, ["up 0", "up rack a", "up rack row"])
    assert way(4, 0) == (0.75, ["up 4", "down rack row", "down rack a"])
    assert way(2, 5) == (0.0, ["up 2"])
    assert way(5, 4) == (0.625, ["up rack row"])


def test_nodes_of_two_racks_share_the_link_of_the_one_around_them():
    """From a at 16, from b at what is left of the row's 32 bytes per second, 8 each of two, when three push 32 bytes at once."""
    arrived: dict[int, float] = {}

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank in (0, 2, 3):
            yield from Send(its.server, x)
        if its.rank == its.server:
            for _ in range(3):
                message = yield from Receive()
                arrived[message.source] = yield from Now()

    play(asks, nested())

    third = 32 / (32 / 3)
    assert arrived == {0: 0.75 + third, 2: 0.625 + third, 3: 0.5 + third}


def test_an_oversubscribed_rack_carries_a_part_of_its_nodes_links():
    """The sum of its nodes' links, and of those in racks in it, over k, each way; not of the server's."""
    racks = {"a": {"oversubscription": 4, "within": "row"}, "row": {"oversubscription": 8}, "c": {"oversubscription": 0.5}}
    rows = [
        node(1.0, rack="a", uplink_bytes_per_second=8.0),
        node(1.0, rack="a", uplink_bytes_per_second=24.0, downlink_bytes_per_second=48.0),
        node(1.0, rack="row"),
        node(1.0, rack="c", count=3),
    ]
    both = {"uplink_bytes_per_second": 32.0, "downlink_bytes_per_second": 16.0}
    cluster = built(*rows, network={**WIRE, **both, "racks": racks}, server={"rack": "a", "uplink_bytes_per_second": 1e6})

    carried = {name: (rack.uplink_bytes_per_second, rack.downlink_bytes_per_second) for name, rack in cluster.network.racks.items()}
    assert carried == {"a": (8.0, 16.0), "row": (8.0, 10.0), "c": (192.0, 96.0)}
