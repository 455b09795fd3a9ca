"""Nodes that are stopped: for a while, or for so long that they count as lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import Run, cluster, experiment, node, simulate

from hetsim.cluster.parse.cluster import parse_cluster


def stopped(*schedule: dict[str, Any], lost_after: float = 10.0, **faults: Any) -> dict[str, Any]:
    """Three nodes of a second a sample, on which this happens."""
    return {**cluster(node(1.0, count=3)), "faults": {"schedule": list(schedule), "lost_after_seconds": lost_after, **faults}}


def run(method: str, on: dict[str, Any], num_updates: int) -> Run:
    """A timing-only run."""
    return simulate(experiment(method, "workload=phantom", cluster=on, batch_size=3, budget={"updates": num_updates}), trace="full")


def history(run: Run) -> list[tuple[float, list[tuple[int, int]]]]:
    """(seconds, [(rank, first position)]) of each commit."""
    return [(at, [(c.rank, c.batch.start) for c in group]) for at, group in zip(run.seconds, run.applied, strict=True)]


def test_an_all_reduce_waits_for_a_node_that_is_stopped_for_a_while() -> None:
    """Stopped from 2.5 to 6 s, half-way through a gradient, which ends 3.5 s later. Nobody is lost."""
    its = run("method=ssgd", stopped({"nodes": [1], "stop": 2.5, "continue": 6.0}), 4)

    assert its.seconds == [1.0, 2.0, 6.5, 7.5]
    assert not its.rows("down", "regroup")


def test_a_server_goes_on_with_the_others_and_gets_the_gradient_late() -> None:
    """Position 7, which worker 1 held, is applied at 6.5 s, and by it."""
    its = run("method=asgd", stopped({"nodes": [1], "stop": 2.5, "continue": 6.0}), 15)

    assert history(its)[6:8] == [(3.0, [(0, 6)]), (3.0, [(2, 8)])]
    assert history(its)[-1] == (6.5, [(1, 7)])


def test_a_node_that_is_stopped_for_longer_is_lost_and_returns() -> None:
    """Known at 4.5 s: then its position is handed out again, to worker 0 at 5 s; from 6 s on it has new ones."""
    its = run("method=asgd", stopped({"nodes": [1], "stop": 2.5, "continue": 6.0}, lost_after=2.0, detection_seconds=0.125), 15)

    assert [(row.start, row.end, row.rank) for row in its.rows("down")] == [(2.5, 6.0, 1)]
    assert history(its)[10:] == [(5.0, [(0, 11)]), (5.0, [(2, 12)]), (6.0, [(0, 7)]), (6.0, [(2, 13)]), (7.0, [(1, 14)])]


def test_a_crash_is_still_known_after_detection_seconds() -> None:
    """The others regroup at 4 s, when their gradients end, and at 14.5 s, when the stopped one counts as lost."""
    both = stopped({"nodes": [1], "crash": 2.5}, {"nodes": [2], "stop": 4.5}, detection_seconds=0.125)

    its = run("method=ssgd", both, 4)

    assert [row.start for row in its.rows("regroup") if row.rank == 0] == [3.0, 14.5]


def test_a_stop_is_multiplied_with_a_recorded_slowdown(tmp_path: Path) -> None:
    """Half as fast from 1 s on, and stopped from 2 to 4 s."""
    recorded = tmp_path / "slow.csv"
    recorded.write_text("seconds,factor\n0,1\n1,2\n")
    described = stopped({"nodes": [0], "stop": 2.0, "continue": 4.0})
    described["nodes"] = [node(1.0, slowdown=str(recorded)), node(1.0, count=2)]

    assert run("method=ssgd", described, 3).seconds == [1.0, 5.0, 7.0]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"nodes": [1], "continue": 2.0}, r"schedule\.0: continue at 2 s does nothing without a stop: correct it"),
        ({"nodes": [1], "stop": 3.0, "continue": 2.0}, r"schedule\.0: continue at 2 s must come after stop at 3 s: correct it"),
        ({"nodes": [1], "stop": 3.0, "leave": 4.0}, "node 1 is to go at 4 s, but left for good: correct its rows"),
    ],
)
def test_a_stop_that_makes_no_sense_is_one_sentence(row: dict[str, Any], sentence: str) -> None:
    """With the row and what is wrong."""
    with pytest.raises(ValueError, match=sentence):
        parse_cluster(stopped(row))
