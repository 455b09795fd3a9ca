"""A collective whose member is dead does not complete: the others learn of the loss, regroup, and repeat the step without it."""

from __future__ import annotations

from typing import Any

import pytest
from methods import METHODS
from worlds import Run, cluster, experiment, node, simulate

from hetsim.coordination.base import Coordination

SLOW = {"latency_seconds": 0.0, "bytes_per_second": 500.0, "sharing": "none"}
"""A network in which a message with the 1,000 parameters of the model takes 8 s."""
DETECTION = 10_000.0
LATER = 1e9
VICTIM = 1
FEW_STEPS = {
    "local_sgd": ["coordination.period=2"],
    "diloco": ["coordination.period=2"],
    "muloco": ["coordination.period=2"],
    "sparse_loco": ["coordination.period=2"],
    "streaming_diloco": ["coordination.period=4"],
    "halos": ["coordination.num_regions=2", "coordination.merge_every=3"],
}
COLLECTIVES = ("all_reduce", "gather")


def run(
    method: str,
    *choices: str,
    updates: int,
    nodes: int = 4,
    crashes: dict[int, float] | None = None,
    detection: float = DETECTION,
    **more: Any,
) -> Run:
    """A timing-only run on equal nodes, of which some crash for good."""
    on = cluster(node(1.0, count=nodes), network=SLOW)
    schedule = [{"nodes": [rank], "crash": seconds} for rank, seconds in (crashes or {}).items()]
    on["faults"] = {"detection_seconds": detection, "schedule": schedule, **more}
    words = ["workload=phantom", *FEW_STEPS.get(method, []), *choices]
    workload = {"num_parameters": 1000, "num_samples": 10_000}
    return simulate(
        experiment(f"method={method}", *words, cluster=on, batch_size=4 * nodes, budget={"updates": updates}, workload=workload),
        trace="full",
    )


def exchanges(run: Run) -> list[tuple[float, float]]:
    """When vectors of the victim are exchanged: from a message's sending, or from the last entry of a collective, to the end."""
    collectives = run.rows(*COLLECTIVES)
    intervals = [(row.start, row.end) for row in run.rows("message") if row.rank == VICTIM and row.nbytes]
    for end in {row.end for row in collectives if row.rank == VICTIM}:
        intervals.append((max(row.start for row in collectives if row.end == end), end))
    return sorted(intervals)


def coordination(run: Run) -> Coordination:
    """The coordination of a run."""
    made: Coordination = run.simulation.experiment.coordination
    return made


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.sampled(20)
def test_nothing_of_a_member_that_dies_in_its_first_exchange_is_ever_applied(method: str):
    """The survivors make all versions, without it. Where a version needs everyone, none is made before the loss is noticed."""
    start, end = exchanges(run(method, updates=3))[0]
    crash = (start + end) / 2

    its = run(method, updates=3, crashes={VICTIM: crash})

    assert end > start
    assert len(its.seconds) == 3
    assert all(c.rank != VICTIM for group in its.applied for c in group)
    if coordination(its).regroups and not coordination(its).needs_server:
        assert its.seconds[0] > crash + DETECTION


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.sampled(16)
def test_no_collective_ends_between_the_death_of_a_member_and_its_detection(method: str):
    """At whatever second it dies: its own collectives end before, and the others' before or after it is noticed."""
    undisturbed = run(method, updates=4)
    for part in range(1, 12):
        crash = undisturbed.seconds[-1] * part / 12 + 0.01

        its = run(method, updates=4, crashes={VICTIM: crash})

        rows = its.rows(*COLLECTIVES)
        assert all(row.end <= crash for row in rows if row.rank == VICTIM)
        assert not any(crash < row.end <= crash + DETECTION for row in rows)
        assert len(its.seconds) == 4


@pytest.mark.parametrize("method", ["ssgd", "ddp", "dbs"])
def test_the_step_in_which_a_member_dies_is_repeated_by_the_others(method: str):
    """Three nodes compute 4 s and reduce 10 2/3 s; two compute 6 s and reduce 8 s. Dead at 5 s, noticed at 35 s, 14 s a step from then."""
    its = run(method, updates=3, nodes=3, crashes={2: 5.0}, detection=30.0)

    assert its.seconds == [49.0, 63.0, 77.0]
    assert [[(c.rank, c.samples) for c in group] for group in its.applied] == [[(0, 6), (1, 6)]] * 3
    assert [(row.start, row.end) for row in its.rows("all_reduce") if row.rank == 0] == [(41.0, 49.0), (55.0, 63.0), (69.0, 77.0)]


def test_a_reduction_of_a_dead_member_holds_up_all_later_ones():
    """Six buckets: the member dies in the second reduction. What is left of the step is repeated."""
    its = run("ddp", "coordination.bucket_bytes=700", updates=1, nodes=3, crashes={2: 5.0}, detection=30.0)
    undisturbed = run("ddp", "coordination.bucket_bytes=700", updates=1, nodes=3)

    assert len([row for row in its.rows("all_reduce") if row.rank == 2]) < len([r for r in undisturbed.rows("all_reduce") if r.rank == 2])
    assert not any(5.0 < row.end <= 35.0 for row in its.rows("all_reduce"))
    assert its.seconds[0] > 35.0 + 6.0


def test_a_regroup_whose_member_dies_begins_again_once_that_is_noticed():
    """Node 2 dies at 5 s, noticed at 35 s. The regroup would end at 55 s; node 1 dies at 40 s, noticed at 70 s: node 0 goes on at 90 s."""
    its = run("ssgd", updates=1, nodes=3, crashes={2: 5.0, 1: 40.0}, detection=30.0, regroup_seconds=20.0)

    assert [(row.start, row.end) for row in its.rows("regroup")] == [(70.0, 90.0)]
    assert its.seconds == [102.0]
