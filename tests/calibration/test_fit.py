"""From readings to the cluster that they were made of."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import worlds

from hetsim.calibration.accounts import PROGRAM
from hetsim.calibration.cluster import fit_cluster
from hetsim.calibration.fit import Cold, FittedLine, GradientTimes, busy_speeds
from hetsim.calibration.measuring.balance import end_of_works, fit_balance
from hetsim.calibration.network import KEPT, work_of_ends
from hetsim.calibration.program import machine_seconds
from hetsim.calibration.readings import AT_OWN_PACE, IN_STEP, KINDS, OVERLAPPED, WHOLE, RankReadings, Reading
from hetsim.cluster.hosts import Host
from hetsim.cluster.model import Cluster, Network, NodeSpec, Server
from hetsim.cluster.network.racks import Between, Rack
from hetsim.cluster.parse.cluster import parse_cluster

SIZES = [8, 16, 32, 64, 128]
HELD_OUT = [22, 45, 90]


def readings(seconds: Any, *, deviation: float = 0.0, repeats: int = 40, seed: int = 0) -> list[Reading]:
    """Of gradients that take these CPU-seconds, times a factor with this deviation; the wall's clock says three times as much."""
    chance = random.Random(seed)
    found = []
    for _ in range(repeats):
        for size in (*SIZES, *HELD_OUT):
            cpu = seconds(size) * (chance.gammavariate(1 / deviation**2, deviation**2) if deviation else 1.0)
            found.append(Reading("alone", size, 3 * cpu, cpu))
    return found


def test_a_line_is_found() -> None:
    steps = GradientTimes.fit(readings(lambda size: 2e-3 + size * 1e-4), SIZES)

    assert (steps.line.constant, steps.line.slope) == pytest.approx((2e-3, 1e-4), rel=1e-9)
    assert steps.error == pytest.approx(0.0, abs=1e-12)
    assert not steps.takes_table
    assert steps.noise.deviation == pytest.approx(0.0, abs=1e-12)
    assert steps.as_row() == {"seconds_per_sample": 1e-4, "overhead_seconds": 2e-3}


def test_noise_is_found() -> None:
    """A gamma law with the deviation that was measured; its mean is 1."""
    steps = GradientTimes.fit(readings(lambda size: 2e-3 + size * 1e-4, deviation=0.2, repeats=2000), SIZES)
    noise = steps.as_row()["noise"]

    assert noise["a"] * noise["scale"] == pytest.approx(1.0, rel=1e-3)
    assert noise["scale"] == pytest.approx(0.04, rel=0.05)
    assert (steps.line.constant, steps.line.slope) == pytest.approx((2e-3, 1e-4), rel=0.02)


def test_a_table_is_taken_where_a_line_is_worse() -> None:
    """A cache that is full from 40 samples on."""
    steps = GradientTimes.fit(readings(lambda size: 1e-4 * size if size < 40 else 4e-4 * size - 12e-3), SIZES)

    assert steps.takes_table
    assert steps.error < steps.error_of_line / 3
    assert steps.as_row()["table"] == [[size, pytest.approx(1e-4 * size if size < 40 else 4e-4 * size - 12e-3)] for size in SIZES]


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({10: 1.0, 20: 1.0}, (1.0, 0.0)),
        ({10: 2.0, 20: 1.0}, (1.2, 0.0)),  # Σ 1/y over Σ 1/y²
        ({10: 1.0, 20: 4.0}, (0.0, 0.12)),  # Σ x/y over Σ (x/y)²
        ({10: 3.0}, (0.0, 0.3)),
    ],
)
def test_a_line_never_falls_nor_begins_below_zero(points: dict[int, float], expected: tuple[float, float]) -> None:
    """Relative errors have the least squares."""
    line = FittedLine.fit(points)

    assert (line.constant, line.slope) == pytest.approx(expected)


def test_speeds_of_busy_cores() -> None:
    """One over how much longer the same work takes; linear between two numbers, never rising; more gradients than cores are all cores."""
    assert busy_speeds(2, {2: 1.25, 3: 1.6}) == [1.0, 0.8]
    assert busy_speeds(2, {3: 1.25}) == [1.0, 0.8]
    assert busy_speeds(4, {4: 2.0}) == pytest.approx([1.0, 5 / 6, 2 / 3, 0.5], rel=1e-3)
    assert busy_speeds(2, {2: 0.9}) == [1.0, 1.0]
    assert busy_speeds(1, {2: 1.1}) == [1.0]
    assert busy_speeds(2, {4: 3.0}, 2) == [1.0, 1.0]
    assert busy_speeds(8, {8: 2.0}, 4) == pytest.approx([1.0, 1.0, 1.0, 1.0, 7 / 8, 3 / 4, 5 / 8, 0.5], rel=1e-3)


