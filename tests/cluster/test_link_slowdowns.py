"""Links whose rates change over time: what crosses them takes the integral of their rates, whoever sends it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import built, play, recorded, timed, world
from worlds import node

from hetsim import effects as fx
from hetsim.cluster.network.collectives import ALGORITHMS, Collectives
from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.distributed.pacing.shared_links import SharedLinks, Transfer
from hetsim.vector import Phantom

NET = {"latency_seconds": 0.0, "bytes_per_second": 64.0}
TICK = 0.125


def ends(workers: dict[str, Any], *moments: float) -> list[float]:
    """When 64 bytes of each worker arrive at the server in a simulation; the emulator of padded runs says the same."""

    def asks(rank: fx.Node, _: Any) -> Generator[Any, Any, Any]:
        if rank.rank < rank.server:
            if ticks := round(moments[rank.rank] / TICK):
                yield from fx.Gradient(at=Phantom(8), batch=fx.Batch(0, ticks), version=0)
            yield from fx.Send(rank.server, Phantom(64))
        else:
            for _ in moments:
                yield from fx.Receive()

    found = [row.end for row in sorted(play(asks, workers, trace="full").rows("message"), key=lambda row: row.rank)]
    for began in (0.0, 12345.678):
        links = SharedLinks(parse_cluster(workers), seed=0, began=began)
        transfers = [Transfer(began + moment, 64) for moment in moments]
        for rank, transfer in enumerate(transfers):
            links.begin(rank, len(moments), transfer)
        links.project()
        assert [each.ends - began for each in transfers] == pytest.approx(found, rel=1e-9)
    return found


def way_between(way: dict[str, Any]) -> dict[str, Any]:
    """The keys of a network with two racks and a way between them."""
    return {"racks": {"a": {}, "b": {}}, "between": [way]}


@pytest.mark.parametrize(
    ("points", "period", "seconds"),
    [
        ([(0, 1)], None, 1.0),
        ([(0, 4)], None, 4.0),
        ([(0, 1), (0.5, 2)], None, 1.5),
        ([(0, 2), (1, 1)], None, 1.5),
        ([(0, 1), (0.25, 4), (1.25, 1)], None, 1.75),
        ([(0, 1), (0.25, 3)], 0.5, 1.5),
        ([(0, 8), (0.125, 1)], 4.0, 1.109375),
    ],
)
@pytest.mark.parametrize("end", ["node", "server", "rack", "between"])
def test_a_message_takes_the_integral_of_the_rate(tmp_path: Path, points: Any, period: Any, seconds: float, end: str) -> None:
    """64 bytes over 64 bytes per second, divided by the factor of each moment; periods begin again."""
    its = {"link_slowdown": recorded(tmp_path, *points), "link_slowdown_period_seconds": period}
    if end == "between":
        way = {"racks": ["a", "b"], "bytes_per_second": 64.0, **its}
        workers = world(node(TICK, rack="a"), network={**NET, "sharing": "none", **way_between(way)}, server={"rack": "b"})
    elif end == "rack":
        workers = world(node(TICK, rack="a"), network={**NET, "racks": {"a": {"uplink_bytes_per_second": 64.0, **its}}})
    else:
        workers = world(node(TICK, **(its if end == "node" else {})), network=NET, server=its if end == "server" else {})

    assert ends(workers, 0.0) == pytest.approx([seconds], rel=1e-12)


def test_messages_share_a_link_that_changes(tmp_path: Path) -> None:
    """Half of it each; the one that began later gets all of it at the end."""
    workers = world(node(TICK, count=2), network=NET, server={"link_slowdown": recorded(tmp_path, (0, 1), (1, 2), (2, 1))})

    assert ends(workers, 0.0, 0.0) == pytest.approx([2.5, 2.5])
    assert ends(workers, 0.0, 0.5) == pytest.approx([2.0, 2.5])


def test_a_way_between_racks_limits_each_message_alone(tmp_path: Path) -> None:
    """Two messages of 64 bytes at 64 bytes per second, halved from 0.5 s on: neither slows the other. Within a rack nothing changes."""
    way = {"racks": ["a", "b"], "bytes_per_second": 64.0, "link_slowdown": recorded(tmp_path, (0, 1), (0.5, 2))}
    network = {**NET, "bytes_per_second": 128.0, "sharing": "none", **way_between(way)}
    rows = node(TICK, count=2, rack="a"), node(TICK, rack="b")

    assert ends(world(*rows, network=network, server={"rack": "b"}), 0.0, 0.0, 0.0) == pytest.approx([1.5, 1.5, 0.5], rel=1e-12)


def test_a_factor_below_one_raises_the_rate_of_a_way(tmp_path: Path) -> None:
    """Of a way with a slowdown alone, the network's rate is divided; the shards of a server multiply it."""
    way = {"racks": ["a", "b"], "link_slowdown": recorded(tmp_path, (0, 0.5))}
    workers = world(node(TICK, rack="a"), network={**NET, "sharing": "none", **way_between(way)}, server={"rack": "b", "shards": 2})

    assert ends(workers, 0.0) == pytest.approx([0.25], rel=1e-12)


