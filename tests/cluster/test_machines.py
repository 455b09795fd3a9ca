"""Machines with GPUs that share a network card, as nodes, racks and links."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import timed

from hetsim.cluster.model import Cluster, Path
from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.resolved import resolved
from hetsim.results.writing.remarks import remarks

A100 = {"count": 2, "seconds_per_sample": "2.5 ms"}
T4 = {"count": 4, "seconds_per_sample": "12.5 ms"}
BOXES: list[dict[str, Any]] = [
    {"gpus": A100, "inside": "300 GB/s", "network": "1 Gbit/s"},
    {"gpus": T4, "inside": "12 GB/s", "network": "1 Gbit/s"},
]
GBIT = 1.25e8


def of(*machines: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A whole `cluster` of machines."""
    return {"name": "machines", "machines": list(machines), **more}


def built(*machines: dict[str, Any], **more: Any) -> Cluster:
    return parse_cluster(of(*machines, **more))


def way(cluster: Cluster, sender: int, receiver: int) -> tuple[float, list[tuple[str, float]]]:
    """The latency of a message in microseconds, and each link on its way with its capacity."""
    path: Path = cluster.path(sender, receiver)
    return round(path.latency_seconds * 1e6, 6), [
        (f"{direction} {owner}", cluster.capacity((direction, owner))) for direction, owner in path.links
    ]


def test_gpus_of_a_machine_share_its_card_and_have_a_link_each_inside() -> None:
    """The server has the card of the fastest machine."""
    cluster = built(*BOXES)

    assert [node.seconds_per_sample for node in cluster.nodes] == [2.5e-3] * 2 + [12.5e-3] * 4
    assert way(cluster, 0, 1) == (2, [("up 0", 300e9), ("down 1", 300e9)])
    assert way(cluster, 0, 2) == (50, [("up 0", 300e9), ("up rack machine0", GBIT), ("down rack machine1", GBIT), ("down 2", 12e9)])
    assert way(cluster, 5, 6) == (50, [("up 5", 12e9), ("up rack machine1", GBIT), ("down server", GBIT)])


def test_no_message_is_slower_than_its_links() -> None:
    """Whatever `network.bytes_per_second` says of machines without a card of their own."""
    cluster = built(
        {"gpus": A100, "inside": "300 GB/s"}, {"speed": 0.5}, reference={"seconds_per_sample": 1e-3}, network={"bytes_per_second": 1e6}
    )

    assert cluster.path(0, 1).bytes_per_second == 300e9
    assert way(cluster, 0, 2) == (50, [("up 0", 300e9), ("up rack machine0", 1e6), ("down 2", 1e6)])


def test_machines_with_one_gpu_are_nodes_in_no_rack_of_their_own() -> None:
    """Each has its card. A card may send and receive at different rates; the server has the fastest in each direction."""
    cluster = built(
        {"count": 3, "seconds_per_sample": 1e-3, "network": {"up": "20 Mbit/s", "down": "100 Mbit/s"}, "latency_seconds": "15 ms"},
        {"gpus": {"count": 1, "seconds_per_sample": 1e-3}, "network": "80 Mbit/s"},
    )

    assert way(cluster, 0, 3) == (15026, [("up 0", 2.5e6), ("down 3", 1e7)])
    assert way(cluster, 2, 4) == (15026, [("up 2", 2.5e6), ("down server", 1.25e7)])
    assert way(cluster, 4, 0) == (15026, [("up server", 1e7), ("down 0", 1.25e7)])
    assert not cluster.network.racks


def test_speed_divides_the_times_of_the_reference() -> None:
    """Its table, too. Other properties of a node stay as they are, and times of its own go first."""
    reference = {"seconds_per_sample": "2 ms", "overhead_seconds": "4 ms", "seconds_per_update": "1 ms"}
    noise = {"distribution": "lognorm", "s": 0.1}
    cluster = built({"count": 2, "speed": 0.5, "network": 1e8, "noise": noise, "max_samples": "2 k"}, {"network": 1e8}, reference=reference)
    of_table = built(
        {"speed": 4, "network": 1e8}, {"seconds_per_sample": 1, "network": 1e8}, reference={"table": [[1, "4 ms"], [8, "8 ms"]]}
    )

    assert [(node.seconds_per_sample, node.overhead_seconds, node.seconds_per_update) for node in cluster.nodes] == [
        (4e-3, 8e-3, 2e-3),
        (4e-3, 8e-3, 2e-3),
        (2e-3, 4e-3, 1e-3),
    ]
    assert cluster.nodes[1].max_samples == 2000
    assert [node.noise is None for node in cluster.nodes] == [False, False, True]
    assert [node.table for node in of_table.nodes] == [((1, 1e-3), (8, 2e-3)), ()]


