"""Transfers that share links: max-min fair at every moment, and exact where numbers are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hetsim.sim.clock import Clock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Flow, Link, Route
from hetsim.sim.network.ring import ring_seconds


class World:
    """A clock, its flows, and when each of them ended, by name, in the order of the ends."""

    def __init__(self) -> None:
        self.env = Clock()
        self.flows = Flows(self.env)
        self.under_way: dict[Any, Flow] = {}
        self.ended: dict[Any, float] = {}

    def at(self, seconds: float, action: Callable[..., Any], *arguments: Any) -> None:
        """Do something at this moment, in the order of asking."""
        self.env.timeout(seconds).callbacks.append(lambda _: action(*arguments))

    def start(self, name: Any, route: Route, nbytes: float) -> None:
        self.under_way[name] = self.flows.start(route, nbytes, self.end, name)

    def end(self, name: Any) -> None:
        self.ended[name] = self.env.now

    def cancel(self, name: Any) -> None:
        self.flows.cancel(self.under_way[name])

    def rates(self) -> dict[Any, float]:
        return {flow.answer: rate for flow, rate in self.flows.rates().items()}

    def run(self) -> list[tuple[Any, float]]:
        self.env.play()
        return list(self.ended.items())


# Exact times


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


# Numbers


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
        waiting.append(len(world.env._queue))
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


def test_what_was_cancelled_does_not_stay_in_memory():
    """Ten thousand flows come and are cancelled beside one that stays: what stands in heaps is bounded by who is there."""
    world = World()
    shared, free = Route((Link(8.0),)), Route(limit=8.0)

    for route in (shared, free):
        world.start(route, route, 8)
        for _ in range(10_000):
            world.flows.cancel(world.flows.start(route, 8, world.end, "cancelled"))

    assert max(len(group.heap) for group in world.flows._groups.values()) < 100
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
    world.at(2.0, lambda: expected.append(len(world.env._queue)))

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


# Rings


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


# Against the definition


class Row(NamedTuple):
    """A flow: over which of the routes, with how many bytes, from when on, until when at most."""

    route: int
    nbytes: float
    start: float
    cancel: float


class Path(NamedTuple):
    """A route's links, by number: those named as shared, those as own; and its limit."""

    shared: tuple[int, ...]
    own: tuple[int, ...]
    limit: float

    @property
    def links(self) -> tuple[int, ...]:
        return self.shared + self.own


class Network(NamedTuple):
    """Links' capacities, routes over them, and what is sent."""

    capacities: list[float]
    paths: list[Path]
    rows: list[Row]


