"""What holds of every method under every allocation; a new method is one more row of the table in worlds.py."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from threads import run_in_threads
from worlds import ALLOCATIONS, COORDINATIONS, UNEVEN, Run, cluster, method, node, rows_of, simulate

from hetsim.runtime.recording.trace import DETAILS
from hetsim.sim import Simulator

pytestmark = pytest.mark.slow

EVERY_METHOD = pytest.mark.parametrize(("coordination", "allocation"), [(c, a) for c in COORDINATIONS for a in ALLOCATIONS])
KEYS: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 31, "cluster": UNEVEN}


def summary(run: Run) -> dict[str, Any]:
    """The run in numbers."""
    return run.simulation.metrics.summary()


@EVERY_METHOD
@pytest.mark.sampled(5)
def test_it_converges_to_the_quadratics_known_optimum(coordination: str, allocation: str):
    """Where all samples agree on the optimum, every method finds it."""
    workload = {"num_parameters": 8, "num_samples": 100, "condition": 4, "noise": 0.0}

    run = simulate(
        method(coordination, allocation, "workload=quadratic", **{**KEYS, "workload": workload}, dtype="float64", budget={"epochs": 100})
    )

    assert (run.weights - run.simulation.task.optimum).abs().max() < 1e-3
    assert (run.simulation.task.initial() - run.simulation.task.optimum).abs().max() > 0.5


def files(folder: Path, coordination: str, allocation: str, seed: int) -> dict[str, bytes]:
    """What a run leaves, but for the time that the user waited."""
    experiment = method(coordination, allocation, "workload=quadratic", **KEYS, seed=seed, trace="full", budget={"epochs": 3})
    Simulator().run(experiment, folder, "")
    return {name: (folder / name).read_bytes() for name in ("trace.parquet", "curve.csv")}


@EVERY_METHOD
def test_the_same_seed_gives_the_same_run_byte_for_byte(tmp_path: Path, coordination: str, allocation: str):
    """Trace and curve; another seed has other times and another curve."""
    one, again, other = (files(tmp_path / name, coordination, allocation, seed) for name, seed in (("one", 7), ("again", 7), ("other", 8)))

    assert one == again
    assert one["trace.parquet"] != other["trace.parquet"]
    assert one["curve.csv"] != other["curve.csv"]


@EVERY_METHOD
@pytest.mark.sampled(5)
def test_the_same_seed_gives_the_same_parameters(coordination: str, allocation: str):
    """Bit by bit; another seed gives others."""
    one, again, other = (
        simulate(method(coordination, allocation, cluster=UNEVEN, batch_size=256, seed=seed, budget={"epochs": 1})) for seed in (7, 7, 8)
    )

    assert torch.equal(one.weights, again.weights)
    assert not torch.equal(one.weights, other.weights)


@EVERY_METHOD
def test_a_phantom_takes_exactly_the_time_of_what_it_stands_for(coordination: str, allocation: str):
    """The same trace, row by row, as a real vector of as many bytes."""
    real, phantom = (
        simulate(method(coordination, allocation, f"workload={workload}", **KEYS, budget={"epochs": 3}), trace="full")
        for workload in ("quadratic", "phantom")
    )

    assert real.rows() == phantom.rows()
    assert {"gradient", "update", "apply", "commit"} <= {row.kind for row in phantom.rows()} | (
        {"update"} if coordination == "all_reduce" else set()
    )


@EVERY_METHOD
def test_evaluating_often_changes_no_time(coordination: str, allocation: str):
    """Evaluation is off the clock."""
    often, seldom = (
        simulate(
            method(coordination, allocation, "workload=quadratic", **KEYS, evaluate_every_epochs=every, budget={"epochs": 3}), trace="full"
        )
        for every in (0.01, 100)
    )

    assert often.rows() == seldom.rows()
    assert torch.equal(often.weights, seldom.weights)
    assert [point.version for point in often.simulation.curve.points] == list(range(often.states[-1].version + 1))
    assert [point.version for point in seldom.simulation.curve.points] == [0, seldom.states[-1].version]


@EVERY_METHOD
def test_the_summary_does_not_need_the_trace(coordination: str, allocation: str):
    """It is added up as the run goes, and agrees with the rows where there are rows."""
    runs = {
        detail: simulate(method(coordination, allocation, "workload=phantom", **KEYS, budget={"epochs": 3}), trace=detail)
        for detail in DETAILS
    }

    full, commits, none = (summary(runs[detail]) for detail in ("full", "commits", "none"))
    assert full == commits == none
    assert runs["commits"].rows() == runs["full"].rows("commit") != []
    assert runs["none"].rows() == []


def test_the_curve_has_the_version_that_completes_each_epoch():
    """(seconds, version, samples) at evaluate_every_epochs=1: the first commit at or behind the end of each epoch, and the last."""
    workers = cluster(node(0.125, count=2))
    experiment = method(
        "all_reduce", "even", "workload=quadratic", **{**KEYS, "cluster": workers, "batch_size": 40}, budget={"epochs": 2.5}
    )

    run = simulate(experiment)

    points = [(point.seconds, point.version, point.samples) for point in run.simulation.curve.points]
    assert points == [(0.0, 0, 0), (7.5, 3, 120), (12.5, 5, 200), (run.seconds[-1], 7, 250)]


def test_the_curve_has_the_first_version_at_or_after_each_multiple_of_seconds():
    """Steps of 2.5 s: at 4, 8 and 12 s those of 5, 10 and 12.5 s; beside the epochs, of which one ends at 7.5 s, no version twice."""
    workers = cluster(node(0.125, count=2))
    keys = {**KEYS, "cluster": workers, "batch_size": 40, "evaluate_every_seconds": 4.0}
    alone, both = (
        method("all_reduce", "even", "workload=quadratic", **keys, evaluate_every_epochs=epochs, budget={"updates": 6})
        for epochs in (None, 1)
    )

    runs = [simulate(experiment) for experiment in (alone, both)]

    assert [[point.seconds for point in run.simulation.curve.points] for run in runs] == [
        [0.0, 5.0, 10.0, 12.5, 15.0],
        [0.0, 5.0, 7.5, 10.0, 12.5, 15.0],
    ]
    assert runs[0].seconds == runs[1].seconds


@pytest.mark.parametrize("coordination", ["server", "all_reduce"])
def test_the_curve_by_seconds_is_by_the_clock_of_the_run_in_processes_too(coordination: str):
    """Of the commits that the trace has, the first at or after each multiple; and the last."""
    made = method(
        coordination, "even", "workload=quadratic", **KEYS, evaluate_every_epochs=None, evaluate_every_seconds=1e-3, budget={"updates": 9}
    )

    run: Any = run_in_threads(made, finish=lambda run: run.close())[made.leader]

    commits = [row.end for row in rows_of(run.trace) if row.kind == "commit"]
    due = [now for before, now in pairwise([0.0, *commits]) if now // 1e-3 > before // 1e-3]
    assert len(commits) == 9
    assert [point.seconds for point in run.record.curve.points] == list(dict.fromkeys([0.0, *due, commits[-1]]))


@pytest.mark.parametrize("coordination", ["all_reduce", "server_with_a_barrier"])
def test_workers_that_take_the_very_same_step_compute_it_once(coordination: str):
    """Every rank of an all-reduce holds the same weights: simulating N of them costs one optimizer step an update, not N."""
    run = simulate(method(coordination, "even", "workload=quadratic", **KEYS, budget={"updates": 11}))

    assert run.num_steps == len(run.states) == 11