def test_a_machine_may_stand_in_a_rack() -> None:
    """Of several, each copy is a rack of its own within it."""
    boxes = {"count": 2, "gpus": A100, "inside": 1e9, "network": 1e8, "rack": "a"}
    cluster = built(
        boxes,
        {"count": 2, "seconds_per_sample": 1, "network": 1e8, "rack": "b"},
        network={"racks": {"a": {"uplink_bytes_per_second": 1e7}, "b": {}}, "latency_seconds": 0},
        server={"rack": "b", "seconds_per_update": 0.5, "uplink_bytes_per_second": 1e9},
    )

    assert [node.rack for node in cluster.nodes] == ["machine0", "machine0", "machine1", "machine1", "b", "b"]
    assert [link for link, _ in way(cluster, 0, 2)[1]] == ["up 0", "up rack machine0", "down rack machine1", "down 2"]
    assert [link for link, _ in way(cluster, 3, 4)[1]] == ["up 3", "up rack machine1", "up rack a", "down 4"]
    assert cluster.server.seconds_per_update == 0.5
    assert (cluster.capacity(("up", "server")), cluster.capacity(("down", "server"))) == (1e9, 1e8)


def test_machines_are_numbered_as_they_stand() -> None:
    """From 0; copies and machines with one GPU count, too."""
    one = {"seconds_per_sample": 1, "network": 1e8}
    cluster = built({**BOXES[0], "count": 2}, {**one, "count": 3}, BOXES[1])

    assert list(cluster.network.racks) == ["machine0", "machine1", "machine5"]


def test_a_machine_may_have_gpus_of_several_kinds() -> None:
    """All are in its rack. Each kind has its own link inside, and the slower of two bounds what they send to each other."""
    fast, slow = {"count": 2, "seconds_per_sample": "1 ms", "inside": "32 GB/s"}, {"count": 1, "seconds_per_sample": "4 ms"}
    cluster = built({"count": 2, "gpus": [fast, slow], "inside": "16 GB/s", "network": "1 Gbit/s"}, {**BOXES[1]})

    assert [(node.rack, node.seconds_per_sample) for node in cluster.nodes[:6]] == 2 * [("machine0", 1e-3)] + [("machine0", 4e-3)] + 2 * [
        ("machine1", 1e-3)
    ] + [("machine1", 4e-3)]
    assert way(cluster, 0, 2) == (2, [("up 0", 32e9), ("down 2", 16e9)])
    assert way(cluster, 2, 3)[1] == [("up 2", 16e9), ("up rack machine0", GBIT), ("down rack machine1", GBIT), ("down 3", 32e9)]
    assert list(cluster.network.racks) == ["machine0", "machine1", "machine2"]


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ([], "cluster.machines.0.gpus is empty"),
        ([A100, {"seconds_per_sample": 1}], "cluster.machines.0.gpus.1 has no count"),
        ([A100, {**T4, "network": 1e9}], "cluster.machines.0.gpus.1.network"),
        ([A100, 3], "cluster.machines.0.gpus.1 must be a mapping"),
        ([A100, {"count": 1, "speed": 0.5}], "cluster.machines.0.gpus.1.seconds_per_sample is missing"),
    ],
)
def test_a_bad_kind_is_named(gpus: Any, sentence: str) -> None:
    """By its place in the list."""
    with pytest.raises(ValueError, match=sentence):
        built({"gpus": gpus, "inside": 1e9, "network": 1e9})


@pytest.mark.parametrize("machine", [{"seconds_per_sample": 1, "nework": 1e9}, {"gpus": A100, "inside": 1e9, "bandwidth": 1e9}])
def test_a_misspelt_network_has_its_hint(machine: dict[str, Any]) -> None:
    """It is not missing."""
    with pytest.raises(ValueError, match=r"cluster\.machines\.0\.\w+ is unknown; did you mean 'network'\?"):
        built(machine)


