"""What a collective takes: closed forms, and what decides where nodes and links are unequal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cluster_runs import WIRE, built, timed, world
from worlds import node

from hetsim.cluster.model import Cluster
from hetsim.cluster.network.collectives import ALGORITHMS, Collectives


def collective(algorithm: str, *nodes: dict[str, Any], members: Sequence[int] | None = None, **network: Any) -> Collectives:
    """The collectives of these nodes on a network of 1/8 s and 64 bytes per second."""
    return Collectives(built(*nodes, network={**WIRE, "all_reduce": algorithm, **network}), members)


@pytest.mark.parametrize(
    ("algorithm", "num_workers", "seconds"),
    [
        ("ring", 1, 0.0),
        ("ring", 2, 2 * 1 * (0.125 + 64 / 2 / 64)),
        ("ring", 8, 2 * 7 * (0.125 + 64 / 8 / 64)),
        ("halving_doubling", 1, 0.0),
        ("halving_doubling", 2, 2 * (0.125 + 0.5)),
        ("halving_doubling", 3, 2 * (0.125 + 0.5) + 2 * (0.125 + 1)),
        ("halving_doubling", 4, 2 * (0.125 + 0.5 + 0.125 + 0.25)),
        ("halving_doubling", 6, 2 * (0.125 + 0.5 + 0.125 + 0.25) + 2 * (0.125 + 1)),
        ("halving_doubling", 8, 2 * (0.125 + 0.5 + 0.125 + 0.25 + 0.125 + 0.125)),
        ("halving_doubling", 64, 2 * (6 * 0.125 + 63 / 64)),
    ],
)
def test_a_collective_on_equal_links_takes_its_closed_form(algorithm: str, num_workers: int, seconds: float):
    """64 bytes at 64 bytes per second and 1/8 s; in a run, what a step takes on top of the gradient; and the same on links as wide."""
    assert collective(algorithm, node(1.0, count=num_workers)).all_reduce_seconds(64) == seconds
    linked = collective(algorithm, node(1.0, count=num_workers), uplink_bytes_per_second=64.0, downlink_bytes_per_second=64.0)
    assert linked.all_reduce_seconds(64) == seconds

    workers = world(node(1.0, count=num_workers), network={"latency_seconds": 0.125, "bytes_per_second": 32.0, "all_reduce": algorithm})
    run = timed("ssgd", workers=workers, updates=2, batch_size=num_workers)
    assert run.seconds == [1.0 + seconds, 2.0 + 2 * seconds]


RACKED = {"a": {}, "b": {}, "c": {}}


@pytest.mark.parametrize(
    ("sizes", "racks", "seconds"),
    [
        ((4,), {}, 2 * 3 * (0.125 + 0.25)),  # one rack: its ring
        ((1, 1, 1), {}, 2 * 2 * (0.125 + 1 / 3)),  # one node each: the ring of racks
        ((2, 2), {}, 2 * (0.125 + 0.5) + 2 * (0.125 + 0.25)),
        ((4, 4), {}, 2 * 3 * (0.125 + 0.25) + 2 * (0.125 + 0.125)),
        ((2, 4), {}, 2 * 3 * (0.125 + 0.25) + 2 * (0.125 + 0.25)),  # the larger rack within, the smaller one's rings among
        ((4, 4), {"uplink_bytes_per_second": 32.0}, 2 * 3 * (0.125 + 0.25) + 2 * (0.125 + 8 / (32 / 4))),  # 4 rings on one uplink
        ((2, 2, 2), {"latency_seconds": 0.25}, 2 * (0.125 + 0.5) + 4 * (0.125 + 2 * 0.25 + 64 / 6 / 64)),
    ],
)
def test_a_two_level_all_reduce_takes_its_closed_form(sizes: Sequence[int], racks: dict[str, float], seconds: float):
    """2(m−1)(latency + n/(m·B)) within the racks, and among R of them 2(R−1) steps of M rings of 1/(M·R) each, that share the uplinks."""
    rows = [node(1.0, count=size, rack=rack) for size, rack in zip(sizes, RACKED, strict=False)]
    described = dict.fromkeys(list(RACKED)[: len(sizes)], racks)

    assert collective("two_level", *rows, racks=described).all_reduce_seconds(64) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("ring", 2 * 3 * (0.125 + 16 / 8)),
        ("halving_doubling", 2 * (0.125 + 32 / 8 + 0.125 + 16 / 8)),
        ("two_level", 2 * (0.125 + 32 / 8) + 2 * (0.125 + 16 / 8)),
    ],
)
@pytest.mark.parametrize("link", ["uplink_bytes_per_second", "downlink_bytes_per_second"])
def test_one_slow_link_decides(algorithm: str, seconds: float, link: str):
    """One of four nodes sends, or gets, 8 bytes per second: everyone waits for it in each step."""
    rows = [node(1.0, rack="a"), node(1.0, rack="a", **{link: 8.0}), node(1.0, rack="b", count=2)]

    assert collective(algorithm, *rows, racks={"a": {}, "b": {}}).all_reduce_seconds(64) == seconds


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("ring", 2 * 3 * (0.125 + 2 + 0.25)),
        ("halving_doubling", 2 * (0.125 + 2 + 0.5 + 0.125 + 2 + 0.25)),
        ("two_level", 2 * (0.125 + 2 + 0.5) + 2 * (0.125 + 2 + 0.25)),
    ],
)
def test_one_long_latency_decides(algorithm: str, seconds: float):
    """One of four nodes is 2 s away: everyone waits for it in each step. A server's latency is no matter."""
    rows = [node(1.0, rack="a"), node(1.0, rack="a", latency_seconds=2.0), node(1.0, rack="b", count=2)]

    assert collective(algorithm, *rows, racks={"a": {}, "b": {}}).all_reduce_seconds(64) == seconds
    far = Collectives(built(node(1.0, count=4), network=WIRE, server={"latency_seconds": 2.0}))
    assert far.all_reduce_seconds(64) == 2 * 3 * (0.125 + 0.25)