@pytest.mark.parametrize(("by_hetsim", "told"), [(False, "real-time priority to ranks 0, 1, 2. So"), (True, None)])
def test_it_is_told_where_threads_that_move_messages_have_no_priority(by_hetsim: bool, told: str | None) -> None:
    """hetsim's own quotas leave these threads out."""
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=2), seconds_per_update=9.0))
    among, around = measured()
    fits = partial(fit_cluster, given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=by_hetsim)
    assert fits().priority_warning is None
    for facts in around.facts:
        facts += [0.0] * (6 - len(facts))

    assert fits().priority_warning is None if told is None else told in (fits().priority_warning or "")


@pytest.mark.parametrize("balance", [0.0, 2e-3, 5e-3])
def test_the_time_until_an_idle_core_takes_over_is_found(balance: float) -> None:
    """From gradients of 5 to 9 ms of three workers on two cores. A thread waits for a core in its gradient or before it."""
    chance, host = random.Random(0), Host(cores=2, balance_seconds=balance)
    ranks: list[list[Reading]] = [[], [], []]
    ends, longest = [], []
    for _ in range(50):
        works = [chance.uniform(5e-3, 9e-3) for _ in ranks]
        longest.append(max(works))
        ends.append(together := end_of_works(host, works))
        for rank, (found, work) in enumerate(zip(ranks, works, strict=True)):
            waits = 0.0 if rank == 0 else together - work
            found += [Reading("in training", 32, together - waits, work), Reading(IN_STEP, 0, 1e-3, 1e-3)]
            found += [Reading("update in training", 0, 2e-4, 2e-4), Reading("agreement", 0, 1e-4, 1e-4)]
            found += [Reading(PROGRAM, 0, 2e-4 + waits, 2e-4)]
    measured = RankReadings(ranks, [])

    seconds, together = fit_balance(measured, (0, 1, 2), Host(cores=2))
    assert seconds == pytest.approx(balance, abs=2e-5)
    assert together == pytest.approx(fmean(ends), rel=3e-2)
    assert fit_balance(measured, (0, 1, 2), Host(cores=3)) == (0.0, pytest.approx(fmean(longest)))


def measured(*, quota: float = 0.0) -> tuple[RankReadings, RankReadings]:
    """Two workers and a server on one machine of two cores whose cores are 0.8 as fast when both are busy, and two on one each."""
    facts = [[7.0, 2.0, quota, 0.1 if quota else 0.0]] * 3
    among = [readings(lambda size, rank=rank: (1 + rank) * (1e-3 + size * 1e-5)) for rank in range(2)]
    for rank, found in enumerate(among):
        found += [Reading("beside 2", 32, 9.0, 1.25 * (1 + rank) * (1e-3 + 32e-5))] * 5
        found += [Reading("update", 0, 9.0, 5e-4), Reading("local update", 0, 9.0, 1e-4)] * 5
        found += [Reading("all_reduce", size, 2e-3 + size * 4e-9, 1e-4 + size * 1e-9) for size in (4_000, 1_000_000)]
    around = [[Reading("message", size, 3e-4 + size * 2e-9, 5e-5 + size * 5e-10) for size in (4_000, 1_000_000)] for _ in range(3)]
    around[2] += [Reading("update", 0, 9.0, 2e-3)] * 5
    return RankReadings(among, facts[:2]), RankReadings(around, facts)


def test_a_whole_cluster_is_found() -> None:
    """What was measured, what was given of links and memory, and nothing of the given times; both backends read it."""
    among, around = measured()
    given = parse_cluster(
        worlds.cluster(worlds.node(9.0, max_samples=500), worlds.node(9.0, uplink_bytes_per_second=1e8), seconds_per_update=9.0)
    )
    result = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False)
    cluster = parse_cluster(result.config)

    assert [(node.overhead_seconds, node.seconds_per_sample, node.seconds_per_update) for node in cluster.nodes] == [
        (pytest.approx(1e-3), pytest.approx(1e-5), 5e-4), (pytest.approx(2e-3), pytest.approx(2e-5), 5e-4)
    ]  # fmt: skip
    assert {node.seconds_per_local_update for node in cluster.nodes} == {1e-4}
    assert [(node.max_samples, node.uplink_bytes_per_second, node.host) for node in cluster.nodes] == [
        (500, None, "host0"),
        (None, 1e8, "host0"),
    ]
    assert (cluster.hosts["host0"].cores, cluster.hosts["host0"].busy_speeds) == (2, (1.0, 0.8))
    among.facts[0][1] = among.facts[1][1] = around.facts[0][1] = 4.0
    on_two_cores_each = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False, widths=(2, 2))
    assert on_two_cores_each.config["hosts"]["host0"]["busy_speeds"] == [1.0, 1.0, 0.9, 0.8]
    assert cluster.server.seconds_per_update == 2e-3
    assert cluster.network.latency_seconds == pytest.approx(2.5e-4)
    assert cluster.network.bytes_per_second == pytest.approx(5e8)
    cpu = cluster.network.cpu
    assert cpu is not None
    assert (cpu.send(1e6), cpu.receive(1e6), cpu.collective(1e6)) == pytest.approx((5.5e-4, 5.5e-4, 1.1e-3))
    assert cluster.network.all_reduce_table == ((4_000, pytest.approx(2.016e-3)), (1_000_000, pytest.approx(6e-3)))
    assert result.error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("quota", "level", "found"), [(0.5, 0.8, 0.8), (0.5, 1.3, 1.0), (0.0, 0.8, 1.0)])
