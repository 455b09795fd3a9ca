"""Transfers that share links are max-min fair at every moment: against progressive filling, written out flow by flow."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import pytest
from flow_world import World
from hypothesis import assume, given
from hypothesis import strategies as st

from hetsim.sim.network.links import Link, Route

pytestmark = pytest.mark.slow


class Row(NamedTuple):
    """A flow: over which of the routes, with how many bytes, from when on, until when at most, with which weight."""

    route: int
    nbytes: float
    start: float
    cancel: float
    weight: float


class Path(NamedTuple):
    """A route's links, by number: those named as shared, those as own; its limit; and the weight of a flow over it."""

    shared: tuple[int, ...]
    own: tuple[int, ...]
    limit: float
    weight: float = 1.0

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
    """Up to four links and four routes; some flows are cancelled; some start together; in half of the networks all have a weight of 1."""
    capacities = draw(st.lists(numbers(0.5, 100.0), min_size=1, max_size=4))
    paths = []
    for _ in range(draw(st.integers(1, 4))):
        links = draw(st.lists(st.sampled_from(range(len(capacities))), unique=True, max_size=3))
        num_shared = draw(st.integers(0, len(links)))
        limit = draw(numbers(0.5, 20.0) if not links else st.just(math.inf) | numbers(0.5, 20.0))
        paths.append(Path(tuple(links[:num_shared]), tuple(links[num_shared:]), limit))
    route = st.sampled_from(range(len(paths)))
    cancel = st.just(math.inf) | st.just(math.inf) | numbers(0.1, 10.0)
    weight = st.just(1.0) if draw(st.booleans()) else st.just(1.0) | st.just(2.0) | st.floats(0.2, 5.0)
    rows = draw(st.lists(st.builds(Row, route, numbers(0.0, 50.0), numbers(0.0, 10.0), cancel, weight), min_size=1, max_size=9))
    return Network(capacities, paths, rows)


def fill(capacities: list[float], paths: dict[int, Path]) -> dict[int, float]:
    """Textbook progressive filling: all rates rise by the same step by weight, and whoever meets a full link or its limit stops."""
    rates = dict.fromkeys(paths, 0.0)
    rising = set(paths)
    while rising:
        free = {link: capacity - sum(rates[f] for f in paths if link in paths[f].links) for link, capacity in enumerate(capacities)}
        room = {
            link: free[link] / sum(paths[f].weight for f in rising if link in paths[f].links) for f in rising for link in paths[f].links
        }
        step = min([*room.values(), *((paths[f].limit - rates[f]) / paths[f].weight for f in rising)])
        for f in rising:
            rates[f] += step * paths[f].weight
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
        rates = fill(network.capacities, {i: network.paths[network.rows[i].route]._replace(weight=network.rows[i].weight) for i in left})
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
        world.at(row.start, world.start, i, routes[row.route], row.nbytes, row.weight)
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
        assert all(rate <= network.paths[network.rows[i].route].limit * (1 + 1e-12) for i, rate in moment.rates.items())


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
    """Max-min fairness: each flow is at its limit, or crosses a full link on which nobody has more by weight (no link is idle in vain)."""
    _, moments = simulated(network)

    for moment in moments:
        usage = used(network, moment.rates)
        for i, rate in moment.rates.items():
            path = network.paths[network.rows[i].route]
            stops = [
                usage[link] >= network.capacities[link] * (1 - 1e-9)
                and all(
                    other / network.rows[j].weight <= rate / network.rows[i].weight * (1 + 1e-9)
                    for j, other in moment.rates.items()
                    if link in network.paths[network.rows[j].route].links
                )
                for link in path.links
            ]
            assert rate == pytest.approx(path.limit, rel=1e-12) or any(stops)


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
