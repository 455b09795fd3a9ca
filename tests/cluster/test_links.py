"""How long a message takes: latencies add up, the narrowest link decides, links are shared."""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Any

import pytest
from cluster_runs import WIRE, built, play, timed, world
from worlds import Run, node

from hetsim.effects import Node, Now, Receive, Send


def told(run: Run) -> list[tuple[float, float, int, int]]:
    """(handed over, delivered, sender, bytes) of each message."""
    return [(row.start, row.end, row.rank, row.nbytes) for row in run.rows("message")]


NARROW: dict[str, tuple[dict[str, Any], float, float]] = {
    "no link": ({}, 64.0, 64.0),
    "a worker's uplink": ({"node": {"uplink_bytes_per_second": 16.0}}, 16.0, 64.0),
    "a worker's downlink": ({"node": {"downlink_bytes_per_second": 8.0}}, 64.0, 8.0),
    "the server's uplink": ({"server": {"uplink_bytes_per_second": 4.0}}, 64.0, 4.0),
    "the server's downlink": ({"server": {"downlink_bytes_per_second": 2.0}}, 2.0, 64.0),
    "a rack's uplink": ({"rack": {"uplink_bytes_per_second": 16.0, "downlink_bytes_per_second": 1024.0}}, 16.0, 64.0),
    "a rack's downlink": ({"rack": {"downlink_bytes_per_second": 8.0}}, 64.0, 8.0),
    "a rack's only number": ({"rack": {"uplink_bytes_per_second": 32.0}}, 32.0, 32.0),
    "everyone's uplink": ({"network": {"uplink_bytes_per_second": 16.0}}, 16.0, 64.0),
    "links that are wider": (
        {"node": {"uplink_bytes_per_second": 128.0}, "server": {"downlink_bytes_per_second": 65.0, "uplink_bytes_per_second": 1e9}},
        64.0,
        64.0,
    ),
}


@pytest.mark.parametrize("narrow", NARROW)
def test_a_message_takes_the_latencies_on_its_way_and_its_bytes_at_the_narrowest_link(narrow: str):
    """Latencies of the network, the node, its rack and the server add up; a worker in a rack, a server in none, 32 bytes."""
    more, up, down = NARROW[narrow]
    workers = world(
        node(1.0, latency_seconds=0.25, rack="a", **more.get("node", {})),
        network={**WIRE, "racks": {"a": {"latency_seconds": 0.5, **more.get("rack", {})}}, **more.get("network", {})},
        server={"latency_seconds": 1.0, **more.get("server", {})},
    )
    latency = 0.125 + 0.25 + 0.5 + 1.0

    run = timed("asgd", workers=workers, updates=2, batch_size=1, trace="full")

    assert told(run)[:3] == [
        (0.0, latency, 0, 0),  # ready
        (latency, 2 * latency + 32 / down, 1, 32),  # weights
        (1.0 + 2 * latency + 32 / down, 1.0 + 3 * latency + 32 / down + 32 / up, 0, 32),  # a gradient
    ]
    cluster = run.simulation.experiment.cluster
    assert (cluster.message_seconds(0, 1, 32), cluster.message_seconds(1, 0, 32)) == (latency + 32 / up, latency + 32 / down)


def test_a_row_s_own_link_goes_before_everyone_s():
    """What the network says of all nodes' links holds for those that say nothing; the server has its own."""
    cluster = built(node(1.0, uplink_bytes_per_second=4.0), node(1.0), network={**WIRE, "uplink_bytes_per_second": 8.0})

    assert [cluster.capacity(("up", end)) for end in (0, 1, "server")] == [4.0, 8.0, inf]
    assert [cluster.capacity(("down", end)) for end in (0, 1, "server")] == [inf] * 3


def test_messages_may_be_in_each_other_s_way_where_any_link_is_described():
    """A node's, the server's or a rack's, up or down; what one message gets at most is no link."""
    plain = built(node(1.0), network=WIRE)
    of_node = built(node(1.0), node(1.0, downlink_bytes_per_second=8.0))
    of_server = built(node(1.0), server={"uplink_bytes_per_second": 8.0})
    of_rack = built(node(1.0, rack="a"), network={**WIRE, "racks": {"a": {"downlink_bytes_per_second": 8.0}}})

    assert [its.shares_links for its in (plain, of_node, of_server, of_rack)] == [False, True, True, True]


def test_two_that_push_at_once_share_the_server_s_downlink():
    """Weights in 1/2 s, gradients of 1 s, two pushes of 32 bytes at 16 bytes per second each: a round takes 3.5 s."""
    workers = world(node(1.0, count=2), network={**WIRE, "latency_seconds": 0.0}, server={"downlink_bytes_per_second": 32.0})

    run = timed("asgd", workers=workers, updates=6, batch_size=2)

    assert run.seconds == [3.5, 3.5, 7.0, 7.0, 10.5, 10.5]


def test_pushes_that_overlap_share_the_link_while_they_do():
    """From 1.5 s one has 32 bytes per second, from 2 s both have 16; the first is through at 3 s, the other, alone again, at 3.5 s.

    Then the first pushes from 4.5 s to 5.5 s, alone, when the other begins.
    """
    workers = world(node(1.0), node(1.5), network={**WIRE, "latency_seconds": 0.0}, server={"downlink_bytes_per_second": 32.0})

    run = timed("asgd", workers=workers, updates=4, batch_size=2)

    history = [(seconds, group[0].rank) for seconds, group in zip(run.seconds, run.applied, strict=True)]
    assert history == [(3.0, 0), (3.5, 1), (5.5, 0), (6.5, 1)]


def test_weights_to_several_at_once_share_the_server_s_uplink():
    """Four replies of 32 bytes at 128 bytes per second in all, of which no one message gets more than 64: 1 s, not 1/2 s."""
    workers = world(node(1.0, count=4), network={**WIRE, "latency_seconds": 0.0}, server={"uplink_bytes_per_second": 128.0})

    run = timed("asgd", workers=workers, updates=4, batch_size=4)

    assert run.seconds == [1.0 + 1.0 + 0.5] * 4


def test_messages_on_one_way_go_one_after_another_where_links_are_shared():
    """Three of 32 bytes handed over at once at 16 bytes per second arrive every 2 s, and an empty one behind them with the last."""
    arrived: list[tuple[float, int]] = []

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank == 0:
            for number, payload in enumerate((x, x, x, None)):
                yield from Send(1, payload, number=number)
        if its.rank == 1:
            for _ in range(4):
                message = yield from Receive(0)
                arrived.append(((yield from Now()), message.number))

    play(asks, world(node(1.0, uplink_bytes_per_second=16.0), node(1.0), network=WIRE))

    assert arrived == [(2.125, 0), (4.125, 1), (6.125, 2), (6.125, 3)]
