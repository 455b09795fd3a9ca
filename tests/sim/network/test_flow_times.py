"""Transfers that share links: when each of them ends, exactly."""

from __future__ import annotations

import pytest
from flow_world import World

from hetsim.sim.network.links import Link, Route


def test_two_flows_on_one_link_have_half_of_it_each():
    """16 and 32 bytes at 8 bytes per second: 4 each until 4 s, when the other has 16 left and the link to itself."""
    world = World()
    route = Route((Link(8.0),))

    world.start("short", route, 16)
    world.start("long", route, 32)

    assert world.run() == [("short", 4.0), ("long", 6.0)]


def test_a_flow_that_starts_later_shares_from_then_on():
    """Alone for 2 s, then three at a third: the rates at each moment are those of the flows that are there."""
    world = World()
    route = Route((Link(12.0),))

    world.at(0.0, world.start, "a", route, 36)
    world.at(2.0, world.start, "b", route, 16)
    world.at(2.0, world.start, "c", route, 4)

    # 24 of a's; 4 each in 1 s ends c; a's 8 left at 6 until 4⅓; b's 12 − 8 left at 12
    assert world.run() == [("c", 3.0), ("a", pytest.approx(13 / 3, rel=1e-15)), ("b", pytest.approx(14 / 3, rel=1e-15))]


def test_three_flows_over_two_links_are_the_textbook_example():
    """One crosses both, 8 and 16 bytes per second: 4, 4, 12; when the second ends the first has 8, the third the other 8."""
    world = World()
    narrow, wide = Link(8.0), Link(16.0)

    world.start("both", Route((narrow, wide)), 16)
    world.start("narrow", Route((narrow,)), 8)
    world.start("wide", Route((wide,)), 48)

    assert world.rates() == {"both": 4.0, "narrow": 4.0, "wide": 12.0}
    assert world.run() == [("narrow", 2.0), ("both", 3.0), ("wide", 4.0)]


def test_what_a_limited_flow_leaves_goes_to_the_others():
    """16 bytes per second, of which one can use 2: the other two have 7 each, not 16/3."""
    world = World()
    link = Link(16.0)

    world.start("slow", Route((link,), limit=2.0), 8)
    for name in ("a", "b"):
        world.start(name, Route((link,)), 14)

    assert world.rates() == {"slow": 2.0, "a": 7.0, "b": 7.0}
    assert world.run() == [("a", 2.0), ("b", 2.0), ("slow", 4.0)]


def test_workers_of_unequal_uplinks_share_the_server_s_link():
    """Uplinks of 1, 2, 8 and 8 bytes per second into 13: 1, 2 and twice 5; when one of those is gone, the other has its 8."""
    world = World()
    server = Link(13.0)

    for name, uplink, nbytes in (("a", 1.0, 3), ("b", 2.0, 6), ("c", 8.0, 10), ("d", 8.0, 18)):
        world.start(name, Route((server,), (Link(uplink),)), nbytes)

    assert world.rates() == {"a": 1.0, "b": 2.0, "c": 5.0, "d": 5.0}
    assert world.run() == [("c", 2.0), ("a", 3.0), ("b", 3.0), ("d", 3.0)]


def test_two_flows_share_an_uplink_that_carries_one_as_a_rule():
    """Alone it takes 4 bytes per second; from 1 s on there are two at 2; the second is alone again for its last 2 bytes."""
    world = World()
    uplink = Link(4.0)

    world.at(0.0, world.start, "first", Route(own=(uplink,)), 8)
    world.at(1.0, world.start, "second", Route((Link(16.0),), own=(uplink,)), 6)

    assert world.run() == [("first", 3.0), ("second", 3.5)]


def test_an_own_link_of_one_route_may_be_a_shared_link_of_another():
    """8 bytes per second: alone for 1 s, then half each. Where a link stands in a route is a matter of speed alone."""
    world = World()
    link = Link(8.0)

    world.at(0.0, world.start, "own", Route(own=(link,)), 16)
    world.at(1.0, world.start, "shared", Route((link,)), 16)

    assert world.run() == [("own", 3.0), ("shared", 4.0)]


def test_a_cancelled_flow_leaves_its_share_and_is_never_called():
    """Two at 4 bytes per second for 1 s, then one at 8. What is cancelled twice, or has ended, is no matter."""
    world = World()
    route = Route((Link(8.0),))

    world.start("lost", route, 16)
    world.start("kept", route, 12)
    world.at(1.0, world.cancel, "lost")
    world.at(1.0, world.cancel, "lost")
    world.at(3.0, world.cancel, "kept")

    assert world.run() == [("kept", 2.0)]


def test_a_cancelled_flow_leaves_its_own_link():
    """The next flow has the uplink to itself, at its whole 8 bytes per second, and so has the server's link of the flow beside it."""
    world = World()
    uplink, server = Link(8.0), Link(16.0)

    world.start("lost", Route((server,), (uplink,)), 64)
    world.at(1.0, world.cancel, "lost")
    world.at(1.0, world.start, "next", Route((server,), (uplink,)), 16)
    world.at(1.0, world.start, "beside", Route((server,), (Link(16.0),)), 16)

    assert world.run() == [("next", 3.0), ("beside", 3.0)]


