"""Collectives, transfer by transfer: the closed forms against messages that share links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from cluster_runs import built
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from rings import ring_seconds
from worlds import node

from hetsim.cluster.model import Cluster
from hetsim.cluster.network.collectives import Collectives
from hetsim.sim.clock import VirtualClock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Link, Route

pytestmark = pytest.mark.slow


class Wires:
    """The links of a cluster, as transfers share them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.links: dict[tuple[str, int | str], Link] = {}

    def route(self, sender: int, receiver: int) -> Route:
        path = self.cluster.path(sender, receiver)
        links = tuple(self.links.setdefault(link, Link(self.cluster.capacity(link))) for link in path.links)
        return Route(shared=links, limit=path.bytes_per_second)

    def ring(self, nbytes: float) -> float:
        """The twin of the closed form: each node goes on when it can."""
        num = self.cluster.num_workers
        if num == 1:
            return 0.0
        hops = [(rank, (rank + 1) % num) for rank in range(num)]
        latencies = [self.cluster.path(*hop).latency_seconds for hop in hops]
        return ring_seconds([self.route(*hop) for hop in hops], latencies, nbytes)

    def step(self, messages: Sequence[tuple[int, int]], nbytes: float) -> float:
        """All of these at once, until the last has arrived."""
        clock, ended = VirtualClock(), [0.0]
        flows = Flows(clock)
        for sender, receiver in messages:
            arrive = self.cluster.path(sender, receiver).latency_seconds
            flows.start(self.route(sender, receiver), nbytes, lambda latency: ended.append(clock.now + latency), arrive)
        clock.run_all()
        return max(ended)


@pytest.mark.parametrize("num_workers", [8, 64])
@pytest.mark.parametrize("latency", [0.0, 0.125])
def test_a_ring_of_equal_links_takes_what_its_transfers_take(num_workers: int, latency: float):
    """To the last bit; the links are the nodes' own, or no link is described."""
    for links in ({}, {"uplink_bytes_per_second": 2.0**16, "downlink_bytes_per_second": 2.0**15}):
        cluster = built(node(1.0, count=num_workers), network={"latency_seconds": latency, "bytes_per_second": 2.0**17, **links})

        twin = Wires(cluster).ring(2.0**20)

        assert Collectives(cluster).all_reduce_seconds(2**20) == twin
        assert twin == 2 * (num_workers - 1) * (latency + 2.0**20 / num_workers / (2.0**15 if links else 2.0**17))


@pytest.mark.parametrize("num_workers", [8, 64])
def test_a_ring_with_one_slow_link_and_no_latency_takes_what_its_transfers_take(num_workers: int):
    """The slow link is busy from the first moment to the last."""
    rows = [node(1.0, count=num_workers - 3), node(1.0, uplink_bytes_per_second=2.0**13), node(1.0, count=2)]
    cluster = built(*rows, network={"latency_seconds": 0.0, "bytes_per_second": 2.0**17})

    twin = Wires(cluster).ring(2.0**20)

    assert Collectives(cluster).all_reduce_seconds(2**20) == twin == 2 * (num_workers - 1) * 2.0**20 / num_workers / 2.0**13


def test_a_ring_with_unequal_latencies_takes_less_than_the_closed_form():
    """Which is a bound where a step ends at different times: here a latency of 2 s is waited for twice, and not in each of 4 steps."""
    cluster = built(node(1.0, latency_seconds=2.0), node(1.0, count=2), network={"latency_seconds": 0.0, "bytes_per_second": 4.0})

    assert Wires(cluster).ring(12.0) < Collectives(cluster).all_reduce_seconds(12) == 4 * (2.0 + 1.0)


RATES = st.one_of(st.none(), st.sampled_from([16.0, 100.0]), st.floats(1.0, 1000.0))
LATENCIES = st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.0])