def test_under_a_quota_gradients_in_a_row_set_the_level(quota: float, level: float, found: float) -> None:
    """If they are faster: a process that has paused is slow at first, as the first half of them is here."""
    among, around = measured(quota=quota)
    for rank, its in enumerate(among.readings):
        its[:] = [reading for reading in its if reading.kind != "beside 2"]
        seconds = level * (1 + rank) * (1e-3 + 32e-5)
        its += [Reading("beside 2", 32, 9.0, slower * seconds) for slower in (3.0, 2.0, 0.9, 1.1)]
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=2)))

    result = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False)

    for rank, (node, steps) in enumerate(zip(parse_cluster(result.config).nodes, result.steps, strict=True)):
        assert (node.overhead_seconds, node.seconds_per_sample) == (
            pytest.approx(found * (1 + rank) * 1e-3, rel=1e-3), pytest.approx(found * (1 + rank) * 1e-5, rel=1e-3)
        )  # fmt: skip
        assert steps.noise.deviation == pytest.approx(0.1 if found < 1 else 0.0, abs=0.01)


def test_gradients_in_which_a_quota_stops_the_process_show_cold_caches() -> None:
    """They take 1 ms longer than others of their round, also where no pause was before them. Their level is that of the others."""
    among, _ = measured(quota=0.4)
    for rank, its in enumerate(among.readings):
        its[:] = [reading for reading in its if reading.kind != "beside 2"]
        seconds = 0.8 * (1 + rank) * (1e-3 + 32e-5)
        its += [Reading("beside 2", 32, stopped + seconds, seconds + stopped / 60) for _ in range(4) for stopped in (0.0, 0.06)]
        for stopped in (0.0, 0.06, 0.0, 0.06):
            its += [Reading("in training", 32, stopped + seconds, seconds + stopped / 60), Reading(IN_STEP, 0, 0.0, 1e-3)]
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=2)))

    cluster = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False).config)

    assert [node.overhead_seconds for node in cluster.nodes] == pytest.approx([8e-4, 1.6e-3])
    assert [node.cold(0.06) for node in cluster.nodes] == pytest.approx([1e-3] * 2, rel=1e-3)
    assert cluster.hosts["host0"].busy_speeds == ()


def test_an_exchange_beside_the_program_costs_more() -> None:
    """A round with it takes 1 ms longer than one in which the gradient waits, and is 0.5 ms longer because caches are cold."""
    among, _ = measured()
    nodes = in_training(among, 1.0, 5e-4)
    for its in among.readings:
        its += [Reading(WHOLE, 0, 9.0, 3e-3), Reading(OVERLAPPED, 0, 9.0, 4e-3)]
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=len(nodes))))

    cpu = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False).config).network.cpu

    assert cpu is not None
    assert cpu.overlap_seconds == pytest.approx(1.5e-3, rel=0.1)  # but for what two busy cores lose


def test_threads_that_hetsim_does_not_cap_do_not_use_the_server_s_quota() -> None:
    """With hetsim's own quotas, only the server's computing thread is capped, so its thread pays as without one."""
    among, around = measured(quota=0.5)
    for rank in range(2):
        around.readings[rank].append(Reading(AT_OWN_PACE, 1000, 2e-3, 1e-3, thread_seconds=6e-4))
    around.readings[2].append(Reading(AT_OWN_PACE, 0, 9.0, 1.0, thread_seconds=1e-3))
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=2)))

    config = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=True).config

    assert config["network"]["cpu"]["thread_seconds"] == pytest.approx(3e-4)
    assert config["server"]["program_seconds"] == pytest.approx(4e-4)


def test_what_is_described_of_a_server_stays_without_one() -> None:
    """Among workers, no server is measured."""
    among, _ = measured()
    server = {"seconds_per_update": 1e-3, "seconds_per_byte": 1e-9, "seconds_per_vector_operation": 1e-4}
    given = parse_cluster({**worlds.cluster(worlds.node(9.0, count=2)), "server": server})

    config = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False).config

    assert {key: config["server"][key] for key in server} == server


