"""A mistake in a cluster is one sentence that names its key."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import WIRE, built, timed, world
from worlds import node

from hetsim.cluster.network.collectives import ALGORITHMS, AUTO

RACK = {"racks": {"a": {}}}
IN_A = node(1.0, rack="a")


def crash(**fault: Any) -> dict[str, Any]:
    """Faults of one row."""
    return {"faults": {"schedule": [{"nodes": [0], **fault}]}}


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no nodes": ([], {}, "cluster.nodes is empty: describe at least one node"),
    "count": ([node(1.0, count=0)], {}, "cluster.nodes.0.count must be at least 1, not 0"),
    "too many": (
        [node(1.0, count=10**9)],
        {},
        "cluster.nodes.0.count must be at most 1000000, not 1000000000: so many nodes would not fit into memory",
    ),
    "no name": ([node(1.0)], {"name": " "}, "cluster.name must be a name, not ' '"),
    "a long name": ([node(1.0)], {"name": "x" * 1001}, "cluster.name must have at most 1000 letters, not 1001: shorten it"),
    "a list of names": ([node(1.0)], {"name": [1]}, "cluster.name must be a name, not [1]"),
    "no faults": (
        [node(1.0)],
        {"faults": 3},
        "cluster.faults must be a mapping of keys such as detection_seconds, regroup_seconds, schedule, lost_after_seconds, not 3",
    ),
    "faults of the same one": (
        [node(1.0), node(1.0)],
        {"faults": {"schedule": [{"nodes": [1, 1], "crash": 1}]}},
        "cluster.faults.schedule.0.nodes names a node twice: [1, 1]",
    ),
    "a crash in the moment of the join": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [0], "join": 1, "crash": 1}]}},
        "cluster.faults.schedule: node 0 is to go at 1 s, but is not there until 1 s: correct its rows",
    ),
    "free samples": ([node(0.0)], {}, "cluster.nodes.0.seconds_per_sample must be a finite number above zero, not 0.0"),
    "second row": ([node(1.0), node(-1.0)], {}, "cluster.nodes.1.seconds_per_sample must be a finite number above zero, not -1.0"),
    "a key": ([node(1.0, speed=3)], {}, "cluster.nodes.0.speed is unknown: known are count, seconds_per_sample, overhead_seconds"),
    "a typo": ([node(1.0, max_sample=3)], {}, "cluster.nodes.0.max_sample is unknown; did you mean 'max_samples'?"),
    "max_samples": ([node(1.0, max_samples=0)], {}, "cluster.nodes.0.max_samples must be at least 1, not 0"),
    "max_samples in parts": ([node(1.0, max_samples=1.5)], {}, "cluster.nodes.0.max_samples must be a whole number, not 1.5"),
    **{
        f"a quota of {quota!r}": ([node(1.0, cpu_quota=quota)], {}, f"cluster.nodes.0.cpu_quota must be {phrase}, not {quota!r}")
        for quota, phrase in (
            (0, "a finite number above zero"),
            (-0.5, "a finite number above zero"),
            (1.5, "a share of one core, between 0.001 and 1"),
            (1e-4, "a share of one core, between 0.001 and 1"),
            ("half", "a number"),
            (True, "a number"),
        )
    },
    "no capacity": (
        [node(1.0, uplink_bytes_per_second=0)],
        {},
        "cluster.nodes.0.uplink_bytes_per_second must be a finite number above zero, not 0",
    ),
    "no capacity for all": (
        [node(1.0)],
        {"network": {**WIRE, "downlink_bytes_per_second": 0}},
        "cluster.network.downlink_bytes_per_second must be a finite number above zero, not 0",
    ),
    "no capacity of the server": (
        [node(1.0)],
        {"server": {"uplink_bytes_per_second": 0.0}},
        "cluster.server.uplink_bytes_per_second must be a finite number above zero, not 0.0",
    ),
    "no capacity of a rack": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"uplink_bytes_per_second": 0}}}},
        "cluster.network.racks.a.uplink_bytes_per_second must be a finite number above zero, not 0",
    ),
    "no network": (
        [node(1.0)],
        {"network": {"latency_seconds": 0.0, "bytes_per_second": 0}},
        "cluster.network.bytes_per_second must be a finite number above zero, not 0",
    ),
    "negative latency": (
        [node(1.0, latency_seconds=-1)],
        {},
        "cluster.nodes.0.latency_seconds must be a finite number of at least zero, not -1",
    ),
    "shards": ([node(1.0)], {"server": {"shards": 0}}, "cluster.server.shards must be at least 1, not 0"),
    # tables
    "a table and a rate": (
        [node(1.0, table=[[1, 1.0]])],
        {},
        "cluster.nodes.0 has a table and seconds_per_sample, which the table replaces: leave one of them out",
    ),
    "a table that does not rise": (
        [{"count": 1, "table": [[4, 1.0], [4, 2.0]]}],
        {},
        "cluster.nodes.0.table must rise in samples, but 4 comes after 4: sort it, each size once",
    ),
    "a table that goes back": (
        [{"count": 1, "table": [[1, 1.0], [8, 1.0], [4, 2.0]]}],
        {},
        "cluster.nodes.0.table must rise in samples, but 4 comes after 8: sort it",
    ),
    "a table that ends falling": (
        [{"count": 1, "table": [[1, 1.0], [8, 0.5]]}],
        {},
        "cluster.nodes.0.table must not fall between its last two points, because that line continues beyond them: measure a larger one",
    ),
    "an empty table": ([{"count": 1, "table": []}], {}, "cluster.nodes.0.table is empty: give at least one [samples, seconds]"),
    "a point": ([{"count": 1, "table": [[1, 1.0], [2]]}], {}, "cluster.nodes.0.table.1 must be [samples, seconds], not [2]"),
    "a point in no time": (
        [{"count": 1, "table": [[1, 0.0]]}],
        {},
        "cluster.nodes.0.table.0.1 must be a finite number above zero, not 0.0",
    ),
    # laws
    "an unknown law": (
        [node(1.0, noise={"distribution": "lognormal", "s": 1.0})],
        {},
        "cluster.nodes.0.noise.distribution must be a continuous distribution of scipy.stats, not 'lognormal'; did you mean 'lognorm'?",
    ),
    "a function of scipy": (
        [node(1.0, noise={"distribution": "kstest"})],
        {},
        "cluster.nodes.0.noise.distribution must be a continuous distribution of scipy.stats, not 'kstest'",
    ),
    "a law of whole numbers": (
        [node(1.0, noise={"distribution": "poisson", "mu": 1.0})],
        {},
        "cluster.nodes.0.noise.distribution must be a continuous distribution of scipy.stats, not 'poisson'",
    ),
    "a law below zero": (
        [node(1.0, noise={"distribution": "norm", "loc": 1.0, "scale": 0.01})],
        {},
        "cluster.nodes.0.noise must never be negative, but norm with these parameters starts at -inf: choose others",
    ),
    "a law that begins below zero": (
        [node(1.0, noise={"distribution": "invgauss", "mu": 1.0, "loc": -0.5})],
        {},
        "cluster.nodes.0.noise must never be negative, but invgauss with these parameters starts at -0.5: choose others",
    ),
    "a common law below zero": (
        [node(1.0, noise={"distribution": "lognorm", "s": 1.0, "loc": -0.5})],
        {},
        "cluster.nodes.0.noise.loc must be a finite number of at least zero, not -0.5",
    ),
    "a law without its shape": ([node(1.0, noise={"distribution": "gamma"})], {}, "cluster.nodes.0.noise.a is missing: give it a value"),
    "a law with another's shape": (
        [node(1.0, noise={"distribution": "expon", "s": 1.0})],
        {},
        "cluster.nodes.0.noise.s is unknown: known are distribution, loc, scale",
    ),
    "a shape of nothing": (
        [node(1.0, noise={"distribution": "gamma", "a": 0.0})],
        {},
        "cluster.nodes.0.noise.a must be a finite number above zero, not 0.0",
    ),
    "a shape that its law does not have": (
        [node(1.0, noise={"distribution": "invgauss", "mu": -1.0})],
        {},
        "cluster.nodes.0.noise: invgauss has no such parameters as {'mu': -1.0}: see scipy.stats.invgauss",
    ),
    "a number for a law": (
        [node(1.0, noise=0.1)],
        {},
        "cluster.nodes.0.noise must be null or a mapping such as {distribution: lognorm, s: 0.1}, not 0.1",
    ),
    "unequal shares of nothing": (
        [node(1.0)],
        {"network": {**WIRE, "sharing_noise": {"distribution": "lognorm", "s": 0.3}}},
        "cluster.network.sharing_noise would do nothing, because no link is described that messages share: "
        "take cluster.network.sharing=max_min, give uplink_bytes_per_second and downlink_bytes_per_second, or leave it out",
    ),
    "a sharing of another name": (
        [node(1.0)],
        {"network": {**WIRE, "sharing": "fair"}},
        "cluster.network.sharing must be max_min or none, not 'fair'",
    ),
    "jitter": (
        [node(1.0)],
        {"network": {**WIRE, "jitter_seconds": {"distribution": "norm"}}},
        "cluster.network.jitter_seconds must never be negative, but norm with these parameters starts at -inf: choose others",
    ),
    "the server's noise": (
        [node(1.0)],
        {"server": {"noise": {"distribution": "laplace"}}},
        "cluster.server.noise must never be negative, but laplace with these parameters starts at -inf: choose others",
    ),
    "speeds by a law below zero": (
        [node({"distribution": "weibull_min", "c": 1e-4}, count=20)],  # type: ignore[arg-type]
        {},
        "cluster.nodes.0.seconds_per_sample must be above zero, but its distribution drew 0.0: give it a loc above zero",
    ),
    # slow spells
    "spells without a factor": (
        [node(1.0, slow_spells={"seconds_between": 1, "seconds_lasting": 1})],
        {},
        "cluster.nodes.0.slow_spells.factor is missing: give it a value",
    ),
    "spells without anything": (
        [node(1.0, slow_spells={"factor": 2})],
        {},
        "cluster.nodes.0.slow_spells.seconds_between, cluster.nodes.0.slow_spells.seconds_lasting are missing: give each a value",
    ),
    "spells of no time": (
        [node(1.0, slow_spells={"factor": 2, "seconds_between": 1, "seconds_lasting": 0})],
        {},
        "cluster.nodes.0.slow_spells.seconds_lasting must be a finite number above zero, not 0",
    ),
    "spells by no law": (
        [node(1.0, slow_spells={"factor": 2, "seconds_between": {"distribution": "expo"}, "seconds_lasting": 1})],
        {},
        "cluster.nodes.0.slow_spells.seconds_between.distribution must be a continuous distribution of scipy.stats, not 'expo'",
    ),
    # racks
    "a rack that is not there": (
        [node(1.0, rack="b")],
        {"network": {**WIRE, **RACK}},
        "node 0 is in rack 'b', which cluster.network.racks does not describe",
    ),
    "no racks at all": ([node(1.0, rack="b")], {}, "node 0 is in rack 'b', which cluster.network.racks does not describe: add it there"),
    "the server's rack": (
        [IN_A],
        {"network": {**WIRE, **RACK}, "server": {"rack": "aa"}},
        "the server is in rack 'aa', which cluster.network.racks does not describe: add it there; did you mean 'a'?",
    ),
    "a rack within none": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"within": "row"}}}},
        "cluster.network.racks.a is in rack 'row', which cluster.network.racks does not describe: add it there",
    ),
    "a rack within itself": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"within": "a"}}}},
        "cluster.network.racks has a circle, a in a: leave out the within of one of them",
    ),
    "a circle of racks": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"within": "b"}, "b": {"within": "c"}, "c": {"within": "b"}}}},
        "cluster.network.racks has a circle, a in b in c in b: leave out the within of one of them",
    ),
    "an empty rack": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {}, "b": {}}}},
        "cluster.network.racks.b has nothing in it: give rows of cluster.nodes rack: b, or leave it out",
    ),
    "a list of racks": (
        [IN_A],
        {"network": {**WIRE, "racks": ["a"]}},
        "cluster.network.racks must be a mapping from names to racks, such as {a: {uplink_bytes_per_second: 1e9}}, not ['a']",
    ),
    "oversubscription of nothing": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"oversubscription": 4}}}},
        "cluster.network.racks.a.oversubscription needs uplink_bytes_per_second of each of its nodes: add cluster.network.uplink",
    ),
    "oversubscription of uplinks alone": (
        [IN_A],
        {"network": {**WIRE, "uplink_bytes_per_second": 8, "racks": {"a": {"oversubscription": 4}}}},
        "cluster.network.racks.a.oversubscription needs downlink_bytes_per_second of each of its nodes: "
        "add cluster.network.downlink_bytes_per_second",
    ),
    "oversubscription by none": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"oversubscription": 0}}}},
        "cluster.network.racks.a.oversubscription must be a finite number above zero, not 0",
    ),
    "oversubscription and a link": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"oversubscription": 2, "downlink_bytes_per_second": 8}}}},
        "cluster.network.racks.a has an oversubscription and a link of its own: leave one of them out",
    ),
    # collectives
    "an unknown all-reduce": (
        [node(1.0)],
        {"network": {**WIRE, "all_reduce": "trees"}},
        f"cluster.network.all_reduce must be {' or '.join((*ALGORITHMS, AUTO))}, not 'trees'",
    ),
    "two levels without racks": (
        [node(1.0)],
        {"network": {**WIRE, "all_reduce": "two_level"}},
        "cluster.network.all_reduce=two_level needs each node in a rack, and node 0 is in none: give its row a rack",
    ),
    "two levels with a node in no rack": (
        [IN_A, node(1.0)],
        {"network": {**WIRE, **RACK, "all_reduce": "two_level"}},
        "cluster.network.all_reduce=two_level needs each node in a rack, and node 1 is in none: give its row a rack",
    ),
    # faults
    "faults of no node": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [], "crash": 1}]}},
        "cluster.faults.schedule.0.nodes names no node: list some by their rank, or say all",
    ),
    "faults of anyone": (
        [node(1.0)],
        {"faults": {"schedule": [{"crash": 1}]}},
        "cluster.faults.schedule.0.nodes is missing: give it a value",
    ),
    "faults of one that is not there": (
        [node(1.0, count=2)],
        {"faults": {"schedule": [{"nodes": [0], "crash": 1}, {"nodes": [2], "crash": 1}]}},
        "cluster.faults.schedule.1.nodes: there is no node 2, because the cluster has 2: count from 0",
    ),
    "faults of one from the end": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [-1], "crash": 1}]}},
        "cluster.faults.schedule.0.nodes must be at least 0, not -1",
    ),
    "faults of a number": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": 0, "crash": 1}]}},
        "cluster.faults.schedule.0.nodes must be a list of nodes by their rank, such as [0, 3], or all, not 0",
    ),
    "a fault that is none": (
        [node(1.0)],
        crash(),
        "cluster.faults.schedule.0 describes no fault: give it join, crash, repair, leave, stop, continue in seconds, "
        "or a drawn seconds_to_crash",
    ),
    "repair without crash": ([node(1.0)], crash(repair=2), "cluster.faults.schedule.0.repair does nothing without a crash: add it"),
    "repair before crash": (
        [node(1.0)],
        crash(crash=3, repair=2),
        "cluster.faults.schedule.0: repair at 2 s must come after crash at 3 s",
    ),
    "repair at crash": ([node(1.0)], crash(crash=3, repair=3), "cluster.faults.schedule.0: repair at 3 s must come after crash at 3 s"),
    "absences that overlap": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [0], "crash": 1, "repair": 4}, {"nodes": "all", "crash": 3, "repair": 5}]}},
        "cluster.faults.schedule: node 0 is to go at 3 s, but is not there until 4 s: correct its rows",
    ),
    "leaving and crashing": (
        [node(1.0)],
        crash(crash=4, leave=2),
        "cluster.faults.schedule: node 0 is to go at 4 s, but left for good: correct its rows",
    ),
    "a crash before joining": (
        [node(1.0)],
        crash(join=4, crash=2, repair=6),
        "cluster.faults.schedule: node 0 is to go at 2 s, but is not there until 4 s: correct its rows",
    ),
    "repair by law without crash": (
        [node(1.0)],
        crash(crash=1, seconds_to_repair={"distribution": "expon"}),
        "cluster.faults.schedule.0.seconds_to_repair does nothing without seconds_to_crash: add it, or give crash and repair in seconds",
    ),
    "two laws": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [0], "seconds_to_crash": {"distribution": "expon"}}] * 2}},
        "cluster.faults.schedule.1: node 0 has a distribution of crashes already: give it one",
    ),
    "a law behind the end": (
        [node(1.0)],
        crash(leave=1, seconds_to_crash={"distribution": "expon"}),
        "cluster.faults.schedule: node 0 cannot crash at drawn times, because it leaves for good: leave one of them out",
    ),
    "a fault by the name of another": (
        [node(1.0)],
        crash(crashes=1),
        "cluster.faults.schedule.0.crashes is unknown; did you mean 'crash'?",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_one_sentence_that_names_its_key(mistake: str):
    """Where it is, what it says, and what to do."""
    rows, parts, sentence = REFUSED[mistake]

    with pytest.raises(ValueError, match=r".") as caught:
        built(*rows, **parts)

    said = str(caught.value)
    assert said.startswith(sentence)
    assert "\n" not in said


def test_a_mistake_is_found_before_anything_runs():
    """From the config of a run, too."""
    with pytest.raises(ValueError, match=r"^cluster\.nodes\.0\.max_samples must be at least 1, not 0$"):
        timed("ssgd", workers=world(node(1.0, max_samples=0)), updates=1)
