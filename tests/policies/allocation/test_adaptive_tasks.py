"""ATA: tasks by lower confidence bounds of times that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import log, sqrt
from random import Random

import pytest
from allocation_timings import timing
from hypothesis import given
from hypothesis import strategies as st
from worlds import cluster, experiment, node, simulate

from hetsim.policies.allocation import AdaptiveTasks
from hetsim.policies.allocation.adaptive_tasks import least_maximum


def rounds(
    rule: AdaptiveTasks, means: Sequence[float], num_tasks: int, number: int, *, draw: Callable[[float], float] = float
) -> list[tuple[int, ...]]:
    """The tasks of each of these rounds. A worker takes the sum of a drawn time for each of its tasks."""
    state, seen = rule.initial(len(means), num_tasks), []
    for _ in range(number):
        seen.append(rule.shares(state))
        times = [sum(draw(mean) for _ in range(a)) for a, mean in zip(seen[-1], means, strict=True)]
        state = rule.observe(state, [timing(rank, a, t) for rank, (a, t) in enumerate(zip(seen[-1], times, strict=True)) if a])
    return seen


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 7.0]), min_size=1, max_size=4),
    st.integers(1, 6),
    st.data(),
)
def test_no_other_whole_tasks_have_a_smaller_maximum(seconds: list[float], total: int, data: st.DataObject):
    """min max_i a_i s_i over all a with Σ a_i = B and a_i ≤ bound_i, by trying all of them."""
    bounds = [data.draw(st.integers(0, total)) for _ in seconds]
    bounds[0] = total

    tasks = least_maximum(seconds, total, bounds, [0.0] * len(seconds))

    def longest(a: Sequence[int]) -> float:
        return max(each * s for each, s in zip(a, seconds, strict=True))

    every = [a for a in product(*(range(bound + 1) for bound in bounds)) if sum(a) == total]
    assert tasks in every
    assert longest(tasks) == min(map(longest, every))


def test_the_lower_bounds_are_those_of_the_equations():
    """Two tasks in 6 s and eight in 8 s, in the second round."""
    observed = [timing(0, 2, 6.0), timing(1, 8, 8.0)]

    def bounds(rule: AdaptiveTasks) -> list[float]:
        return rule.lower_bounds(rule.observe(rule.initial(2, 10), observed))

    r = [sqrt(log(8) / 2) + log(8) / 2, sqrt(log(8) / 8) + log(8) / 8]
    assert bounds(AdaptiveTasks(eta=0.1)) == pytest.approx([3 * (1 - 0.2 * r[0]), 1 - 0.2 * r[1]])
    assert bounds(AdaptiveTasks(eta=0.0, alpha=0.5)) == pytest.approx([3 - r[0], max(1 - r[1], 0)])
    assert bounds(AdaptiveTasks(eta=0.0, alpha=5.0)) == [0, 0]


def test_equal_workers_with_known_times_have_equal_tasks():
    """In each round."""
    assert set(rounds(AdaptiveTasks(), [2.0] * 4, 24, 60)) == {(6, 6, 6, 6)}


def test_times_that_are_known_are_split_as_the_fastest_split():
    """Without uncertainty, a second round is the optimum."""
    assert rounds(AdaptiveTasks(eta=0.0), [1.0, 2.0, 4.0], 14, 2) == [(5, 5, 4), (8, 4, 2)]


def test_every_worker_is_measured_also_where_they_outnumber_the_tasks():
    """Two tasks a round and seven workers: the least measured first."""
    seen = rounds(AdaptiveTasks(), [1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0], 2, 4)

    assert seen[0] == (1, 1, 0, 0, 0, 0, 0)
    assert all(any(tasks[rank] for tasks in seen) for rank in range(7))


@pytest.mark.parametrize("rule", [AdaptiveTasks(), AdaptiveTasks(eta=0.0, alpha=4.0)], ids=["empirical", "alpha"])
def test_regret_falls(rule: AdaptiveTasks):
    """By exponential times, max_i a_i μ_i comes near the optimum of known means, and slow workers are left out of most rounds."""
    rng, means = Random(0), [1.0, 1.0, 2.0, 4.0, 30.0]
    seen = rounds(rule, means, 12, 4000, draw=lambda mean: rng.expovariate(1 / mean))
    best = max(a * mean for a, mean in zip(least_maximum(means, 12, [12] * 5, means), means, strict=True))
    regret = [max(a * mean for a, mean in zip(tasks, means, strict=True)) - best for tasks in seen]
    first, last = sum(regret[:400]) / 400, sum(regret[-400:]) / 400

    assert min(regret) >= 0
    assert last < 0.25 * first
    assert sum(not tasks[4] for tasks in seen[-400:]) > 200


def test_an_absent_worker_gets_one_task_until_it_is_measured_again():
    """The others' samples are then few more than their own."""
    rule = AdaptiveTasks()
    state = rule.initial(3, 12)
    for _ in range(50):
        state = rule.observe(state, [timing(0, 4, 4.0), timing(1, 8, 8.0)])
        assert rule.shares(state)[2] == 1
    state = rule.observe(state, [timing(0, 4, 4.0), timing(1, 7, 7.0), timing(2, 1, 1.0)])

    assert rule.shares(state)[2] == 12


def test_a_worker_without_samples_at_the_end_of_an_epoch_is_not_absent():
    """The last batch of a run may end before its range."""
    rule = AdaptiveTasks()

    assert rule.observe(rule.initial(3, 12), [timing(0, 4, 4.0), timing(1, 2, 2.0)]).absent == ()


def test_tasks_are_of_whole_samples():
    """16 samples of 4 are four tasks; a bound of 6 samples holds one of them."""
    rule = AdaptiveTasks(samples_per_task=4)

    assert rule.shares(rule.initial(2, 16, [6, 16])) == (4, 12)
    with pytest.raises(ValueError, match=r"^batch_size=18 is not a multiple of allocation.samples_per_task=4: take a divisor"):
        rule.initial(2, 18)
    with pytest.raises(ValueError, match=r"^the nodes' max_samples hold 2 tasks of 4 samples, but batch_size=16 has 4"):
        rule.initial(2, 16, [6, 7])


def test_a_method_that_needs_a_gradient_of_each_worker_is_refused():
    """One sentence."""
    with pytest.raises(ValueError, match=r"^allocation is AdaptiveTasks, which may leave out workers, and ParameterServer needs"):
        experiment("method=asgd", "allocation=ata")


@pytest.mark.parametrize("method", ["ata", "ddp"])
def test_a_worker_without_tasks_takes_no_part_in_a_version(method: str):
    """Four tasks for five workers: each version is of the others, and counts four samples."""
    workers = cluster(node(1e-3, count=4), node(0.1))
    choices = (f"method={method}", "allocation=ata", "weighting=per_sample", "workload=quadratic")
    run = simulate(experiment(*choices, cluster=workers, batch_size=4, budget={"updates": 400}, dtype="float64"), trace="full")

    assert {sum(c.samples for c in group) for group in run.applied} == {4}
    assert sum(len({c.rank for c in group}) < 5 for group in run.applied) == 400
    assert all(any(c.rank == rank for group in run.applied for c in group) for rank in range(5))
    assert sum(any(c.rank == 4 for c in group) for group in run.applied) < 100