def test_local_steps_are_those_of_local_sgd_s_program() -> None:
    """If it was run, and their second half."""
    among, around = measured()
    among.readings[0] += [Reading("local step", 0, 9.0, seconds) for seconds in (5e-3, 5e-3, 3e-4, 5e-4)]
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=2)))

    config = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False).config

    assert [row["seconds_per_local_update"] for row in config["nodes"]] == [4e-4, 1e-4]


def test_gradients_at_the_same_time_may_have_several_sizes() -> None:
    """As local SGD's have where data end; a rank without samples has none."""
    among, _ = measured()
    for rank in range(2):
        among.readings[rank].append(Reading("beside 2", 16, 9.0, 1.25 * (1 + rank) * (1e-3 + 16e-5)))
    among.readings.append([reading for reading in among.readings[1] if not reading.kind.startswith("beside")])
    among.facts.append(among.facts[0])
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=3)))
    sizes = [SIZES] * 3

    config = fit_cluster(given, "lab", sizes, among=among, around=None, capped_by_hetsim=False).config

    assert config["hosts"]["host0"]["busy_speeds"] == [1.0, 0.8]


@pytest.mark.parametrize(
    ("quota", "process", "thread", "of_message", "left"),
    [
        (0.0, 3e-3, 1e-3, 3e-4, 4e-4),
        (0.0, 3e-3, 5e-4, 3e-4, 0.0),
        (0.5, 3e-3, 0.0, 3e-4, 3e-3 - 2 * 5.5e-4 - 6e-4),
        (0.5, 1.5e-3, 0.0, 2e-4, 0.0),
    ],
)
def test_a_server_pays_for_its_messages_once(quota: float, process: float, thread: float, of_message: float, left: float) -> None:
    """What both messages of an update cost its thread, less the `thread_seconds` of both. With a quota: what they cost its process.

    If that is less than both messages of other processes, a message costs the computing threads less.
    """
    among, around = measured(quota=quota)
    for rank in range(2):
        around.readings[rank].append(Reading(AT_OWN_PACE, 1000, 2e-3, 1e-3, thread_seconds=6e-4))
    around.readings[2] += [
        Reading(AT_OWN_PACE, 0, 9.0, process, thread_seconds=thread),
        Reading("corrected update", 0, 9.0, 2.5e-3),
    ]
    given = parse_cluster(worlds.cluster(worlds.node(9.0, count=2)))

    cluster = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False).config)

    assert cluster.network.cpu is not None
    assert cluster.network.cpu.thread_seconds == pytest.approx(of_message, rel=1e-3)
    assert cluster.server.program_seconds == pytest.approx(left, abs=1e-9)
    assert cluster.server.seconds_per_vector_operation == pytest.approx((2.5e-3 - 2e-3) / 5)


def drawn(chance: random.Random) -> float:
    """Seconds of a part: one in ten is zero, as by a clock that has not moved."""
    return 0.0 if chance.random() < 0.1 else 10 ** chance.uniform(-7, 0)


@pytest.mark.parametrize("seed", range(40))
def test_any_measurement_makes_a_cluster(seed: int) -> None:
    """Whatever the clocks said, the config is one that is read."""
    chance = random.Random(seed)
    num_workers, cores, width = chance.randint(1, 3), chance.choice([1.0, 2.0, 4.0]), chance.randint(1, 4)
    facts = [[7.0 + chance.randint(0, 1), cores, chance.choice([0.0, 0.5, 3.0]), 0.1] for _ in range(num_workers + 1)]
    sizes: dict[str, list[int]] = {key: [0] for key in KINDS} | {"alone": [*SIZES, *HELD_OUT] * 3, "first": SIZES, "in training": [32]}
    sizes |= {key: [4000, 4000, 1000000, 1000000] for key in ["all_reduce", "message", "message beside others"]}
    sizes |= {"cold": [0, 0, 3_000, 10_000, 100_000], "beside 2": [32], f"beside {num_workers}": [32]}
    among, around = (
        [[Reading(kind, size, *(drawn(chance) for _ in range(5))) for kind in sizes for size in sizes[kind] * 2] for _ in range(ranks)]
        for ranks in (num_workers, num_workers + 1)
    )
    given = parse_cluster(worlds.cluster(*[worlds.node(9.0) for _ in range(num_workers)]))
    found = fit_cluster(
        given, "lab", [SIZES] * num_workers, among=RankReadings(among, facts[:-1]), around=RankReadings(around, facts),
        capped_by_hetsim=False, widths=[width] * num_workers,
    )  # fmt: skip

    assert parse_cluster(found.config).num_workers == num_workers


