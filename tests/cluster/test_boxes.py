"""Boxes of several GPUs: NCCL's trees and its choice by size, latencies by the kind of network, several cards, pairs by NVLink."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import built as built_of_nodes
from cluster_runs import world
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from worlds import by_hydra, node

from hetsim.cluster.model import Cluster
from hetsim.cluster.network.collectives import ALGORITHMS, CHOICES, Collectives, _double_tree
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.compose import entries_of

US = 1e-6
H100 = {"count": 8, "seconds_per_sample": "27 ms"}
MIB = 2**20


def boxes(num: int, gpus: int = 8, *, algorithm: str = "auto", members: list[int] | None = None, **more: Any) -> Collectives:
    """Equal boxes, with 450 GB/s inside and 3.2 Tbit/s between them unless something else is given."""
    machine = {"count": num, "gpus": {**H100, "count": gpus}, "inside": "450 GB/s", "network": "3200 Gbit/s", **more}
    return Collectives(parse_cluster({"name": "boxes", "machines": [machine], "network": {"all_reduce": algorithm}}), members)


def built(**machine: Any) -> Cluster:
    return parse_cluster({"name": "one", "machines": [machine]})


@pytest.mark.parametrize("num", range(1, 40))
def test_two_binary_trees_share_the_work(num: int) -> None:
    """Each reaches every place in floor(log2) steps from its root, and an inner place of one is a leaf of the other."""
    inner = []
    for tree in _double_tree(num):
        parent = dict(tree)
        inner.append(set(parent.values()))
        assert len(tree) == len(parent) == num - 1
        depths = []
        for place in range(num):
            depth = 0
            while place in parent:
                place, depth = parent[place], depth + 1
            depths.append(depth)
        assert max(depths) <= num.bit_length() - 1
        assert max(map([*parent.values()].count, parent.values()), default=0) <= 2
        below = [child for child, _ in tree]
        assert all(below.index(place) > below.index(child) for child, place in tree if place in below)
    assert not inner[0] & inner[1] or num == 2


@pytest.mark.parametrize(("num", "through_card"), [(2, 1.0), (3, 1.5), (4, 2.0), (8, 2.0), (64, 2.0)])
def test_a_tree_takes_a_logarithm_of_latencies_and_twice_the_bytes_through_each_card(num: int, through_card: float) -> None:
    """2(m−1) latencies inside a box, 2·floor(log2 R) between boxes. Two boxes send each byte once, many of them twice."""
    depth = num.bit_length() - 1
    latencies = 2 * 7 * 2e-6 + 2 * depth * 8e-6

    for nbytes in (1e3, 1e9):
        said = boxes(num, algorithm="tree", network="800 Gbit/s").all_reduce_seconds(nbytes)
        assert said == pytest.approx(latencies + through_card * nbytes / (0.92 * 100e9), rel=1e-9)


def test_a_tree_in_one_box_is_a_chain() -> None:
    """All bytes go up and down through each link: 2n, and n with two GPUs."""
    assert boxes(1, 4, algorithm="tree").all_reduce_seconds(1e9) == pytest.approx(6 * 2e-6 + 2e9 / (0.92 * 450e9), rel=1e-9)
    assert boxes(1, 2, algorithm="tree").all_reduce_seconds(1e9) == pytest.approx(2 * 2e-6 + 1e9 / (0.92 * 450e9), rel=1e-9)


def test_many_gpus_take_a_tree_for_small_vectors_and_a_ring_for_large_ones() -> None:
    """As NCCL does. Two boxes take the tree for large ones, too, because it sends half as much between them, and one box the ring."""
    many, two, one = boxes(8), boxes(2, network="100 Gbit/s"), boxes(1)

    assert [many.algorithm(nbytes) for nbytes in (8, MIB, 256 * MIB, 16_000 * MIB)] == ["tree", "tree", "tree", "ring"]
    assert [two.algorithm(nbytes) for nbytes in (8, MIB, 16_000 * MIB)] == ["tree", "tree", "tree"]
    assert [one.algorithm(nbytes) for nbytes in (8, MIB, 16_000 * MIB)] == ["ring"] * 3


RATES = st.sampled_from(["1 Gbit/s", "10 Gbit/s", "100 Gbit/s", "8 x 400 Gbit/s", {"up": "1 Gbit/s", "down": "5 Gbit/s"}])
INSIDE = st.sampled_from(["12 GB/s", "64 GB/s", "450 GB/s", {"pairs": "56 GB/s", "across": "12 GB/s"}])


@st.composite
def machines(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to four kinds of machines of one to five GPUs each."""
    drawn: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        gpus = draw(st.integers(1, 5))
        inside = draw(INSIDE) if gpus > 2 else "12 GB/s"
        entry: dict[str, Any] = {"count": draw(st.integers(1, 3)), "gpus": {"count": gpus, "seconds_per_sample": 1}, "network": draw(RATES)}
        drawn.append({**entry, **({"inside": inside} if gpus > 1 else {})})
    return drawn


