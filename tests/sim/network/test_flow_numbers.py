"""Transfers that share links: floats, memory and what is refused."""

from __future__ import annotations

import gc
import math

import pytest
from flow_world import World

from hetsim.sim.network.links import Flow, Link, Route


def test_a_tiny_flow_behind_a_huge_total_keeps_its_own_time():
    """16 bytes beside 1023 flows that have had 2⁶⁰ in a second take 16·1024/2⁶⁰ s; added to that total they would be rounded away."""
    world = World()
    route = Route((Link(2.0**60),))

    world.start("huge", route, 2.0**70)
    for k in range(1022):
        world.at(1.0, world.start, k, route, 2.0**70)
    world.at(1.0, world.start, "tiny", route, 16)

    assert next(iter(world.run())) == ("tiny", 1 + 2.0**-46)


def test_alarms_do_not_pile_up_beside_a_long_flow():
    """A thousand short flows with pauses, each earlier than the end that was expected: what waits for the long end waits once."""
    world = World()
    route = Route((Link(8.0),))
    waiting = []

    def next_one(k: int) -> None:
        waiting.append(world.env.num_waiting)
        world.flows.start(route, 1, pause, k)

    def pause(k: int) -> None:
        if k < 1000:
            world.env.timeout(0.125).callbacks.append(lambda _: next_one(k + 1))

    world.start("long", route, 2**20)
    next_one(1)

    assert world.run() == [("long", (2**20 + 1000) / 8)]
    assert len(waiting) == 1000
    assert max(waiting) <= 2


def test_an_uplink_that_cannot_bind_makes_no_group_of_its_own():
    """A hundred different uplinks into 8 bytes per second: those of 1 to 7 are seven groups, the others, and the flows without, one."""
    world = World()
    server, rack = Link(8.0), Link(16.0)

    for uplink in range(1, 101):
        world.start(uplink, Route((server, rack), (Link(float(uplink)),)), 8)
    world.start("none", Route((server, rack)), 8)

    assert len(server.groups) == 7 + 1


def test_equal_flows_end_together_whatever_the_numbers():
    """Seven of 1e6/3 bytes on 0.3e6 bytes per second, while others come and go at odd moments: one end, to the last bit, not seven."""
    world = World()
    route = Route((Link(0.3e6),))

    for k in range(40):
        world.at(0.1 * k, world.start, ("odd", k), route, 1e4 / 7 * k)
    for k in range(7):
        world.at(0.7, world.start, ("equal", k), route, 1e6 / 3)
    world.run()

    assert len({seconds for (name, _), seconds in world.ended.items() if name == "equal"}) == 1
    assert len(world.ended) == 47


def test_an_idle_link_forgets_what_it_carried():
    """1024 flows of 2¹⁵ + 2⁻¹⁶ bytes take 1024 times that over 2⁴⁰ s, also where one of 2³⁸ bytes had gone before: not 2⁻¹⁶ less."""
    world = World()
    route = Route((Link(2.0**40),))

    world.start("before", route, 2.0**38)
    for k in range(1024):
        world.at(1.0, world.start, k, route, 2.0**15 + 2.0**-16)

    assert world.run() == [("before", 0.25), *((k, 1 + 2.0**-15 + 2.0**-46) for k in range(1024))]


@pytest.mark.usefixtures("older_objects_are_frozen")
def test_what_was_cancelled_does_not_stay_in_memory():
    """Thousands of flows come and are cancelled beside one that stays: how many are kept is bounded by who is there."""
    world = World()
    shared, free = Route((Link(8.0),)), Route(limit=8.0)

    for route in (shared, free):
        world.start(route, route, 8)
        for _ in range(2_000):
            world.flows.cancel(world.flows.start(route, 8, world.end, "cancelled"))

    gc.collect()
    assert 0 < sum(type(one) is Flow for one in gc.get_objects()) < 200  # isinstance would ask strangers for their class
    assert world.run() == [(shared, 1.0), (free, 1.0)]


def test_ends_that_come_ever_nearer_are_expected_once():
    """At 2 s all but one of 1024 flows are lost, one by one, and each time the others are faster: that sets no alarm."""
    world = World()
    route = Route((Link(8.0),))

    for k in range(1024):
        world.start(k, route, 8)
    for k in range(1023):
        world.at(2.0, world.cancel, k)
    expected = []
    world.at(2.0, lambda: expected.append(world.env.num_waiting))

    assert world.run() == [(1023, 2 + (8 - 2 / 128) / 8)]
    assert expected == [2]  # the alarm that was there, and the word that rates are to be filled


@pytest.mark.parametrize("bytes_per_second", [0.0, -1.0, math.inf, math.nan])
def test_a_link_carries_a_finite_number_above_zero(bytes_per_second: float):
    """And the error names it."""
    with pytest.raises(ValueError, match=r"above 0, not .*rack 3"):
        Link(bytes_per_second, "rack 3")


def test_a_route_that_crosses_a_link_twice_or_lets_nothing_through_is_refused():
    """It would count the link's share once and take it twice; a limit of zero would never end."""
    link = Link(8.0, "up")

    with pytest.raises(ValueError, match="crosses each of its links once"):
        Route((link,), (link,))
    with pytest.raises(ValueError, match="limit must be above 0"):
        Route(limit=0.0)