@st.composite
def clusters(draw: st.DrawFn, *, max_nodes: int, algorithm: str, latencies: st.SearchStrategy[float] = LATENCIES) -> Cluster:
    """Nodes of unequal links in racks of unequal links, some in others, in no order."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    racks = {
        name: {
            "uplink_bytes_per_second": draw(RATES),
            "downlink_bytes_per_second": draw(RATES),
            "latency_seconds": draw(latencies),
            "within": draw(st.sampled_from([None, *names[:place]])),
        }
        for place, name in enumerate(names)
    }
    stands = [*names, *draw(st.lists(st.sampled_from(names), max_size=max_nodes - len(names)))]
    rows = [
        node(1.0, rack=rack, uplink_bytes_per_second=draw(RATES), downlink_bytes_per_second=draw(RATES), latency_seconds=draw(latencies))
        for rack in draw(st.permutations(stands))
    ]
    return built(*rows, network={"latency_seconds": 0.1, "bytes_per_second": 500.0, "racks": racks, "all_reduce": algorithm})


@examples(40)
@given(cluster=clusters(max_nodes=9, algorithm="ring"), nbytes=st.integers(1, 10**6))
def test_a_ring_s_transfers_never_take_longer_than_its_closed_form(cluster: Cluster, nbytes: int):
    """As max-min sharing gives each transfer at least what it has in a step in which all are under way."""
    assert Wires(cluster).ring(nbytes) <= Collectives(cluster).all_reduce_seconds(nbytes) * (1 + 1e-12)


def steps(cluster: Cluster) -> Iterator[tuple[list[tuple[int, int]], Fraction]]:
    """Which messages each step of the network's all-reduce has, and what part of the vector each of them is."""
    num, algorithm = cluster.num_workers, cluster.network.all_reduce
    if algorithm == "ring" and num > 1:
        yield from [([(rank, (rank + 1) % num) for rank in range(num)], Fraction(1, num))] * (2 * (num - 1))
    if algorithm == "halving_doubling" and num > 1:
        power = 1
        while 2 * power <= num:
            power *= 2
        over = list(range(power, num))
        yield [(rank, rank - power) for rank in over], Fraction(1)
        distance, part = 1, Fraction(1, 2)
        exchanges = []
        while distance < power:
            exchanges.append(([(rank, rank ^ distance) for rank in range(power)], part))
            distance, part = 2 * distance, part / 2
        yield from exchanges + exchanges[::-1]
        yield [(rank - power, rank) for rank in over], Fraction(1)


@pytest.mark.hypothesis
@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
def test_a_step_takes_as_long_as_its_transfers_where_latencies_are_equal(algorithm: str):
    """Step by step, each one max-min shared, on any links and racks; where latencies are unequal never longer."""

    @examples(50)
    @given(data=st.data(), nbytes=st.integers(1, 10**6), equal=st.booleans())
    def check(data: st.DataObject, nbytes: int, equal: bool) -> None:
        cluster = data.draw(clusters(max_nodes=9, algorithm=algorithm, latencies=st.just(0.0) if equal else LATENCIES))
        wires = Wires(cluster)
        taken = sum(wires.step(messages, float(nbytes * part)) for messages, part in steps(cluster))
        said = Collectives(cluster).all_reduce_seconds(nbytes)
        if equal:
            assert said == pytest.approx(taken, rel=1e-12)
        else:
            assert taken <= said * (1 + 1e-12)

    check()


@examples(40)
@given(cluster=clusters(max_nodes=9, algorithm="two_level", latencies=st.just(0.0)), nbytes=st.integers(1, 10**6))
def test_two_levels_take_as_long_as_their_transfers(cluster: Cluster, nbytes: int):
    """Each rack's ring for itself, then side by side as many rings around the racks as the smallest has nodes, then back."""
    racks: dict[str | None, list[int]] = {}
    for rank, its in enumerate(cluster.nodes):
        racks.setdefault(its.rack, []).append(rank)
    places, wires = list(racks.values()), Wires(cluster)
    within = [
        (len(its) - 1) * wires.step([(one, its[(k + 1) % len(its)]) for k, one in enumerate(its)], nbytes / len(its))
        for its in places
        if len(its) > 1
    ]
    rings = min(map(len, places))
    around = [(its[k], places[(place + 1) % len(places)][k]) for place, its in enumerate(places) for k in range(rings)]
    among = 2 * (len(places) - 1) * wires.step(around, nbytes / (rings * len(places))) if len(places) > 1 else 0.0

    assert Collectives(cluster).all_reduce_seconds(nbytes) == pytest.approx(2 * max(within, default=0.0) + among, rel=1e-12)