@examples(60)
@given(described=machines(), sizes=st.lists(st.integers(1, 10**10), min_size=2, max_size=4), data=st.data())
def test_auto_is_the_faster_of_ring_and_tree_and_rises_with_the_size(
    described: list[dict[str, Any]], sizes: list[int], data: st.DataObject
) -> None:
    """On any machines, among any of their GPUs."""
    network = {"all_reduce": data.draw(st.sampled_from(["auto", "tree"]))}
    cluster = parse_cluster({"name": "any", "machines": described, "network": network})
    members = sorted(data.draw(st.sets(st.sampled_from(range(cluster.num_workers)), min_size=1)))
    its = Collectives(cluster, members)
    seconds = [its.all_reduce_seconds(size) for size in sorted(sizes)]

    assert seconds == sorted(seconds)
    if network["all_reduce"] == "auto" and len(members) > 1:
        assert seconds == [min(ALGORITHMS[name][0](its, size) for name in CHOICES) for size in sorted(sizes)]


@examples(40)
@given(nbytes=st.integers(1, 10**10), latency=st.integers(0, 1000), num=st.integers(1, 9), gpus=st.integers(2, 8))
def test_auto_rises_with_latency(nbytes: int, latency: int, num: int, gpus: int) -> None:
    least, more = (boxes(num, gpus, latency_seconds=seconds).all_reduce_seconds(nbytes) for seconds in (latency * US, (latency + 1) * US))

    assert least < more if num > 1 else least == more