def test_a_link_that_has_been_idle_has_the_rate_of_the_moment(tmp_path: Path) -> None:
    """Nothing is computed meanwhile, however short the period."""
    slow = recorded(tmp_path, (0, 1), (0.5, 2))
    workers = world(node(TICK, link_slowdown=slow, link_slowdown_period_seconds=1.0), network=NET)

    assert ends(workers, 1e6 + 0.5) == pytest.approx([1e6 + 2], abs=1e-6)


def test_factors_hold_until_the_next_and_periods_begin_again() -> None:
    slowdown = LinkSlowdown(((0.0, 1.0), (2.0, 3.0)), 5.0)

    assert [slowdown.at(second) for second in (0.0, 1.5, 2.0, 4.9, 5.0, 7.0, 10.0)] == [
        (1.0, 2.0), (1.0, 2.0), (3.0, 5.0), (3.0, 5.0), (1.0, 7.0), (3.0, 10.0), (1.0, 12.0),
    ]  # fmt: skip
    assert LinkSlowdown(((0.0, 1.0), (2.0, 3.0))).at(9.0) == (3.0, float("inf"))


def test_each_change_is_later_than_the_one_before() -> None:
    """Also of a period that no float is a multiple of. Rounding may add a piece without length."""
    slowdown, second = LinkSlowdown(((0.0, 1.0), (0.03, 2.0)), 0.1), 0.0
    for _ in range(10_000):
        _, until = slowdown.at(second)
        assert until > second
        second = until

    assert second > 450


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_step_of_a_collective_has_the_rates_of_its_moment(tmp_path: Path, algorithm: str) -> None:
    """With a factor of 1 it takes what the closed form says; a factor of 2 from its middle on makes the second half twice as long."""
    network = {**NET, "all_reduce": algorithm, "racks": {"a": {}}}

    def its(*points: tuple[float, float]) -> Collectives:
        return Collectives(built(node(1.0, count=4, rack="a", link_slowdown=recorded(tmp_path, *points)), network=network))

    plain = Collectives(built(node(1.0, count=4, rack="a"), network=network))
    total = 8 / 0.92 if algorithm == "tree" else 6.0
    assert plain.all_reduce_seconds(256) == pytest.approx(total, rel=1e-12)
    assert its((0, 1)).all_reduce_seconds(256) == plain.all_reduce_seconds(256)
    assert its((0, 3)).all_reduce_seconds(256) == pytest.approx(3 * total, rel=1e-12)
    assert its((0, 1), (100 + total / 2, 2)).all_reduce_seconds(256, begins=100.0) == pytest.approx(1.5 * total, rel=1e-12)
    assert its((0, 1), (100 + total / 2, 2)).all_reduce_seconds(256, begins=200.0) == pytest.approx(2 * total, rel=1e-12)
    assert its((0, 1)).gather_seconds() == plain.gather_seconds()
    assert its((0, 2)).gather_seconds() == 2 * plain.gather_seconds()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_step_between_two_racks_has_the_rates_of_its_moment(tmp_path: Path, algorithm: str) -> None:
    """Of 256 bytes among two racks of two nodes, at 64 bytes per second between them, without limit inside, and half from the middle on."""
    plain, changed = {"ring": (6.0, 9.0), "halving_doubling": (2.0, 3.0), "two_level": (2.0, 3.0), "tree": (2 / 0.92, 3 / 0.92)}[algorithm]

    def its(*points: tuple[float, float]) -> float:
        way = {"racks": ["a", "b"], "bytes_per_second": 64.0, "link_slowdown": recorded(tmp_path, *points)}
        network = {**NET, "bytes_per_second": 1e300, "sharing": "none", "all_reduce": algorithm, **way_between(way)}
        cluster = built(node(1.0, count=2, rack="a"), node(1.0, count=2, rack="b"), network=network)
        return Collectives(cluster).all_reduce_seconds(256, begins=100.0)

    assert its((0, 1)) == pytest.approx(plain)
    assert its((0, 1), (100 + plain / 2, 2)) == pytest.approx(changed)