FOUND: dict[type, set[str]] = {
    NodeSpec: {
        *("seconds_per_sample", "overhead_seconds", "table", "seconds_per_update", "noise", "cold_seconds", "cooling_seconds"),
        *("first_seconds", "program_seconds", "seconds_per_local_update"),
        *("host", "cpu_quota", "cpu_quota_period_seconds", "cpu_quota_covers_messages", "latency_seconds"),
    },
    Server: {
        *("seconds_per_update", "seconds_per_byte", "seconds_per_vector_operation", "noise", "shards", "latency_seconds"),
        *("host", "cpu_quota", "cpu_quota_period_seconds", "cpu_quota_covers_messages", "program_seconds"),
    },
    Network: {"latency_seconds", "bytes_per_second", "jitter_seconds", "sharing_noise", "all_reduce_table", "cpu", "racks", "between"},
    Rack: set(),
    Between: set(),
    Cluster: {"name", "nodes", "network", "server", "hosts", "calibrated"},
}
"""What a calibration finds or makes. A server's shards are one process, and latencies of ends and jitters are in the network's latency."""
REFUSED = {"slow_spells", "slowdown", "slowdown_period_seconds", "link_slowdown", "micro_batch", "loading", "faults"}
"""What does not go with measured hosts, or with a calibration."""
NOT_TYPED = {"assumed"}
"""What no key of a cluster sets."""


@pytest.mark.parametrize("part", FOUND)
def test_each_field_of_a_cluster_is_measured_or_kept(part: type) -> None:
    """A new field must be in one of these, so that no calibration loses what was described."""
    kept = set(KEPT.get(part, ()))

    assert kept & FOUND[part] == set()
    assert {field.name for field in dataclasses.fields(part)} - REFUSED - NOT_TYPED == kept | FOUND[part]


def test_what_is_kept_is_as_it_was_described() -> None:
    """Each key that a calibration keeps, with a value that is none of its defaults."""
    rates = {"uplink_bytes_per_second": 1e8, "downlink_bytes_per_second": 1e8, "half_duplex": True}
    own = {"max_samples": 500, "device": "cpu", "cost_per_hour": 1.5, "overlap_seconds_per_byte": 1e-9}
    rows = [worlds.node(9.0, rack=rack, **own, **rates) for rack in "ab"]
    racks = {**{rack: {**rates, "latency_seconds": 0.25, "message_bytes_per_second": 5e7, "within": "c"} for rack in "ab"}, "c": {}}
    between = [{"racks": ["a", "b"], "bytes_per_second": 2e7, "latency_seconds": 0.5}]
    network = {"latency_seconds": 0.0, "bytes_per_second": 1e9, "all_reduce": "two_level", "sharing": "none"}
    described = worlds.cluster(*rows, network={**network, "racks": racks, "between": between})
    described["server"] |= {"rack": "c", "device": "cpu", **rates}
    given = parse_cluster(described)
    among, around = measured()
    found = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False).config)

    for one, other in zip([*given.nodes, given.server, given.network], [*found.nodes, found.server, found.network], strict=True):
        kept = KEPT[type(one)]
        assert {key: getattr(other, key) for key in kept} == {key: getattr(one, key) for key in kept}
    assert found.network.racks == given.network.racks
    assert found.network.between == given.network.between


def test_a_given_link_is_not_measured_again() -> None:
    """Messages to the slower of two nodes take what its link is given with; what one message gets at most is that of the faster one."""
    among, around = measured()
    slopes = 1 / 1e7, 1 / 2e7
    for rank, slope in enumerate(slopes):
        around.readings[rank] = [Reading("message", size, 3e-4 + size * slope, 5e-5 + size * 5e-10) for size in (4_000, 1_000_000)]
    given = parse_cluster(worlds.cluster(worlds.node(9.0, uplink_bytes_per_second=1e7), worlds.node(9.0)))
    cluster = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=False).config)

    assert cluster.network.latency_seconds == pytest.approx(2.5e-4)
    assert cluster.network.bytes_per_second == pytest.approx(2e7)
    assert [cluster.message_seconds(rank, 2, 1e6) for rank in range(2)] == pytest.approx([0.10025, 0.05025])


def test_a_quota_that_the_system_imposes_covers_messages() -> None:
    """One of a container, which hetsim has not set; one that hetsim emulates is the given one."""
    among, around = measured(quota=0.4)
    given = parse_cluster(worlds.cluster(worlds.node(9.0, cpu_quota=0.2), worlds.node(9.0)))

    found, emulated = (
        parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, capped_by_hetsim=by_hetsim).config)
        for by_hetsim in (False, True)
    )
    of_system = [(node.cpu_quota, node.cpu_quota_period_seconds, node.cpu_quota_covers_messages) for node in (*found.nodes, found.server)]
    assert of_system == [(0.4, 0.1, True)] * 3
    of_hetsim = [
        (node.cpu_quota, node.cpu_quota_period_seconds, node.cpu_quota_covers_messages) for node in (*emulated.nodes, emulated.server)
    ]
    assert of_hetsim == [(0.2, 0.005, False), (None, None, False), (None, None, False)]


