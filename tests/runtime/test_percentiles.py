"""The percentiles of staleness: those of all applied contributions, one by one, in every world and without a trace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threads import run_in_threads
from worlds import experiment, simulate

from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.plan import Plan
from hetsim.effects import Batch, Contribution
from hetsim.runtime.recording.metrics import Applied, Metrics, percentile
from hetsim.sim.lockstep import LockstepWorld

RUNS = {
    "on arrival": ("method=asgd",),
    "bounded": ("method=ssp",),
    "behind a barrier": ("method=ssgd",),
    "by local steps": ("method=local_sgd",),
    "one step late": ("method=od_sgd", "coordination.warm_up=3"),
    "one step late, all-reduce": ("method=pipe_sgd", "coordination.warm_up=3"),
}


def nearest_rank(values: list[int], percent: int) -> int:
    """The definition, from the values in order: the one of rank ⌈percent/100 · n⌉."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.sampled_from([1, 50, 95, 100]))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    """By nearest rank, so it is one of the values."""
    counts = {value: values.count(value) for value in values}

    assert percentile(counts, percent) == nearest_rank(values, percent)


def test_the_percentiles_of_nothing_are_none() -> None:
    """A run without a commit has no staleness."""
    numbers = Metrics(2, num_ahead=1).summary()

    assert (numbers["staleness_p50"], numbers["staleness_p95"]) == (None, None)


@pytest.mark.parametrize("name", RUNS)
def test_the_percentiles_are_those_of_all_applied_contributions(name: str) -> None:
    """As a list of them, which no run keeps, would give them."""
    made = experiment(*RUNS[name], "workload=phantom", workload={"num_samples": 3000}, budget={"epochs": 3})

    run = simulate(made)

    late = [contribution.staleness for group in run.applied for contribution in group]
    numbers = run.simulation.metrics.summary()
    assert (numbers["staleness_p50"], numbers["staleness_p95"]) == (nearest_rank(late, 50), nearest_rank(late, 95))
    if LockstepWorld.suits(made, made.load()[0]):
        world = LockstepWorld(made, *made.load())
        world.run()
        assert world.metrics.summary() == numbers


def test_processes_count_alike() -> None:
    """In real time, behind a barrier: nothing is late."""
    made = experiment("method=ssgd", "workload=quadratic", budget={"updates": 4})

    leader: Any = run_in_threads(made)[made.leader]

    numbers = leader.metrics.summary()
    assert (numbers["staleness_p50"], numbers["staleness_p95"], numbers["staleness_max"]) == (0, 0, 0)


def test_what_is_kept_grows_with_the_distinct_values_alone() -> None:
    """A million contributions of two values, on arrival and in rounds, are two counts."""
    applied, batch = Applied(2), Batch(0, 1)
    late = [Contribution(0, batch, 0, 1.0, 0.0, staleness) for staleness in (0, 7)]
    rounds = SynchronousContributions(0, staleness=7).appended(Plan(2, 4).split(0, (1, 3)), 1.0, 0.0)

    for _ in range(500):
        applied.commit(0.0, late)
        applied.commit(0.0, rounds)

    assert applied.by_staleness == {0: 500, 7: 1500}
    assert len(applied._by_staleness) + len(applied._rounds) <= 3