@pytest.mark.parametrize("method", ["ssgd", "ddp", "local_sgd", "pipe_sgd"])
@pytest.mark.parametrize("where", ["nodes", "between"])
def test_runs_in_lockstep_and_event_by_event_feel_the_same(tmp_path: Path, method: str, where: str) -> None:
    """Faults make a run go event by event, also those that come after its end."""
    slow = {"link_slowdown": recorded(tmp_path, (0, 1), (2, 5), (7, 1)), "link_slowdown_period_seconds": 9.0}
    if where == "nodes":
        workers = world(node(1e-3, count=2, **slow), node(2e-3, **slow), network=NET)
    else:
        way = way_between({"racks": ["a", "b"], **slow})
        workers = world(node(1e-3, count=2, rack="a"), node(2e-3, rack="b"), network={**NET, **way})
    faults = {"faults": {"schedule": [{"nodes": [0], "crash": 1e6}]}}
    lockstep, events = (timed(method, workers={**workers, **more}, updates=12, batch_size=30).seconds for more in ({}, faults))
    plain = timed(method, workers=world(node(1e-3, count=2), node(2e-3), network=NET), updates=12, batch_size=30).seconds

    assert lockstep == pytest.approx(events, rel=1e-12)
    assert lockstep[-1] > plain[-1]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"network": {**NET, "sharing": "none"}}, "node 0 has a link_slowdown and no link that it would slow down: give it uplink_"),
        ({"network": {**NET, "all_reduce_table": [[1, 1.0]]}}, "link_slowdown does not go with a measured all_reduce_table, whose"),
        ({"network": NET, "hosts": {"lab": {"cores": 1}}, "server": {"host": "lab"}}, "link_slowdown does not go with hosts or CPU work"),
    ],
)
def test_a_slowdown_that_nothing_would_feel_is_refused(tmp_path: Path, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        built(node(1.0, rack="a" if "racks" in parts["network"] else None, link_slowdown=recorded(tmp_path, (0, 2))), **parts)

    assert str(refused.value).startswith(said)
    with pytest.raises(ValueError, match="link_slowdown_period_seconds does nothing without a link_slowdown"):
        built(node(1.0, link_slowdown_period_seconds=3), network=NET)


def test_a_machine_passes_it_to_its_card(tmp_path: Path) -> None:
    """The GPUs inside keep their rates."""
    card, of_node = {"network": 1e6, "link_slowdown": recorded(tmp_path, (0, 2))}, {"seconds_per_sample": 1e-3}
    cluster = parse_cluster({"name": "m", "machines": [{"gpus": {"count": 2, **of_node}, "inside": 1e9, **card}, {**of_node, **card}]})
    slow = LinkSlowdown(((0.0, 2.0),))

    assert [each.link_slowdown for each in (*cluster.nodes, *cluster.network.racks.values())] == [None, None, slow, slow]