def test_speeds_of_busy_cores_are_measured_without_hetsims_caps() -> None:
    """What capped workers take beside others says little, as they are seldom at work at the same time."""
    among, around = measured()
    alone = [Reading("alone", 32, 9.0, 0.01), Reading("beside 2", 32, 9.0, 0.016)]
    all_reduces = [Reading("all_reduce", size, 3e-3, 1e-3 + size * 1e-9, 0.0, 4e-4 + size * 4e-10) for size in (4_000, 1_000_000)]
    free = RankReadings([[*alone, *all_reduces]] * 2, among.facts)
    given = parse_cluster(worlds.cluster(worlds.node(9.0, cpu_quota=0.2), worlds.node(9.0, cpu_quota=0.4)))
    config = fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=around, uncapped=free, capped_by_hetsim=True).config

    assert config["hosts"] == {"host0": {"cores": 2, "busy_speeds": [1.0, 0.625]}}
    assert [row["cpu_quota"] for row in config["nodes"]] == [0.2, 0.4]
    assert config["network"]["all_reduce_table"] == [[4_000, 3e-3], [1_000_000, 3e-3]]
    assert config["network"]["cpu"]["collective_seconds"] == pytest.approx(1e-3)
    assert config["network"]["cpu"]["collective_thread_share"] == pytest.approx(0.4)


def test_workers_on_machines_of_their_own_share_nothing() -> None:
    among, _ = measured()
    apart = RankReadings(among.readings, [[1.0, 2.0, 0.0, 0.0], [2.0, 4.0, 0.0, 0.0]])
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    config = fit_cluster(given, "lab", [SIZES, SIZES], among=apart, around=None, capped_by_hetsim=False).config

    assert [row["host"] for row in config["nodes"]] == ["host0", "host1"]
    assert config["hosts"] == {"host0": {"cores": 2}, "host1": {"cores": 4}}
    assert config["network"]["latency_seconds"] == pytest.approx(1e-3, rel=0.01)
    parse_cluster(config)


def test_readings_survive_their_file() -> None:
    among, _ = measured()

    assert RankReadings.of_json(among.as_json()) == among
    for reading in among.readings[0]:
        assert Reading.of_numbers(reading.as_numbers()) == reading


def test_what_a_pause_costs_is_found() -> None:
    """A part of the most, by the length of the pause; nothing that is within two percent of a gradient."""
    pauses = (0.0, 0.003, 0.01, 0.03, 0.1)
    cold = [Reading("cold", round(1e6 * pause), 9.0, 0.01 + 0.002 * (1 - math.exp(-pause / 0.02))) for pause in pauses for _ in range(3)]

    assert Cold.fit(cold).as_row() == pytest.approx({"cold_seconds": 0.002, "cooling_seconds": 0.02}, rel=1e-3)
    assert Cold.fit([Reading("cold", round(1e6 * pause), 9.0, 0.01 + 0.001 * pause) for pause in pauses]).as_row() == {}
    assert Cold.fit([]).as_row() == {}


def test_what_a_new_number_of_samples_costs_is_found() -> None:
    """The median, as the process's first gradients take longer still; nothing that is within five percent of a gradient."""
    steps = GradientTimes.fit(readings(lambda size: 2e-3 + size * 1e-4), SIZES)

    assert steps.first([0.5, 1.4e-3, 1.5e-3, 1.5e-3, 1.6e-3]) == pytest.approx(1.5e-3)
    assert steps.first([0.5, *[1e-4] * 4]) == 0.0
    assert steps.first([]) == 0.0


def test_first_gradients_are_compared_with_other_ones_in_training() -> None:
    """Those take 4 ms longer than gradients right after others, and first ones 6 ms, so kernels take 2 ms, less what busy cores lose."""
    among, _ = measured()
    for rank in range(2):
        among.readings[rank] += [Reading("first", size, 9.0, (1 + rank) * (1e-3 + size * 1e-5) + 6e-3) for size in (20, 29, 41)]

    assert [node.first_seconds for node in in_training(among, 1.0, 4e-3)] == pytest.approx([2e-3, 2e-3], rel=0.1)


def in_training(among: RankReadings, factor: float, longer: float, *, pause: float = 0.02) -> list[NodeSpec]:
    """The nodes of two workers whose gradients take so many times and seconds longer after an exchange of 20 ms."""
    for rank in range(2):
        cpu = factor * (1 + rank) * (1e-3 + 32e-5) + longer
        among.readings[rank] += [Reading("in training", 32, cpu, cpu), Reading(IN_STEP, round(1e6 * cpu), pause, 0.0)] * 5
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    return list(parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False).config).nodes)