def test_in_a_step_the_largest_of_latency_and_bytes_together_decides():
    """A near node on a slow link and a far one on a fast link: at 4 bytes the far one is waited for, at 1024 the slow one."""
    near, far = node(1.0, uplink_bytes_per_second=8.0), node(1.0, latency_seconds=2.0)
    ring = collective("ring", near, node(1.0), far, node(1.0))

    assert ring.all_reduce_seconds(4) == 6 * (2.125 + 1 / 64)
    assert ring.all_reduce_seconds(1024) == 6 * (0.125 + 256 / 8)


def test_who_is_left_over_is_answered_on_the_way_back():
    """The third of three hands 64 bytes over at 32 bytes per second up, and gets the sum at 8 down: 2 s there, 8 s back."""
    rows = [node(1.0, count=2), node(1.0, uplink_bytes_per_second=32.0, downlink_bytes_per_second=8.0)]

    assert collective("halving_doubling", *rows).all_reduce_seconds(64) == 2 * (0.125 + 0.5) + (0.125 + 2) + (0.125 + 8)


def test_a_ring_that_goes_to_and_fro_between_racks_shares_their_uplinks():
    """a a b b crosses each uplink once, a b a b twice; within a rack no uplink is passed."""
    racks = {"a": {"uplink_bytes_per_second": 64.0}, "b": {"uplink_bytes_per_second": 64.0}}

    def ring(*order: str) -> float:
        return collective("ring", *(node(1.0, rack=rack) for rack in order), racks=racks).all_reduce_seconds(64)

    assert ring("a", "a", "b", "b") == 6 * (0.125 + 16 / 64)
    assert ring("a", "b", "a", "b") == 6 * (0.125 + 16 / 32)
    assert ring("a", "b", "b", "a") == 6 * (0.125 + 16 / 64)


def test_a_collective_is_among_those_who_take_part():
    """Of five, three: the ring of three, without the slow one; and two of one rack, one of another."""
    rows = [node(1.0, rack="a", count=2), node(1.0, rack="a", uplink_bytes_per_second=1.0), node(1.0, rack="b", count=2)]

    for algorithm, seconds in (("ring", 4 * (0.125 + 1 / 4)), ("halving_doubling", 2 * (0.125 + 3 / 8) + 2 * (0.125 + 3 / 4))):
        assert collective(algorithm, *rows, members=[0, 1, 4], racks={"a": {}, "b": {}}).all_reduce_seconds(48) == seconds
    two_level = collective("two_level", *rows, members=[0, 1, 4], racks={"a": {}, "b": {}})
    assert two_level.all_reduce_seconds(48) == 2 * (0.125 + 3 / 8) + 2 * (0.125 + 3 / 8)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_gather_goes_around_the_ring(algorithm: str):
    """Eight bytes of each in N−1 steps, by the slowest link, whatever the network's all-reduce; nothing for one alone."""
    rows = [node(1.0, rack="a", count=3), node(1.0, rack="a", uplink_bytes_per_second=16.0)]

    assert collective(algorithm, *rows, racks={"a": {}}).gather_seconds() == 3 * (0.125 + 0.5)
    assert collective(algorithm, *rows, racks={"a": {}}, members=[3]).gather_seconds() == 0.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_who_takes_part_is_looked_at_once(algorithm: str, monkeypatch: pytest.MonkeyPatch):
    """However often, and for how many sizes, a collective is asked for: each message's path once, and none where no link is described."""
    asked: list[tuple[int, int]] = []
    path = Cluster.path
    monkeypatch.setattr(Cluster, "path", lambda its, *ends, **more: asked.append(ends) or path(its, *ends, **more))
    rows = [node(1.0, count=32, rack=rack) for rack in ("a", "b")]

    def ask(collectives: Collectives) -> int:
        for nbytes in (64, 64, 128, 1):
            assert collectives.all_reduce_seconds(nbytes) > collectives.gather_seconds() / 64 > 0
        return len(asked)

    if algorithm != "tree":
        assert ask(collective(algorithm, *rows, racks={"a": {}, "b": {}})) == 0
    of_steps = {"ring": 64, "halving_doubling": 6 * 64 + 64, "two_level": 64 + 64 + 64, "tree": 64 + 4 * 31 + 2 * 32}
    assert ask(collective(algorithm, *rows, racks={"a": {"uplink_bytes_per_second": 8.0}, "b": {}})) == of_steps[algorithm]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_size_that_is_known_costs_nothing(algorithm: str, monkeypatch: pytest.MonkeyPatch):
    """No step is looked at again, however many unequal links it has."""
    looked_at: list[int] = []
    seconds = Collectives._seconds
    monkeypatch.setattr(Collectives, "_seconds", staticmethod(lambda step, *of: looked_at.append(len(step.messages)) or seconds(step, *of)))
    its = collective(algorithm, *(node(1.0, rack="a", uplink_bytes_per_second=1.0 + rank) for rank in range(32)), racks={"a": {}})

    once = its.all_reduce_seconds(64), its.gather_seconds()
    assert max(looked_at) == 32
    looked_at.clear()

    assert (its.all_reduce_seconds(64), its.gather_seconds()) == once
    assert looked_at == []