def ring(num_ranks: int, nbytes: float, latency: float, rate: float) -> float:
    return 2 * (num_ranks - 1) * (latency + nbytes / (num_ranks * rate))


def test_a_ring_in_the_order_of_machines_crosses_each_card_once() -> None:
    """2(N−1)/N of the vector leave each machine, and as much enters it: NCCL's ring, however unequal the machines are.

    Inside one machine a ring is as fast as its links.
    """
    nbytes = 102_228_128

    network = {"all_reduce": "ring"}

    def seconds(*machines: dict[str, Any], **more: Any) -> float:
        return Collectives(built(*machines, network=network, **more)).all_reduce_seconds(nbytes)

    assert seconds(*BOXES) == pytest.approx(ring(6, nbytes, 50e-6, GBIT), rel=1e-12)
    assert seconds(BOXES[0]) == pytest.approx(ring(2, nbytes, 2e-6, 300e9), rel=1e-12)
    assert seconds(*BOXES, leave_out=[0, 1]) == pytest.approx(ring(4, nbytes, 2e-6, 12e9), rel=1e-12)


def test_two_levels_send_less_over_the_cards_of_few_machines() -> None:
    """2(R−1)/R of the vector among R machines: 1 with two, where the ring of six sends 5/3. The steps inside come on top."""
    nbytes = 102_228_128
    cluster = built(*BOXES, network={"all_reduce": "two_level"})
    inside = 2 * 3 * (2e-6 + nbytes / 4 / 12e9)

    assert Collectives(cluster).all_reduce_seconds(nbytes) == pytest.approx(inside + 2 * (50e-6 + nbytes / 2 / GBIT), rel=1e-12)


def test_pushes_of_one_machine_share_its_card() -> None:
    """Two GPUs that pull 32 bytes at once through a card of 16 bytes per second take four seconds, and as long to push."""
    gpus = {"count": 2, "seconds_per_sample": 1.0}
    workers = of(
        {"gpus": gpus, "inside": 1e30, "network": 16.0, "latency_seconds": 0}, network={"latency_seconds": 0}, server={"latency_seconds": 0}
    )

    run = timed("asgd", workers=workers, updates=2, batch_size=2)

    assert run.seconds == pytest.approx([9.0, 9.0])


