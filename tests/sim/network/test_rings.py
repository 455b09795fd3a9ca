"""A ring of transfers against its closed form."""

from __future__ import annotations

import pytest
from rings import ring_seconds

from hetsim.sim.network.links import Link, Route


@pytest.mark.parametrize("num_nodes", [1, 2, 8, 64])
@pytest.mark.parametrize("latency", [0.0, 0.125])
def test_a_ring_of_equal_links_takes_the_closed_form(num_nodes: int, latency: float):
    """2(N−1)(latency + nbytes/(N·bytes_per_second)), to the last bit; uplink and downlink are own links, or shared ones."""
    nbytes, bytes_per_second = 2.0**20, 2.0**17
    closed_form = 2 * (num_nodes - 1) * (latency + nbytes / (num_nodes * bytes_per_second))

    links = [(Link(bytes_per_second), Link(2 * bytes_per_second)) for _ in range(num_nodes)]

    assert ring_seconds([Route(own=pair) for pair in links], [latency] * num_nodes, nbytes) == closed_form
    assert ring_seconds([Route(shared=pair) for pair in links], [latency] * num_nodes, nbytes) == closed_form


def test_a_ring_without_latency_goes_at_the_pace_of_its_slowest_link():
    """2(N−1)·(nbytes/N)/slowest: the slow link is busy from the first moment to the last."""
    routes = [Route(own=(Link(2.0**17),)) for _ in range(8)]
    routes[5] = Route(own=(Link(2.0**14),))

    assert ring_seconds(routes, [0.0] * 8, 2.0**20) == 14 * 2.0**17 / 2.0**14


def test_a_ring_waits_for_its_longest_latency_only_where_nothing_hides_it():
    """Three nodes, 4 steps, chunks of 1 s; one latency of 2 s. It is waited for where the ring comes round to it again: 1 s + 2 s
    for the first chunk over that edge, then the chunk goes on: a chain of 4 transfers crosses it twice."""
    routes = [Route(own=(Link(4.0),)) for _ in range(3)]

    assert ring_seconds(routes, [2.0, 0.0, 0.0], 12.0) == 4 * 1.0 + 2 * 2.0


def test_a_ring_through_one_switch_shares_it():
    """All N transfers at a time through one link: N times as long as each alone."""
    switch = Link(8.0)

    assert ring_seconds([Route((switch,))] * 4, [0.0] * 4, 32.0) == 2 * 3 * 8.0 / (8.0 / 4)