class Moment(NamedTuple):
    """What each row under way is given from here on."""

    now: float
    rates: dict[int, float]


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    """Small whole numbers, so that moments coincide, and any others."""
    return st.integers(math.ceil(least), 8).map(float) | st.floats(least, most)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Up to four links and four routes; some flows are cancelled; some start together."""
    capacities = draw(st.lists(numbers(0.5, 100.0), min_size=1, max_size=4))
    paths = []
    for _ in range(draw(st.integers(1, 4))):
        links = draw(st.lists(st.sampled_from(range(len(capacities))), unique=True, max_size=3))
        num_shared = draw(st.integers(0, len(links)))
        limit = draw(numbers(0.5, 20.0) if not links else st.just(math.inf) | numbers(0.5, 20.0))
        paths.append(Path(tuple(links[:num_shared]), tuple(links[num_shared:]), limit))
    route = st.sampled_from(range(len(paths)))
    cancel = st.just(math.inf) | st.just(math.inf) | numbers(0.1, 10.0)
    rows = draw(st.lists(st.builds(Row, route, numbers(0.0, 50.0), numbers(0.0, 10.0), cancel), min_size=1, max_size=9))
    return Network(capacities, paths, rows)


def fill(capacities: list[float], paths: dict[int, Path]) -> dict[int, float]:
    """Textbook progressive filling: all rates rise by the same step, and whoever meets a full link or its limit stops."""
    rates = dict.fromkeys(paths, 0.0)
    rising = set(paths)
    while rising:
        free = {link: capacity - sum(rates[f] for f in paths if link in paths[f].links) for link, capacity in enumerate(capacities)}
        room = {link: free[link] / sum(link in paths[f].links for f in rising) for f in rising for link in paths[f].links}
        step = min([*room.values(), *(paths[f].limit - rates[f] for f in rising)])
        for f in rising:
            rates[f] += step
        full = {link for link in room if room[link] <= step * (1 + 1e-12) + 1e-12}
        rising -= {f for f in rising if full & {*paths[f].links} or rates[f] >= paths[f].limit * (1 - 1e-12)}
    return rates


def reference(network: Network) -> dict[int, float]:
    """When each row ends, if it does: from moment to moment, every byte of every flow counted."""
    now, left, ended = 0.0, {}, {}
    waiting = dict(enumerate(network.rows))
    while waiting or left:
        for i in [i for i, row in waiting.items() if row.start <= now]:
            left[i] = waiting.pop(i).nbytes
        for i in [i for i, nbytes in left.items() if nbytes <= 1e-12 * network.rows[i].nbytes]:
            del left[i]
            ended[i] = now
        for i in [i for i in left if network.rows[i].cancel + network.rows[i].start <= now]:
            del left[i]
        rates = fill(network.capacities, {i: network.paths[network.rows[i].route] for i in left})
        moments = [row.start for row in waiting.values()] + [now + left[i] / rates[i] for i in left]
        moments += [network.rows[i].start + network.rows[i].cancel for i in left]
        then = min(moments, default=now)
        left = {i: 0.0 if now + nbytes / rates[i] <= then else nbytes - rates[i] * (then - now) for i, nbytes in left.items()}
        now = then
    return ended


def simulated(network: Network, order: Iterable[int] | None = None) -> tuple[dict[int, float], list[Moment]]:
    """When each row ended, and the rates from moment to moment."""
    world = World()
    links = [Link(capacity, str(i)) for i, capacity in enumerate(network.capacities)]
    routes = [Route(tuple(links[i] for i in path.shared), tuple(links[i] for i in path.own), path.limit) for path in network.paths]
    for i in range(len(network.rows)) if order is None else order:
        row = network.rows[i]
        world.at(row.start, world.start, i, routes[row.route], row.nbytes)
        if row.cancel < math.inf:
            world.at(row.start + row.cancel, world.cancel, i)
    moments = []
    num_events = 0
    while world.env.peek() < math.inf:
        world.env.step()
        num_events += 1
        if world.env.peek() > world.env.now:
            moments.append(Moment(world.env.now, world.rates()))

    assert num_events <= 12 * len(network.rows)  # nothing rings for ever
    assert [link.alone or link.groups for link in links] == [{}] * len(links)  # everyone left
    return world.ended, moments


def used(network: Network, rates: dict[int, float]) -> list[float]:
    """What flows over each link."""
    return [
        math.fsum(rate for i, rate in rates.items() if link in network.paths[network.rows[i].route].links)
        for link in range(len(network.capacities))
    ]


@given(networks())
def test_flows_end_when_the_definition_says(network: Network):
    """Every row that is not cancelled before ends at the moment at which textbook filling, flow by flow, ends it."""
    expected = reference(network)
    assume(all(abs(end - network.rows[i].start - network.rows[i].cancel) > 1e-6 for i, end in expected.items()))

    ended, _ = simulated(network)

    assert ended == {i: pytest.approx(end, rel=1e-9, abs=1e-12) for i, end in expected.items()}
    assert list(ended.values()) == sorted(ended.values())


@given(networks())
def test_no_link_ever_carries_more_than_it_can(network: Network):
    """Σ rates ≤ capacity on each link, and each flow's rate ≤ its limit, from moment to moment."""
    _, moments = simulated(network)

    for moment in moments:
        assert all(u <= c * (1 + 1e-12) for u, c in zip(used(network, moment.rates), network.capacities, strict=True))
        assert all(rate <= network.paths[network.rows[i].route].limit for i, rate in moment.rates.items())


@given(networks())
def test_a_flow_is_given_its_bytes_and_no_more(network: Network):
    """Σ rate · time is the size of every flow that ended, and less than that of one that was cancelled; time goes forward."""
    ended, moments = simulated(network)

    given_to = dict.fromkeys(range(len(network.rows)), 0.0)
    for moment, after_it in pairwise(moments):
        assert moment.now < after_it.now
        for i, rate in moment.rates.items():
            given_to[i] += rate * (after_it.now - moment.now)
    assert moments[-1].rates == {}
    for i, row in enumerate(network.rows):
        assert given_to[i] <= row.nbytes * (1 + 1e-9) + 1e-9
        assert i not in ended or given_to[i] == pytest.approx(row.nbytes, rel=1e-9, abs=1e-9)
        assert i in ended or row.cancel < math.inf


@given(networks())
def test_nobody_can_get_more_without_taking_from_one_who_has_no_more(network: Network):
    """Max-min fairness: each flow is at its limit, or crosses a full link on which nobody has more (so no link is idle in vain)."""
    _, moments = simulated(network)

    for moment in moments:
        usage = used(network, moment.rates)
        for i, rate in moment.rates.items():
            path = network.paths[network.rows[i].route]
            stops = [
                usage[link] >= network.capacities[link] * (1 - 1e-9)
                and all(
                    other <= rate * (1 + 1e-9) for j, other in moment.rates.items() if link in network.paths[network.rows[j].route].links
                )
                for link in path.links
            ]
            assert rate == path.limit or any(stops)


@given(networks(), st.randoms(use_true_random=False))
def test_the_order_of_starts_in_one_moment_does_not_matter(network: Network, chance: random.Random):
    """The same rows asked for in another order end at the same times. So do they with links named shared that were named own."""
    order = list(range(len(network.rows)))
    chance.shuffle(order)
    expected, _ = simulated(network)
    assume(all(abs(end - network.rows[i].start - network.rows[i].cancel) > 1e-6 for i, end in expected.items()))

    shuffled, _ = simulated(network, order)
    moved, _ = simulated(network._replace(paths=[Path((), path.links, path.limit) for path in network.paths]))

    assert shuffled == {i: pytest.approx(end, rel=1e-9, abs=1e-12) for i, end in expected.items()}
    assert moved == {i: pytest.approx(end, rel=1e-9, abs=1e-12) for i, end in expected.items()}