REFUSED = {
    "no times": ({"network": 1e8}, {}, "cluster.machines.0.seconds_per_sample is missing: give it, such as 2.5 ms, or a speed with"),
    "no card": (
        {"seconds_per_sample": 1},
        {},
        "cluster.machines.0.network is missing: give the rate of its network card, such as 1 Gbit/s",
    ),
    "a time for a card": (
        {"seconds_per_sample": 1, "network": "1 ms"},
        {},
        "cluster.machines.0.network must be bytes per second, such as",
    ),
    "no inside": ({"gpus": A100, "network": 1e8}, {}, "cluster.machines.0.inside is missing: give what each GPU sends inside, such as"),
    "an inside of one": (
        {"seconds_per_sample": 1, "network": 1e8, "inside": 1e9},
        {},
        "cluster.machines.0.inside does nothing in a machine with one GPU: leave it out, or write gpus: {count: 2, ",
    ),
    "a word for gpus, and an inside": (
        {"gpu": A100, "network": 1e8, "inside": 1e9},
        {},
        "cluster.machines.0.gpu is unknown; did you mean 'gpus'",
    ),
    "a name": (
        {"gpus": {"a100": 2}, "inside": 1e9, "network": 1e8},
        {},
        "cluster.machines.0.gpus has no count: write gpus: {count: 2, seconds_per_sample: 2.5 ms}, with the time of a100",
    ),
    "a speed and a time": (
        {"seconds_per_sample": 1, "speed": 2, "network": 1e8},
        {},
        "cluster.machines.0 has a speed and seconds_per_sample",
    ),
    "no reference": ({"speed": 2, "network": 1e8}, {}, "cluster.machines.0.seconds_per_sample is missing: give it, such as 2.5 ms, or a"),
    "a key in the wrong place": (
        {"gpus": A100, "inside": 1e9, "network": 1e8, "max_samples": 3},
        {},
        "cluster.machines.0.max_samples is not a key of a machine with gpus: keys of a node belong into cluster.machines.0.gpus",
    ),
    "a typo": ({"seconds_per_sample": 1, "network": 1e8, "max_sample": 3}, {}, "cluster.machines.0.max_sample is unknown"),
    "a typo of a gpu": ({"gpus": {**A100, "nois": 3}, "inside": 1e9, "network": 1e8}, {}, "cluster.machines.0.gpus.nois is unknown"),
    "a count": ({"count": 0, "seconds_per_sample": 1, "network": 1e8}, {}, "cluster.machines.0.count must be at least 1, not 0"),
    "half a card": ({"seconds_per_sample": 1, "network": {"up": 1e8}}, {}, "cluster.machines.0.network.down is missing: give it a value"),
    "nodes": ({"network": 1e8}, {"nodes": []}, "cluster has nodes and machines, which become nodes: leave one of them out"),
    "a rack of this name": (
        BOXES[0],
        {"network": {"racks": {"machine0": {}}}},
        "cluster.network.racks.machine0 is the name of a machine with several GPUs: call the rack otherwise",
    ),
    "a speed of none": (
        {"speed": 0, "network": 1e8},
        {"reference": {"seconds_per_sample": 1}},
        "cluster.machines.0.speed must be a finite",
    ),
    "a default card that no machine takes": (
        BOXES[0],
        {"network": {"bytes_per_second": "10 Gbit/s"}},
        "cluster.network.bytes_per_second does nothing, because every machine has its own network: leave it out, or set "
        "cluster.machines.0.network",
    ),
    "a default link": (
        {"seconds_per_sample": 1},
        {"network": {"bytes_per_second": 1e9, "uplink_bytes_per_second": 1e9}},
        "cluster.network.uplink_bytes_per_second does nothing, because machines have a network: ",
    ),
    "a link of a machine": (
        {"seconds_per_sample": 1, "network": 1e8, "uplink_bytes_per_second": 1e9},
        {},
        "cluster.machines.0.uplink_bytes_per_second does nothing, because the links of machines are their network and inside: write "
        "cluster.machines.0.network",
    ),
    "a link of gpus": (
        {"gpus": {**A100, "downlink_bytes_per_second": 1e9}, "inside": 1e9, "network": 1e8},
        {},
        "cluster.machines.0.gpus.downlink_bytes_per_second does nothing, because the links of machines are their network and inside: write "
        "cluster.machines.0.inside",
    ),
    "a rack of gpus": (
        {"gpus": {**A100, "rack": "a"}, "inside": 1e9, "network": 1e8},
        {},
        "cluster.machines.0.gpus.rack does nothing there: write cluster.machines.0.rack",
    ),
    "a latency of one gpu": (
        {"gpus": {"count": 1, "seconds_per_sample": 1, "latency_seconds": 1}, "network": 1e8},
        {},
        "cluster.machines.0.gpus.latency_seconds does nothing there: write cluster.machines.0.latency_seconds",
    ),
    "a server's network and link": (
        {"seconds_per_sample": 1, "network": 1e8},
        {"server": {"network": 1e8, "uplink_bytes_per_second": 1e9}},
        "cluster.server has a network and uplink_bytes_per_second, which replaces it: leave one of them out",
    ),
    "a server in a machine": (
        BOXES[0],
        {"server": {"rack": "machine0"}},
        "cluster.server is in rack machine0, so a network card is not its link: write server: {rack: machine0, network: 300 GB/s}",
    ),
    "a reference that nobody takes": (
        {"seconds_per_sample": 1, "network": 1e8},
        {"reference": {"seconds_per_sample": 1}},
        "cluster.reference does nothing, because every machine has times of its own: leave it out, or give a machine a speed",
    ),
    "two rates of one radio": (
        {"seconds_per_sample": 1, "network": {"up": 1e8, "down": 1e9}, "half_duplex": True},
        {},
        "cluster.machines.0 is half_duplex, so its network carries both directions at one rate: write network: 40 Mbit/s",
    ),
    "no such rack": (
        {**BOXES[0], "rack": "a"},
        {},
        "cluster.machines.0.rack is 'a', which cluster.network.racks does not describe: add it there",
    ),
    "a number of gpus": (
        {"gpus": 2, "network": 1e8},
        {},
        "cluster.machines.0.gpus must be a mapping, such as {count: 2, seconds_per_sample: 2.5 ms}, not 2",
    ),
    "two networks": (
        {"seconds_per_sample": 1, "network": 1e8},
        {"network": 2e8},
        "cluster.network.bytes_per_second does nothing, because every",
    ),
    "no network": ({"seconds_per_sample": 1}, {"network": 0}, "cluster.machines.0.network must be a finite number above zero, not 0"),
    "a throughput": (
        {"images_per_second": 400, "network": 1e8},
        {},
        "cluster.machines.0.images_per_second is unknown: write seconds_per_sample: 400 samples/s are 2.5 ms",
    ),
    "a throughput of gpus": (
        {"gpus": {"count": 2, "throughput": "fast"}, "inside": 1e9, "network": 1e8},
        {},
        "cluster.machines.0.gpus.throughput is unknown: write seconds_per_sample: 400 samples/s are 2.5 ms",
    ),
    "a throughput of the reference": (
        {"network": 1e8},
        {"reference": {"samples_per_second": "1000"}},
        "cluster.reference.samples_per_second is unknown: write seconds_per_sample: 1000 samples/s are 1 ms",
    ),
    "the name of a gpu": (
        {"gpus": {**A100, "name": "A100"}, "inside": 1e9, "network": 1e8},
        {},
        "cluster.machines.0.gpus.name is unknown: known are count, seconds_per_sample",
    ),
    "the name of a machine": ({**BOXES[0], "name": "box"}, {}, "cluster.machines.0.name is unknown: known are count, network, gpus"),
    "a typo of a server": (
        {"seconds_per_sample": 1, "network": 1e8},
        {"server": {"netwrok": 1}},
        "cluster.server.netwrok is unknown; did you mean 'network'?",
    ),
    "a model": (
        BOXES[0],
        {"parameters": "25.6 M"},
        "cluster.parameters is unknown: write model: {parameters: 25.6 M, bytes_per_parameter: 4}",
    ),
    "a reference": ({"network": 1e8}, {"reference": {"speed": 1}}, "cluster.reference.speed is unknown: known are seconds_per_sample"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_one_sentence_with_the_key_that_was_written(mistake: str) -> None:
    machine, more, said = REFUSED[mistake]
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        built(machine, **more)

    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("key", ["speed", "noise", "max_samples", "table", "latency_seconds", "half_duplex"])
def test_the_keys_of_gpus_that_are_known_are_all_that_are_taken(key: str) -> None:
    with pytest.raises(ValueError, match=rf"gpus\.zzz is unknown: known are .*\b{key}\b"):
        built({"gpus": {**A100, "zzz": 3}, "inside": 1e9, "network": 1e8})


def test_no_machines_are_no_cluster() -> None:
    with pytest.raises(ValueError, match=r"^cluster\.machines is empty: describe at least one machine$"):
        built()


def test_auto_is_a_device_of_machines_too() -> None:
    """As of nodes."""
    machines = [{"gpus": {**A100, "device": "auto"}}, {"device": "auto"}]

    assert resolved({"cluster": {"machines": machines}})["cluster"]["machines"] == [
        {"gpus": {**A100, "seconds_per_sample": 2.5e-3, "device": "cpu"}},
        {"device": "cpu"},
    ]


def test_what_is_assumed_of_a_server_is_known_and_is_no_warning() -> None:
    """A method without a server does not name what nobody has described."""
    card, rest = {"uplink_bytes_per_second", "downlink_bytes_per_second"}, {"latency_seconds", "seconds_per_update"}

    assert built(*BOXES).server.assumed == card | rest
    assert built(*BOXES, server={"network": "1 Gbit/s"}).server.assumed == rest
    racks = {"racks": {"a": {}}}
    assert built({**BOXES[0], "rack": "a"}, network=racks, server={"rack": "a"}).server.assumed == card | rest
    assert not remarks(timed("ssgd", workers=of(*BOXES), updates=2).simulation.outcome)
    (said,) = remarks(timed("ssgd", workers=of(*BOXES, server={"network": "1 Gbit/s", "shards": 2}), updates=2).simulation.outcome)
    assert said.endswith("feel cluster.server.shards, cluster.server.uplink_bytes_per_second, cluster.server.downlink_bytes_per_second")
