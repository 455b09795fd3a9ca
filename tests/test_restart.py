"""A program can be started from any committed state, and goes on as if it had never stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from worlds import ALLOCATIONS, NO_NETWORK, SYNCHRONOUS, UNEVEN, Run, cluster, method, node, simulate, tiles

from hetsim.coordination.state import State

STEADY = cluster(node(4e-4, 2e-3), node(1e-4, 5e-3), node(2e-4), network=NO_NETWORK, seconds_per_update=5e-4)
KEYS: dict[str, Any] = {
    "workload": {"num_parameters": 6, "num_samples": 90},
    "batch_size": 31,
    "cluster": STEADY,
    "budget": {"epochs": 3.5},
    "learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.7},
}


def same(one: State, other: State) -> bool:
    """Bit by bit: weights, optimizer, policies, and how far the sequence has come."""
    assert one.optimizer.keys() == other.optimizer.keys()
    rest = [replace(state, weights=None, optimizer=None) for state in (one, other)]
    memories = zip(one.optimizer.values(), other.optimizer.values(), strict=True)
    return rest[0] == rest[1] and torch.equal(one.weights, other.weights) and all(torch.equal(a, b) for a, b in memories)


def made_of(run: Run) -> list[Any]:
    """Which samples of whom went into each version."""
    return [[(c.rank, c.batch, c.version, c.staleness) for c in group] for group in run.applied]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_a_synchronous_run_goes_on_as_if_it_had_never_stopped(coordination: str, allocation: str):
    """From every version: the same commits and bit-equal states, with momentum, a schedule, and shares that still move."""
    experiment = method(coordination, allocation, "workload=quadratic", "weighting=per_sample", **KEYS)
    whole = simulate(experiment)
    assert len(whole.states) == 11
    assert "momentum_buffer" in whole.states[0].optimizer

    for stop in range(11):
        rest = simulate(experiment, checkpoint=whole.checkpoints[stop])

        assert made_of(rest) == made_of(whole)[stop + 1 :]
        assert all(same(one, other) for one, other in zip(rest.states, whole.states[stop + 1 :], strict=True))


@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_a_noisy_run_goes_on_as_if_it_had_never_stopped(coordination: str):
    """Each node's stream of chance goes on where it was, and so do shares that follow measured speeds."""
    experiment = method(coordination, "dbs", "workload=quadratic", "weighting=per_sample", **{**KEYS, "cluster": UNEVEN})
    whole = simulate(experiment)

    rest = simulate(experiment, checkpoint=whole.checkpoints[4])

    assert made_of(rest) == made_of(whole)[5:]
    assert torch.equal(rest.weights, whole.weights)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_an_asynchronous_run_applies_every_position_once_across_a_stop(allocation: str):
    """What was in flight is handed out again: the parts before and after the stop cover the sequence without a gap."""
    experiment = method("server", allocation, "workload=quadratic", **KEYS)
    whole = simulate(experiment)
    assert len(whole.states) > 20

    for stop in range(len(whole.states)):
        rest = simulate(experiment, checkpoint=whole.checkpoints[stop])

        before = [c.batch for group in whole.applied[: stop + 1] for c in group]
        after = [c.batch for group in rest.applied for c in group]
        assert tiles(before + after, 315)
        versions = [state.version for state in rest.states]
        assert versions == list(range(stop + 2, stop + 2 + len(versions)))


def test_an_asynchronous_run_may_stop_twice():
    """A state committed behind a new start still knows what an earlier stop left outstanding."""
    experiment = method("server", "dbs", "workload=quadratic", **KEYS)
    first = simulate(experiment)
    second = simulate(experiment, checkpoint=first.checkpoints[4])

    third = simulate(experiment, checkpoint=second.checkpoints[0])

    applied = [*first.applied[:5], *second.applied[:1], *third.applied]
    assert tiles([c.batch for group in applied for c in group], 315)


def test_a_start_at_the_end_of_the_budget_does_nothing():
    """Everything was handed out and applied: no gradient, no version."""
    experiment = method("server", "even", "workload=quadratic", **KEYS)
    whole = simulate(experiment)

    rest = simulate(experiment, checkpoint=whole.checkpoints[-1])

    assert (rest.states, rest.computed) == ([], [])


@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_a_finished_run_can_be_continued_with_a_larger_budget(coordination: str):
    """Every worker takes part again, also one for whom the last, shorter batch had no range."""
    keys = {**KEYS, "workload": {"num_parameters": 6, "num_samples": 100}, "batch_size": 33}
    whole = simulate(method(coordination, "even", "workload=quadratic", **{**keys, "budget": {"epochs": 1}}))
    assert [c.rank for c in whole.applied[-1]] == [0]

    more = simulate(
        method(coordination, "even", "workload=quadratic", **{**keys, "budget": {"epochs": 2}}), checkpoint=whole.checkpoints[-1]
    )

    assert [sum(c.samples for c in group) for group in more.applied] == [33, 33, 33, 1]
