"""A calibration on a busy machine is not trustworthy, and every prediction from it says so."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import worlds

from hetsim.calibration import cluster as calibrated_cluster
from hetsim.calibration.cluster import doubts
from hetsim.calibration.composition import Part, compose_cluster
from hetsim.calibration.fit import GradientTimes
from hetsim.calibration.readings import Reading
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.results.writing.remarks import remarks

SIZES = [8, 16, 32, 64, 128]
Load = Callable[[float, int, random.Random], tuple[float, float]]
"""Of a gradient's CPU-seconds on an idle machine and its number: its seconds and its CPU-seconds."""


def idle(cpu: float, _: int, chance: random.Random) -> tuple[float, float]:
    """A machine without other programs: 5 % noise."""
    cpu *= chance.gauss(1, 0.05)
    return 1.02 * cpu, cpu


def preempted(cpu: float, number: int, chance: random.Random) -> tuple[float, float]:
    """Another program has the core for a third of the time; caches stay warm."""
    seconds, cpu = idle(cpu, number, chance)
    return 1.5 * seconds, cpu


def crowded(cpu: float, _: int, chance: random.Random) -> tuple[float, float]:
    """Other programs empty the caches at random."""
    cpu *= chance.choice([0.6, 1.4])
    return cpu, cpu


def in_spells(cpu: float, number: int, chance: random.Random) -> tuple[float, float]:
    """For ten gradients of each hundred, another program shares the core's memory."""
    seconds, cpu = idle(cpu, number, chance)
    return (seconds * 1.8, cpu * 1.8) if number % 100 < 10 else (seconds, cpu)


def measured(load: Load, *, held_out: float = 1.0) -> list[Reading]:
    """Gradients of every size in turn under this load; those of held-out sizes take `held_out` times as long."""
    chance, found = random.Random(0), []
    for number in range(1600):
        size = (*SIZES, 22, 45, 90)[number % 8]
        cpu = (2e-3 + 1e-4 * size) * (1.0 if size in SIZES else held_out)
        found.append(Reading("alone", size, *load(cpu, number, chance)))
    return found


def of(readings: list[Reading], *, capped: bool = False) -> list[str]:
    """The doubts about a cluster of one node."""
    return doubts([GradientTimes.fit(readings, SIZES)], [readings], [capped])


def test_an_idle_machine_leaves_no_doubt() -> None:
    assert of(measured(idle)) == []


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (measured(preempted), "node 0: 53 % longer than its CPU-seconds"),
        (measured(crowded), "node 0: 40 % noise (at most 25 %)"),
        (measured(in_spells), "node 0: 10 % of its gradients in slow spells (at most 5 %)"),
        (measured(idle, held_out=1.3), "node 0: 23 % error at held-out batch sizes (at most 10 %)"),
    ],
    ids=["preempted", "crowded", "in spells", "held out"],
)
def test_each_kind_of_load_is_a_doubt(readings: list[Reading], reason: str) -> None:
    """The clause names the node, the value and the threshold."""
    assert any(clause.startswith(reason) for clause in of(readings)), of(readings)


def test_a_capped_node_waits_by_design() -> None:
    """For its quota, and not for other programs."""
    assert of(measured(preempted), capped=True) == []


CALIBRATED: dict[str, Any] = {
    "date": "2026-11-25",
    "machine": "x",
    "workload": "phantom",
    "num_parameters": 1000,
    "samples": [1, 999],
    "dtype": "float32",
    "torch": "2.11",
    "threads": 1,
    "device": "cpu",
    "error": 0.01,
}


def predicted(**more: Any) -> list[str]:
    """The warnings of a simulated run on a cluster that was calibrated."""
    described = {**worlds.cluster(worlds.node(1e-4, count=2)), "calibrated": {**CALIBRATED, **more}}
    made = worlds.experiment("method=ssgd", "workload=phantom", cluster=described, workload={"num_parameters": 1000}, budget={"updates": 2})
    return [warning for warning in remarks(worlds.simulate(made).simulation.record.outcome()) if "calibration" in warning]


def test_every_prediction_repeats_the_doubts() -> None:
    """The first three, and how many more there are."""
    (warning,) = predicted(doubts=[f"node {rank}: 40 % noise (at most 25 %)" for rank in range(5)])

    assert warning.startswith("the calibration is not trustworthy: node 0: 40 % noise (at most 25 %); node 1: ")
    assert warning.endswith("node 2: 40 % noise (at most 25 %) (and 2 more): calibrate again while no other program runs")
    assert predicted() == []


def test_a_composed_cluster_has_the_doubts_of_its_parts() -> None:
    """By the name of the part."""
    described = worlds.cluster(worlds.node(1e-4))
    parts = [
        Part("a", {**described, "calibrated": CALIBRATED}),
        Part("b", {**described, "calibrated": {**CALIBRATED, "doubts": ["node 0: x"]}}),
    ]

    made = parse_cluster({**compose_cluster("both", parts), "faults": None, "hosts": None})

    assert made.calibrated is not None
    assert made.calibrated.doubts == ("b, node 0: x",)


@pytest.mark.parametrize(
    ("widths", "cores", "found"),
    [
        ([2, 2, 2], [2.0, 2.0, 4.0], ["nodes 0, 1: 4 threads on 2 cores (lower threads)"]),
        ([1, 1, 1], [1.0, 1.0, 1.0], []),
        ([2, 1, 4], [4.0, 4.0, 4.0], []),
        (
            [1, 2, 8],
            [2.0, 2.0, 4.0],
            ["nodes 0, 1: 3 threads on 2 cores (lower threads)", "node 2: 8 threads on 4 cores (lower threads)"],
        ),
    ],
)
def test_more_threads_than_cores_are_a_doubt(widths: list[int], cores: list[float], found: list[str]) -> None:
    """Nodes 0 and 1 are on one machine. Workers of one thread each share cores as described."""
    assert calibrated_cluster.crowded_machines(widths, [7.0, 7.0, 8.0], cores) == found
