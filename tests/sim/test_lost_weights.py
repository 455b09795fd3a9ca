"""A cluster that loses all nodes has lost the weights since the last checkpoint: what is repeated, and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from methods import METHODS
from worlds import NO_NETWORK, Run, cluster, experiment, node, simulate

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.errors import RunFailed
from hetsim.results.writing.remarks import remarks
from hetsim.runtime.recording.outcome import RunOutcome
from hetsim.sim import weight_checkpoints

SMALL = {"num_parameters": 1000, "num_samples": 10_000}
FEW_STEPS = {
    **{method: ["coordination.period=2"] for method in ("local_sgd", "diloco", "muloco", "sparse_loco")},
    "streaming_diloco": ["coordination.period=4"],
    "halos": ["coordination.num_regions=2", "coordination.merge_every=3"],
}


def run(
    *schedule: dict[str, Any], nodes: int = 1, method: str = "ssgd", updates: int = 7, network: dict[str, Any] = NO_NETWORK, **faults: Any
) -> Run:
    """A timing-only run with steps of a second on nodes that are absent by this schedule."""
    on = {**cluster(node(1.0, count=nodes), network=network), "faults": {"schedule": list(schedule), **faults}}
    words = [f"method={method}", "workload=phantom", *FEW_STEPS.get(method, [])]
    return simulate(
        experiment(*words, cluster=on, batch_size=nodes, budget={"updates": updates}, workload=SMALL, seed=faults.get("seed", 0))
    )


def outcome(run: Run) -> RunOutcome:
    """The outcome of a run."""
    ended: RunOutcome = run.simulation.outcome
    return ended


def versions(run: Run) -> list[tuple[float, int]]:
    """(seconds, version) of each commit."""
    return [(seconds, state.version) for seconds, state in zip(run.seconds, run.states, strict=True)]


SAVED = {"every": 3.0, "seconds": 0.5, "restart_seconds": 2.0}
GONE = {"nodes": "all", "crash": 5.25, "repair": 6.0}


def test_a_training_restarts_from_its_last_checkpoint():
    """Version 3 is saved from 3 to 3.5 s, versions 4 (4.5 s) and 5 are lost. Back at 6 s, restarted at 8 s; saved again at 11 s."""
    its = run(GONE, checkpoint=SAVED)

    assert versions(its) == [(1, 1), (2, 2), (3, 3), (4.5, 4), (9, 4), (10, 5), (11, 6), (12.5, 7)]
    assert outcome(its).num_restarts == 1


def test_without_a_checkpoint_it_begins_again_and_a_warning_says_what_to_type():
    its = run(GONE, updates=7)

    assert versions(its)[5:] == [(7.0 + k, 1 + k) for k in range(7)]
    assert sum("+cluster.faults.checkpoint.every=30min" in remark for remark in remarks(outcome(its))) == 1


def test_a_checkpoint_that_is_not_complete_does_not_count():
    """At 3.25 s, version 3 is half saved."""
    its = run({"nodes": "all", "crash": 3.25, "repair": 4.0}, updates=4, checkpoint=SAVED)

    assert versions(its) == [(1, 1), (2, 2), (3, 3), (7, 1), (8, 2), (9, 3), (10.5, 4)]


def test_a_crash_during_the_restart_begins_it_anew():
    """Back at 6 and at 8 s: the restart ends at 10 s."""
    its = run(GONE, {"nodes": "all", "crash": 7.0, "repair": 8.0}, checkpoint=SAVED, updates=5)

    assert versions(its)[-2:] == [(11, 4), (12, 5)]
    assert outcome(its).num_restarts == 1


def test_numbers_count_what_is_left_and_seconds_what_was_done():
    """Seven versions of one sample; eight and a part of another gradient were computed, for 8.75 s."""
    its = run(GONE, checkpoint=SAVED)

    ended = outcome(its)
    assert ended.applied.num_updates == ended.last.version == ended.last.num_samples == 7
    assert ended.applied.num_gradients == [7]
    assert [point.version for point in ended.points] == sorted(point.version for point in ended.points)
    assert ended.activity[0].iterations == 8
    assert ended.activity[0].compute_seconds == 8.75
    assert ended.activity[0].down_seconds == 0.75


def test_a_survivor_has_the_weights():
    """Two nodes, of which one is always there: nothing is read from a checkpoint, and no version is made twice."""
    its = run({"nodes": [0], "crash": 2.5, "repair": 4.25}, {"nodes": [1], "crash": 6.5, "repair": 8.0}, nodes=2, checkpoint=SAVED)

    assert [version for _, version in versions(its)] == list(range(1, 8))
    assert outcome(its).num_restarts == 0


def test_a_node_that_is_still_receiving_the_weights_does_not_have_them():
    """Node 1 is back at 4 s, and node 0 crashes while it sends the weights, which take 4 s."""
    slow = {**NO_NETWORK, "bytes_per_second": 1000.0}
    schedule = [{"nodes": [1], "join": 4.0}, {"nodes": [0], "crash": 6.0}]

    its = run(*schedule, nodes=2, network=slow, updates=4)

    assert versions(its) == [(2, 1), (8, 1), (10, 2), (12, 3), (14, 4)]
    assert outcome(its).num_restarts == 1


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.sampled(16)
def test_a_server_keeps_the_weights_and_nobody_else_does(method: str):
    """All nodes are away from 9.3 to 10.3 s. With a server, versions go on; without one, they begin again."""
    its = run({"nodes": "all", "crash": 9.3, "repair": 10.3}, nodes=4, method=method, updates=12)

    made = [version for _, version in versions(its)]
    before = [version for seconds, version in versions(its) if seconds < 10.3]
    ended = outcome(its)
    if ended.experiment.coordination.needs_server:
        assert made == list(range(1, 13))
        assert ended.num_restarts == 0
        assert not any("saves the weights" in remark for remark in remarks(ended))
    else:
        assert before
        assert made == [*before, *range(1, 13)]
        assert ended.num_restarts == 1
        assert ended.applied.num_updates == 12
        assert ended.last.num_samples == its.states[-1].num_samples


def test_checkpoints_cost_their_seconds_where_nothing_crashes():
    """Every third version: 3, 6, 9."""
    its = run(checkpoint=SAVED, updates=10, nodes=4)

    assert its.seconds == [1, 2, 3, 4.5, 5.5, 6.5, 8, 9, 10, 11.5]


@pytest.mark.parametrize(("every", "seconds", "restart"), [(10.0, 1.0, 2.0), (25.0, 0.0, 0.0), (40.0, 4.0, 6.0)])
@pytest.mark.sampled(2)
def test_the_mean_time_is_that_of_the_closed_form(every: float, seconds: float, restart: float):
    """With exponential losses, a segment w with a checkpoint c takes (M + D) e^(R/M) (e^((w + c)/M) - 1) on average.

    Daly, FGCS 22 (2006), doi 10.1016/j.future.2004.11.016, where D is 0; with D: Herault and Robert, Fault-Tolerance Techniques for
    High-Performance Computing (2015), doi 10.1007/978-3-319-20943-2, proposition 1.1. The first attempt has no restart before it.
    """
    mean, down, updates = 30.0, 3.0, 60
    faults = {
        "checkpoint": {"every": every, "seconds": seconds, "restart_seconds": restart},
        "schedule": [{"nodes": "all", "seconds_to_crash": {"distribution": "expon", "scale": mean}}],
    }
    faults["schedule"][0]["seconds_to_repair"] = {"distribution": "expon", "scale": down}
    on = {**cluster(node(1.0)), "faults": faults}
    segments = [every + seconds] * (updates // int(every)) + [updates % every]
    if not updates % every:
        segments = [*segments[:-2], every]  # nothing is saved at the end

    made = experiment("method=ssgd", "workload=phantom", cluster=on, batch_size=1, budget={"updates": updates}, workload=SMALL)
    times = [simulate(replace(made, seed=seed)).seconds[-1] for seed in range(60)]

    expected = sum((mean + down) * math.exp(restart / mean) * math.expm1(segment / mean) for segment in segments)
    assert abs(fmean(times) - expected) < 4 * stdev(times) / math.sqrt(len(times))


def test_a_training_that_never_gets_further_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weight_checkpoints, "MAX_RESTARTS", 20)
    gone = {"nodes": "all", "seconds_to_crash": {"distribution": "uniform", "loc": 5, "scale": 1}}

    with pytest.raises(RunFailed, match=r"the weights were lost 20 times .* \+cluster\.faults\.checkpoint\.every=30min"):
        run({**gone, "seconds_to_repair": {"distribution": "uniform", "loc": 1, "scale": 1}})


@pytest.mark.parametrize(
    ("checkpoint", "problem"),
    [
        ({"seconds": 1}, "every"),
        ({"every": 0}, "above zero"),
        ({"every": 1, "second": 1}, "second"),
        ({"every": 1, "seconds": -1}, "seconds"),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(checkpoint: dict[str, Any], problem: str):
    with pytest.raises(ValueError, match=f"cluster.faults.checkpoint.*{problem}"):
        parse_cluster({**cluster(node(1.0)), "faults": {"checkpoint": checkpoint}})