def test_what_is_slower_beside_others_is_not_counted_twice() -> None:
    """Two workers compute half of the time each, on cores of which two busy ones have 0.8 of the speed: 1.125 times as long on average."""
    nodes = in_training(measured()[0], 1.125, 0.0, pause=1.125 * 1.5 * (1e-3 + 32e-5))

    assert [node.overhead_seconds for node in nodes] == pytest.approx([1e-3, 2e-3])
    assert all(node.cold_seconds < 1e-4 for node in nodes)


def test_gradients_that_follow_each_other_do_not_pay_for_exchanges() -> None:
    """What a gradient takes longer after an exchange is coldness; what it takes right after another one stays as measured."""
    among, _ = measured()
    sleeps = Cold(0.002, 0.02)
    for rank in range(2):
        among.readings[rank] += [Reading("cold", round(1e6 * pause), 9.0, 0.01 + sleeps(pause)) for pause in (0.0, 0.003, 0.01, 0.03, 0.1)]
    nodes = in_training(among, 1.0, 0.003)

    assert [node.overhead_seconds for node in nodes] == pytest.approx([1e-3, 2e-3])
    assert [node.cooling_seconds for node in nodes] == pytest.approx([0.02] * 2, rel=1e-3)
    assert [node.cold(0.02) for node in nodes] == pytest.approx([0.003] * 2, rel=0.1)  # but for what two busy cores lose


@pytest.mark.parametrize(
    ("quota", "extra", "small", "large"),
    [(0.0, 1e-3, 1e-3, 1e-3), (4.0, 1e-3, 1e-3, 1e-3), (0.0, -2e-3, 0.0, -2e-3), (0.5, 1e-3, 0.0, 0.0)],
)
def test_an_all_reduce_in_training_takes_as_long_as_the_last_rank_waits(quota: float, extra: float, small: float, large: float) -> None:
    """What it takes more than right after another one is added to all sizes, unless pauses of a quota are in it, which are simulated.

    A rank that ends it early waits in the agreement instead. Queues of links may make it shorter, for the largest size.
    """
    among, _ = measured(quota=quota)
    alone = 2e-3 + 1_000_000 * 4e-9
    agreement, early = 5e-4, 2e-4
    for waits in ((5e-3, 0.0), (0.0, 9e-3)):
        for rank, wait in enumerate(waits):
            among.readings[rank] += [
                Reading(IN_STEP, 0, alone + extra + wait - early, 1e-3), Reading("agreement", 0, agreement + early, agreement)
            ]  # fmt: skip
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    network = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False).config).network

    assert network.all_reduce_table == (
        (4_000, pytest.approx(2.016e-3 + small, rel=1e-3)),
        (1_000_000, pytest.approx(alone + large, rel=1e-3)),
    )


def test_an_all_reduce_in_training_is_what_simulated_gradients_leave_of_a_round() -> None:
    """Whenever each rank leaves the all-reduce and the agreement: rank 0 always waits 4 ms in one of both, and rank 1 in its program."""
    among, _ = measured()
    alone, agreement, together = 2e-3 + 1_000_000 * 4e-9, 5e-4, 0.03
    for rank in range(2):
        for late in (0.0, 4e-3):
            waits = (4e-3 - late, late, 0.0) if rank == 0 else (0.0, 0.0, 4e-3)
            among.readings[rank] += [
                Reading("in training", 32, together, 0.02), Reading(IN_STEP, 30_000, alone + 1e-3 + waits[0], 1e-3),
                Reading("update in training", 0, 2e-4, 2e-4), Reading("agreement", 0, agreement + waits[1], agreement),
                Reading(PROGRAM, 0, 3e-4 + waits[2], 3e-4),
            ]  # fmt: skip
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    found = fit_cluster(
        given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False, computing=lambda *_: (0.0, together)
    )
    network = parse_cluster(found.config).network

    assert network.all_reduce_table is not None
    assert network.all_reduce_table[-1] == (1_000_000, pytest.approx(alone + 1e-3 + 4e-3, rel=1e-3))


def test_messages_are_colder_in_training() -> None:
    """Two in each exchange: after a gradient of 10 to 40 ms, and as long after the first one."""
    cold, exchanges = Cold(0.004, 0.02), []
    for pause in (0.01, 0.02, 0.04):
        exchanges += [(pause, between, 0.001 + cold(pause) + cold(between)) for between in (0.005, 0.05)]

    assert Cold.fit_exchanges(exchanges, 0.001).as_row() == pytest.approx({"cold_seconds": 0.004, "cooling_seconds": 0.02}, rel=1e-3)
    assert Cold.fit_exchanges([(0.01, 0.01, 0.001)] * 5, 0.001) == Cold()


