"""DBS: batches follow measured speed, so that every worker's step takes the same time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from worlds import Run, cluster, experiment, node, simulate

from hetsim.runtime.experiment import Experiment


def dbs(*per_sample: float, overhead: float = 0.0, batch_size: int = 256, updates: int = 8, method: str = "ssgd") -> Experiment:
    """DBS on nodes of these seconds per sample, each with this overhead, without a network."""
    return experiment(
        f"method={method}",
        "allocation=dbs",
        "workload=phantom",
        cluster=cluster(*(node(seconds, overhead) for seconds in per_sample)),
        batch_size=batch_size,
        budget={"updates": updates},
    )


def step_times(run: Run) -> list[list[float]]:
    """Seconds of each worker's gradient, round by round."""
    return [[c.seconds for c in group] for group in run.applied]


@pytest.mark.parametrize("batch_size", [256, 250, 97])
@pytest.mark.parametrize("per_sample", [(4e-3, 4e-3, 2e-3, 1e-3), (1e-3, 7e-3, 3e-3), (1e-3, 1.1e-3)])
def test_step_times_are_equal_after_one_reallocation_and_stay_so(per_sample: tuple[float, ...], batch_size: int):
    """Steady, noiseless and without overhead: from the second round on each step is B/Σv, to one of its own samples' time."""
    run = simulate(dbs(*per_sample, batch_size=batch_size))

    balanced = batch_size / sum(1 / seconds for seconds in per_sample)
    first, *others = step_times(run)
    assert max(first) > balanced + max(per_sample)
    assert all(abs(step - balanced) < own for steps in others for step, own in zip(steps, per_sample, strict=True))


def test_speeds_of_one_one_two_four_split_256_into_32_32_64_128():
    """The shares of each version of a synchronous run."""
    run = simulate(dbs(4e-3, 4e-3, 2e-3, 1e-3, updates=3))

    assert [tuple(c.samples for c in group) for group in run.applied] == [(64, 64, 64, 64), (32, 32, 64, 128), (32, 32, 64, 128)]


def test_asynchronous_steps_are_equal_once_everyone_was_measured():
    """DBS-SGD proper: behind the first round all gradients take the same time, and everyone is N−1 versions behind."""
    run = simulate(dbs(4e-3, 4e-3, 2e-3, 1e-3, method="dbs_sgd", updates=60))

    later = [group[0] for group in run.applied[20:]]
    assert {round(c.seconds, 9) for c in later} == {0.128}
    assert {c.rank: c.samples for c in later} == {0: 32, 1: 32, 2: 64, 3: 128}
    assert {c.staleness for c in later} == {3}


def test_unequal_steps_make_unequal_staleness_without_it():
    """The same cluster under an even split: a slow worker's gradients are older than a fast one's."""
    even = experiment("method=asgd", "workload=phantom", cluster=cluster(node(4e-3), node(1e-3)), budget={"updates": 50})

    run = simulate(even)

    staleness = {c.rank: c.staleness for group in run.applied[20:] for c in group}
    assert staleness[0] > staleness[1]


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_with_overhead_the_gap_shrinks_by_its_part_of_the_step(share: float):
    """Close to balance, each re-allocation leaves overhead / (overhead + compute) of the gap between step times."""
    per_sample = (1e-3, 1.25e-3)
    samples = 10**12  # so many that rounding to whole ones is nothing
    balanced = samples / sum(1 / seconds for seconds in per_sample)

    run = simulate(dbs(*per_sample, overhead=share * balanced, batch_size=samples, updates=6))

    gaps = [max(steps) - min(steps) for steps in step_times(run)]
    assert [after / before for before, after in pairwise(gaps)] == pytest.approx([share / (1 + share)] * 5, rel=0.02)


@pytest.mark.parametrize(("share", "left"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.03), (1.0, 0.12)])
def test_three_reallocations_leave_little_of_the_gap(share: float, left: float):
    """Speeds 1 : 1 : 2 : 4 and B = 256: nothing at an overhead of 0.1 of the balanced step, 3 % at 0.3, at most 12 % at 1.0."""
    per_sample = (4e-3, 4e-3, 2e-3, 1e-3)
    balanced = 256 / sum(1 / seconds for seconds in per_sample)

    run = simulate(dbs(*per_sample, overhead=share * balanced, updates=4))

    steps = step_times(run)[3]
    assert (max(steps) - min(steps)) / max(steps) <= left + 1e-12


@pytest.mark.parametrize("method", ["ssgd", "dbs_sgd"])
def test_shares_follow_a_speed_that_changes_mid_run(method: str):
    """At version 20 the fast node becomes as slow as the slow one; its share is half of the batch as soon as it was measured."""

    steady = dbs(4e-3, 1e-3, batch_size=100, method=method, updates=40)
    moment = simulate(steady).seconds[19]
    slow, fast = steady.cluster.nodes
    throttled = replace(fast, slowdown=((0.0, 1.0), (moment, 4.0)))

    run = simulate(replace(steady, cluster=replace(steady.cluster, nodes=(slow, throttled))))

    assert run.seconds[19] == moment
    before, after = run.states[18].allocation.shares, run.states[-1].allocation.shares
    assert (before, after) == ((20, 80), (50, 50))
    last = {c.rank: c.seconds for group in run.applied[-4:] for c in group}
    assert last == pytest.approx({0: 0.2, 1: 0.2}, rel=1e-12)