def test_a_flow_cancelled_in_the_moment_of_its_start_was_never_there():
    """16 bytes per second, 32 of 60 for one alone; then there are four, two, and again that one, as if nothing had been before."""
    world = World()
    link = Link(16.0)
    beside, lost = Route((link,)), Route((link, Link(32.0)))

    world.start("beside", beside, 60)
    world.at(1.0, world.start, "lost", lost, 8)
    world.at(1.0, world.cancel, "lost")
    for name, nbytes in (("a", 4), ("b", 4), ("c", 12)):
        world.at(2.0, world.start, name, lost, nbytes)

    assert world.run() == [("a", 3.0), ("b", 3.0), ("c", 4.0), ("beside", 5.0)]


def test_a_flow_cancelled_in_the_moment_of_its_end_is_not_called():
    """Both end at 2 s, and the first to be called cancels the second."""
    world = World()
    route = Route((Link(8.0),))
    called = []

    def cancels(name: str) -> None:
        called.append(name)
        world.cancel("second")

    world.flows.start(route, 8, cancels, "first")
    world.start("second", route, 8)

    assert (world.run(), called) == ([], ["first"])


def test_a_flow_that_ends_is_over_before_anything_else_happens_in_its_moment():
    """Also before what was planned for that moment earlier: who starts then does not share with it."""
    world = World()
    route = Route((Link(8.0),))
    seen = []

    world.at(4.0, lambda: seen.append(dict(world.ended)))
    world.start("ends", route, 32)

    assert world.run() == [("ends", 4.0)]
    assert seen == [{"ends": 4.0}]


def test_a_flow_is_not_forgotten_behind_a_cancelled_one():
    """On no link one ends at 1 s, one that would have ended at 5 s is cancelled, and the last starts when nobody else is there."""
    world = World()
    route = Route(limit=1.0)

    world.start("first", route, 1)
    world.start("lost", route, 5)
    world.cancel("lost")
    world.at(2.0, world.start, "last", route, 4)

    assert world.run() == [("first", 1.0), ("last", 6.0)]


def test_flows_that_end_together_are_called_in_the_order_of_their_starts():
    """Ten flows, on one link, on others, on none: all end at 4 s, whichever way they got there."""
    world = World()
    both, uplink = Link(8.0), Link(1.0)
    routes = [Route((both,)), Route(limit=1.0), Route(own=(uplink,)), Route((both,)), Route((Link(8.0),), limit=1.0)]
    sizes = [16, 4, 4, 16, 4]

    for name in (4, 2, 0, 3, 1):
        world.start(name, routes[name], sizes[name])
    for name in (8, 5, 9):
        world.at(2.0, world.start, name, Route(limit=0.5), 1)

    assert world.run() == [(name, 4.0) for name in (4, 2, 0, 3, 1, 8, 5, 9)]


def test_a_thousand_flows_end_when_the_running_total_says():
    """1024 equal shares of 1024 bytes per second, of 1, 2, …, 1024 bytes: the k-th ends k − 1 earlier ones sooner, Σ shares/1024."""
    world = World()
    route = Route((Link(1024.0),))

    for nbytes in range(1, 1025):
        world.start(nbytes, route, nbytes)

    assert world.run() == [(k, sum(1024 - i for i in range(k)) / 1024) for k in range(1, 1025)]


@pytest.mark.parametrize("seconds", [0.1, 1 / 3, 1e-9, 12345.678])
def test_a_flow_on_no_link_takes_its_bytes_at_its_limit_to_the_last_bit(seconds: float):
    """The same additions and divisions as the closed form, however many others are under way."""
    world = World()

    for k in range(1, 20):
        world.at(k * seconds, world.start, k, Route(limit=0.7 * k), 1e6 + k)

    assert dict(world.run()) == {k: k * seconds + (1e6 + k) / (0.7 * k) for k in range(1, 20)}


def test_a_flow_without_bytes_ends_in_its_moment_and_takes_nobody_s_share():
    """Also where a link is busy, and one that knows no limit; but never within the call that starts it."""
    world = World()
    uplink = Link(8.0)
    route = Route((Link(8.0),), (uplink,))

    world.start("busy", route, 16)
    world.at(1.0, world.start, "nothing", route, 0)
    world.at(1.0, world.start, "unlimited", Route(), 1e9)
    world.start("at once", route, 0)

    assert world.ended == {}
    assert world.rates()["busy"] == 8.0
    assert world.run() == [("at once", 0.0), ("nothing", 1.0), ("unlimited", 1.0), ("busy", 2.0)]


def test_a_flow_may_start_where_another_ends():
    """Each starts the next: ten of 8 bytes, one after the other, beside one that has half of the link all the time."""
    world = World()
    route = Route((Link(8.0),))

    def next_one(k: int) -> None:
        world.end(k)
        if k < 10:
            world.flows.start(route, 8, next_one, k + 1)

    world.flows.start(route, 8, next_one, 1)
    world.start("beside", route, 84)

    assert world.run() == [*((k, 2.0 * k) for k in range(1, 11)), ("beside", 20.5)]