@examples(40)
@given(num=st.integers(2, 6), gpus=st.integers(2, 5), nbytes=st.integers(1, 10**9), left_out=st.integers(0, 100))
def test_equal_boxes_are_interchangeable(num: int, gpus: int, nbytes: int, left_out: int) -> None:
    """Whichever box is left out."""
    out = left_out % num
    kept = [rank for rank in range(num * gpus) if rank // gpus != out]

    assert boxes(num, gpus, members=kept).all_reduce_seconds(nbytes) == boxes(num - 1, gpus).all_reduce_seconds(nbytes)


def test_only_boxes_of_several_gpus_choose_by_themselves() -> None:
    """Nodes and machines with one GPU each keep the ring, and a described algorithm goes first."""
    alone = {"count": 4, "seconds_per_sample": 1, "network": "10 Gbit/s"}

    assert built(**alone).network.all_reduce == built_of_nodes(node(1.0, count=4)).network.all_reduce == "ring"
    assert boxes(2).cluster.network.all_reduce == "auto"
    assert boxes(2, algorithm="two_level").cluster.network.all_reduce == "two_level"


def test_auto_and_trees_are_for_nodes_too() -> None:
    """Each node is a box of its own; its card carries the messages to its parent and to its children."""
    network = {"latency_seconds": 0.125, "bytes_per_second": 64.0}

    def seconds(algorithm: str, nbytes: int) -> float:
        return Collectives(built_of_nodes(node(1.0, count=8), network={**network, "all_reduce": algorithm})).all_reduce_seconds(nbytes)

    assert seconds("tree", 64) == pytest.approx(2 * 3 * 0.125 + 2 * 64 / 64 / 0.92)
    assert [seconds("auto", nbytes) for nbytes in (64, 10**6)] == [seconds("tree", 64), seconds("ring", 10**6)]


def test_both_trees_share_the_way_between_two_racks() -> None:
    """Each rank sends half of its half to one other rank for each tree, over one connection of 64 bytes per second."""
    network = {"latency_seconds": 0.0, "bytes_per_second": 1e9, "sharing": "none", "racks": {"a": {}, "b": {}}, "all_reduce": "tree"}
    between = [{"racks": ["a", "b"], "bytes_per_second": 64.0}]
    cluster = built_of_nodes(node(1.0, count=2, rack="a"), node(1.0, count=2, rack="b"), network={**network, "between": between})

    assert Collectives(cluster).all_reduce_seconds(256) == pytest.approx(2 * 64 / 64 / 0.92, rel=1e-6)


@pytest.mark.parametrize(
    ("network", "microseconds"),
    [("1 Gbit/s", 50), ("99 Gbit/s", 50), ("100 Gbit/s", 8), ("3200 Gbit/s", 8), ("8 x 400 Gbit/s", 8), ("8 x 25 Gbit/s", 50)],
)
def test_a_card_of_100_gigabits_is_infiniband(network: str, microseconds: float) -> None:
    """50 µs between two machines by TCP, 8 µs by InfiniBand or RoCE; what is written goes first."""
    cluster = built(count=2, gpus=H100, inside="450 GB/s", network=network)
    own = built(count=2, gpus=H100, inside="450 GB/s", network=network, latency_seconds="20 us")

    assert cluster.path(0, 1).latency_seconds == pytest.approx(2e-6)
    assert cluster.path(0, 8).latency_seconds == pytest.approx(microseconds * US)
    assert own.path(0, 8).latency_seconds == pytest.approx(42e-6)


CARDS = ["8 x 400 Gbit/s", "8x400 Gbit/s", "8×400Gbit/s", "8*400 Gbit/s", {"cards": 8, "each": "400 Gbit/s"}, {"cards": 8, "each": 50e9}]


@pytest.mark.parametrize("cards", CARDS)
def test_a_message_has_one_of_several_cards_and_a_collective_all_of_them(cards: Any) -> None:
    """Eight messages at once have the sum."""
    cluster = built(count=2, gpus=H100, inside="450 GB/s", network=cards)
    one = boxes(2)

    assert cluster.path(0, 8).bytes_per_second == 50e9
    assert cluster.path(0, 1).bytes_per_second == 450e9
    assert cluster.capacity(("up", "rack machine0")) == 400e9
    for nbytes in (8, 10**9):
        assert Collectives(cluster).all_reduce_seconds(nbytes) == one.all_reduce_seconds(nbytes)


def test_cards_may_be_typed_and_be_those_of_all_machines() -> None:
    """On the command line, and in `network`. A machine with one GPU may have several, too."""
    typed = entries_of(by_hydra("cluster=machines", "cluster.machines=[{seconds_per_sample: 1 ms, network: 8 x 400 Gbit/s}]"))["cluster"]
    shared = parse_cluster({"name": "a", "machines": [{"gpus": H100, "inside": 1e11, "count": 2}], "network": "8 x 400 Gbit/s"})
    alone = parse_cluster({"name": "a", "machines": [{"count": 2, "seconds_per_sample": 1, "network": "2 x 10 Gbit/s"}]})

    assert typed["machines"][0]["network"] == {"cards": 8, "each": 50e9}
    assert shared.path(0, 8).bytes_per_second == 50e9
    assert (alone.path(0, 1).bytes_per_second, alone.capacity(("up", "rack machine1"))) == (1.25e9, 2.5e9)
    assert Collectives(alone).all_reduce_seconds(10**9) == pytest.approx(2 * (50e-6 + 0.5e9 / 2.5e9))


def test_pairs_by_nvlink_are_racks_inside_a_machine() -> None:
    """Each GPU has 56 GB/s to its neighbour and 12 GB/s to the others; the fifth is alone."""
    inside = {"pairs": "56 GB/s", "across": "12 GB/s"}
    cluster = built(count=2, gpus={"count": 5, "seconds_per_sample": 1}, inside=inside, network="10 Gbit/s")

    assert [cluster.nodes[rank].rack for rank in range(5)] == [f"machine0 pair{rank // 2}" for rank in range(5)]
    assert [cluster.path(0, rank).bytes_per_second for rank in (1, 2, 4)] == [56e9, 12e9, 12e9]
    assert [cluster.path(0, rank).latency_seconds for rank in (1, 2, 4, 5)] == pytest.approx([2e-6, 2e-6, 2e-6, 50e-6])
    assert cluster.capacity(("up", "rack machine0 pair0")) == 24e9
    assert cluster.capacity(("up", "rack machine0")) == 1.25e9


REFUSED = {
    "no cards": ({"network": "0 x 400 Gbit/s"}, "cluster.machines.0.network.cards must be at least 1, not 0"),
    "cards of nothing": ({"network": "8 x fast"}, "cluster.machines.0.network must be bytes per second, such as 1.25 GB/s"),
    "half of them": ({"network": {"cards": 8}}, "cluster.machines.0.network.each is missing: give it a value"),
    "pairs alone": ({"inside": {"pairs": 1e9}}, "cluster.machines.0.inside.across is missing: give it a value"),
    "one pair": (
        {"inside": {"pairs": 1e9, "across": 1e9}, "gpus": {"count": 2, "seconds_per_sample": 1}},
        "cluster.machines.0.inside.pairs does nothing in a machine with two GPUs, which are one pair: write inside: 56 GB/s",
    ),
    "a percentage": (
        {"overlap_share": 50},
        "cluster.machines.0.overlap_share is a share from 0 to 1, not 50: of a percentage take a hundredth",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_box_has_is_one_sentence(case: str) -> None:
    changed, sentence = REFUSED[case]

    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        built(**{"gpus": H100, "inside": 1e9, "network": 1e9, **changed})

    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({"nodes": [node(1.0, network="2 x 1 Gbit/s")]}, "nodes.0.network"),
        ({"server": {"seconds_per_update": 0, "network": "2 x 1 Gbit/s"}}, "server.network"),
        ({"network": "2 x 1 Gbit/s"}, "network.bytes_per_second"),
    ],
)
def test_cards_of_nodes_and_of_a_server_are_refused(parts: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^cluster\.{key} has several cards, which only machines have: give the rate of one$"):
        parse_cluster({**world(node(1.0)), **parts})