def test_an_exchange_is_measured_by_what_both_messages_cost() -> None:
    """50 µs and 0.5 ns a byte each, alone; in training both messages of an exchange cost 3 ms, of which the thread has 0.4 ms."""
    _, around = measured()
    for rank in range(2):
        around.readings[rank] += readings(lambda size: 1e-3 + size * 1e-5, repeats=4)
        around.readings[rank] += [Reading(AT_OWN_PACE, 50_000, 0.05, 3e-3, thread_seconds=4e-4)] * 20
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    cpu = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=None, around=around, capped_by_hetsim=False).config).network.cpu

    assert cpu is not None
    assert cpu.thread_seconds == pytest.approx(2e-4)
    assert cpu.send(1e6) + cpu.receive(1e6) + 2 * (cpu.thread_seconds + cpu.cold(0.05)) == pytest.approx(3e-3, rel=0.02)


@pytest.mark.parametrize("kind", ["agreement", "gather"])
def test_agreeing_and_gathering_are_measured(kind: str) -> None:
    among, _ = measured()
    among.readings[0] += [Reading(kind, 0, 9.0, 4e-4, thread_seconds=7e-4), Reading(kind, 0, 9.0, 6e-4)]
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    network = parse_cluster(fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False).config).network

    assert network.cpu is not None
    assert getattr(network.cpu, f"{kind}_seconds") == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ((7.0, 7.0), 1.2 / 2),  # of both processes 0.6 s, of their machine 1.2 s
        ((7.0, 8.0), (1.2 + 1.2) / 2),  # two machines with 1.2 s each
    ],
)
def test_what_the_kernel_does_counts(machines: tuple[float, float], expected: float) -> None:
    """Where the machine has worked more than the processes on it, they share that."""
    found = [[Reading("message", 100, 9.0, cpu, 1.2, interrupt_seconds=1.0)] for cpu in (0.2, 0.4)]

    assert work_of_ends(RankReadings(found, [[machine, 2.0, 0.0, 0.0] for machine in machines]), "message", (0, 1)) == {
        100: pytest.approx(expected)
    }


def test_what_other_programs_do_does_not_count() -> None:
    """Interrupts move packets; a program that began after the first second, in which nothing is measured, has none."""
    found = RankReadings(
        [[Reading("message", 100, 9.0, cpu, 4.2, interrupt_seconds=0.1)] for cpu in (0.2, 0.4)], [[7.0, 2.0, 0.0, 0.0]] * 2
    )

    assert work_of_ends(found, "message", (0, 1)) == {100: pytest.approx(0.7 / 2)}


def test_without_a_reading_of_the_machine_processes_count() -> None:
    found = RankReadings([[Reading("message", 100, 9.0, 0.2)], [Reading("message", 100, 9.0, 0.4)]], [[7.0, 2.0, 0.0, 0.0]] * 2)

    assert work_of_ends(found, "message", (0, 1)) == {100: pytest.approx(0.3)}


def test_the_machines_work_is_counted() -> None:
    """At least what this process does; the clock has steps of 10 ms."""
    (before, _), began = machine_seconds(), time.process_time()
    if before == 0.0:
        pytest.skip("this system has no /proc/stat")
    while time.process_time() < began + 0.2:
        sum(range(1000))

    assert machine_seconds()[0] - before >= 0.15


def test_a_cluster_names_the_files_of_what_was_measured(tmp_path: Path) -> None:
    """Of one node whose gradients have two modes; the other one's are a gamma law, and need no file."""
    chance = random.Random(0)
    among, _ = measured()
    for reading in among.of(0, "alone"):
        among.readings[0].remove(reading)
    among.readings[0] += [
        Reading("alone", size, 9.0, (1e-3 + size * 1e-5) * (2.0 if chance.random() < 0.13 else 1.0)) for _ in range(80) for size in SIZES
    ]
    given = parse_cluster(worlds.cluster(worlds.node(9.0), worlds.node(9.0)))
    found, without = (
        fit_cluster(given, "lab", [SIZES, SIZES], among=among, around=None, capped_by_hetsim=False, beside=beside)
        for beside in (str(tmp_path / "lab"), None)
    )
    for file, noise in found.laws.items():
        Path(file).write_text(noise.as_csv())
    nodes = parse_cluster(found.config).nodes

    assert [*found.laws] == [str(tmp_path / "lab-node0.csv")]
    assert nodes[0].noise is not None
    assert max(nodes[0].noise.values) / min(nodes[0].noise.values) == pytest.approx(2.0, rel=0.1)
    assert nodes[1].noise is None
    assert without.laws == {}
    assert without.config["nodes"][0]["noise"]["distribution"] == "gamma"
