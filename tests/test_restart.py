"""A program can be started from any committed state, and goes on as if it had never stopped."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from worlds import ALLOCATIONS, NO_NETWORK, SYNCHRONOUS, UNEVEN, Run, cluster, experiment, method, node, simulate, tiles

from hetsim.coordination.plan import Split
from hetsim.runtime.rank import Checkpoint, RankState

pytestmark = pytest.mark.slow

STEADY = cluster(node(4e-4, 2e-3), node(1e-4, 5e-3), node(2e-4), network=NO_NETWORK, seconds_per_update=5e-4)
KEYS: dict[str, Any] = {
    "workload": {"num_parameters": 6, "num_samples": 90},
    "batch_size": 31,
    "cluster": STEADY,
    "budget": {"epochs": 3.5},
    "learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.7},
}


def same(one: Checkpoint, other: Checkpoint) -> bool:
    """Bit by bit: weights, policies, how far the sequence has come, and all that each rank owns."""
    rest = [replace(checkpoint.state, weights=None) for checkpoint in (one, other)]
    ranks = zip(one.ranks, other.ranks, strict=True)
    return (
        rest[0] == rest[1] and torch.equal(one.state.weights, other.state.weights) and all(equal(vars_of(a), vars_of(b)) for a, b in ranks)
    )


def vars_of(rank: RankState) -> dict[str, Any]:
    """All fields, but for a count that only a server's stream goes by."""
    return {its.name: getattr(rank, its.name) for its in fields(rank) if its.name != "num_updates"}


def equal(one: Any, other: Any) -> bool:
    """Bit by bit, in tensors too."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and not isinstance(one, Split):
        return len(one) == len(other) and all(map(equal, one, other))
    if is_dataclass(one) and not isinstance(one, Split):
        return type(one) is type(other) and all(equal(getattr(one, its.name), getattr(other, its.name)) for its in fields(one))
    return bool(one == other)


def made_of(run: Run) -> list[Any]:
    """Which samples of whom went into each version."""
    return [[(c.rank, c.batch, c.version, c.staleness) for c in group] for group in run.applied]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_a_synchronous_run_goes_on_as_if_it_had_never_stopped(coordination: str, allocation: str):
    """From every version: the same commits and bit-equal states, with momentum, a schedule, and shares that still move."""
    described = method(coordination, allocation, "workload=quadratic", "weighting=per_sample", **KEYS)
    whole = simulate(described, saved=True)
    assert len(whole.states) == 11
    assert "momentum_buffer" in whole.checkpoints[0].ranks[described.leader].optimizer

    for stop in range(11):
        rest = simulate(described, checkpoint=whole.checkpoints[stop], saved=True)

        assert made_of(rest) == made_of(whole)[stop + 1 :]
        assert all(same(one, other) for one, other in zip(rest.checkpoints, whole.checkpoints[stop + 1 :], strict=True))


@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_a_noisy_run_goes_on_as_if_it_had_never_stopped(coordination: str):
    """Each node's stream of chance goes on where it was, and so do shares that follow measured speeds."""
    described = method(coordination, "dbs", "workload=quadratic", "weighting=per_sample", **{**KEYS, "cluster": UNEVEN})
    whole = simulate(described, saved=True)

    rest = simulate(described, checkpoint=whole.checkpoints[4], saved=True)

    assert made_of(rest) == made_of(whole)[5:]
    assert torch.equal(rest.weights, whole.weights)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_an_asynchronous_run_applies_every_position_once_across_a_stop(allocation: str):
    """What was in flight is handed out again: the parts before and after the stop cover the sequence without a gap."""
    described = method("server", allocation, "workload=quadratic", **KEYS)
    whole = simulate(described, saved=True)
    assert len(whole.states) > 20

    for stop in range(len(whole.states)):
        rest = simulate(described, checkpoint=whole.checkpoints[stop], saved=True)

        before = [c.batch for group in whole.applied[: stop + 1] for c in group]
        after = [c.batch for group in rest.applied for c in group]
        assert tiles(before + after, 315)
        versions = [state.version for state in rest.states]
        assert versions == list(range(stop + 2, stop + 2 + len(versions)))


def test_an_asynchronous_run_may_stop_twice():
    """A state committed behind a new start still knows what an earlier stop left outstanding."""
    described = method("server", "dbs", "workload=quadratic", **KEYS)
    first = simulate(described, saved=True)
    second = simulate(described, checkpoint=first.checkpoints[4], saved=True)

    third = simulate(described, checkpoint=second.checkpoints[0], saved=True)

    applied = [*first.applied[:5], *second.applied[:1], *third.applied]
    assert tiles([c.batch for group in applied for c in group], 315)


def test_a_start_at_the_end_of_the_budget_does_nothing():
    """Everything was handed out and applied: no gradient, no version."""
    described = method("server", "even", "workload=quadratic", **KEYS)
    whole = simulate(described, saved=True)

    rest = simulate(described, checkpoint=whole.checkpoints[-1], saved=True)

    assert (rest.states, rest.computed) == ([], [])


@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_a_finished_run_can_be_continued_with_a_larger_budget(coordination: str):
    """Every worker takes part again, also one for whom the last, shorter batch had no range."""
    keys = {**KEYS, "workload": {"num_parameters": 6, "num_samples": 100}, "batch_size": 33}
    whole = simulate(method(coordination, "even", "workload=quadratic", **{**keys, "budget": {"epochs": 1}}), saved=True)
    assert [c.rank for c in whole.applied[-1]] == [0]

    more = simulate(
        method(coordination, "even", "workload=quadratic", **{**keys, "budget": {"epochs": 2}}),
        checkpoint=whole.checkpoints[-1],
        saved=True,
    )

    assert [sum(c.samples for c in group) for group in more.applied] == [33, 33, 33, 1]


LOCAL = {"local_learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.8}}
SYNCHRONOUS_METHODS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "diloco": (("method=diloco",), {"coordination": {"period": 2}, **LOCAL}),
    "muloco": (("method=muloco",), {"coordination": {"period": 2}, **LOCAL}),
    "sparse_loco": (("method=sparse_loco",), {"coordination": {"period": 2}, "compression": {"keep": 1, "chunk": 4}, **LOCAL}),
    "streaming_diloco": (("method=streaming_diloco",), {"coordination": {"period": 2, "delay": 0}, **LOCAL}),
    "streaming_diloco with dbs, beside the next step": (
        ("method=streaming_diloco", "allocation=dbs"),
        {"coordination": {"period": 6, "fragments": 3, "delay": 1}, "allocation": {"reallocate_every": 2}, **LOCAL},
    ),
    "local steps with momentum and dbs": (
        ("method=local_sgd", "allocation=dbs", "local_optimizer=sgd"),
        {"coordination": {"period": 2}, "allocation": {"reallocate_every": 2}, "local_optimizer": {"momentum": 0.9}, **LOCAL},
    ),
    "two bits behind a barrier": (
        ("method=ssgd", "coordination=parameter_server", "compression=two_bit"),
        {"compression": {"threshold": 0.05}},
    ),
    "two bits, corrected": (
        ("method=ssgd", "coordination=parameter_server", "compression=two_bit"),
        {"compression": {"threshold": 0.05, "full_every": 3}},
    ),
    "dbs every third update": (("method=ssgd", "allocation=dbs"), {"allocation": {"reallocate_every": 3}}),
    "optperf": (("method=optperf",), {"allocation": {"probes": 2}}),
    "ata": (("method=ata",), {"allocation": {"eta": 0.1}}),
}


@pytest.mark.parametrize("name", SYNCHRONOUS_METHODS)
@pytest.mark.sampled(6)
def test_a_resume_restores_what_each_rank_owned(name: str):
    """Local optimizers, residuals, timings to be reported: from every other version the rest is bit-equal, on noisy nodes."""
    choices, keys = SYNCHRONOUS_METHODS[name]
    described = experiment(*choices, "workload=quadratic", **{**KEYS, "cluster": UNEVEN, "learning_rate": 0.02, **keys})
    whole = simulate(described, saved=True)
    assert len(whole.checkpoints) > 4

    for stop, checkpoint in list(enumerate(whole.checkpoints[:-1]))[::2]:
        rest = simulate(described, checkpoint=checkpoint, saved=True)

        assert made_of(rest) == made_of(whole)[stop + 1 :]
        assert all(same(one, other) for one, other in zip(rest.checkpoints, whole.checkpoints[stop + 1 :], strict=True))


@pytest.mark.parametrize(
    "choices", [("method=diloco",), ("method=ssgd", "coordination=parameter_server", "compression=two_bit")], ids=" ".join
)
def test_what_a_rank_owned_matters(choices: tuple[str, ...]):
    """Otherwise the law above would hold of nothing: begun afresh at the same state, the rest is another one."""
    keys = {"coordination": {"period": 2}} if "method=diloco" in choices else {"compression": {"threshold": 0.05}}
    described = experiment(*choices, "workload=quadratic", **{**KEYS, **keys})
    whole = simulate(described, saved=True)

    fresh = simulate(described, checkpoint=replace(whole.checkpoints[2], ranks=()), saved=True)

    assert not torch.equal(fresh.weights, whole.weights)


DELAYED = {"coordination": {"warm_up": 2}}


@pytest.mark.parametrize(
    ("choices", "keys"),
    [
        (("method=od_sgd",), DELAYED),
        (("method=cd_sgd",), DELAYED),
        (("method=pipe_sgd",), DELAYED),
        (("method=acco", "allocation=dbs"), {}),
        (("method=ssd_sgd",), {"coordination": {"warm_up": 1, "pull_every": 2}}),
        (("method=asgd", "compression=two_bit"), {"compression": {"threshold": 0.05}}),
        (("method=ssp",), {}),
    ],
    ids=lambda its: " ".join(its) if isinstance(its, tuple) else "",
)
@pytest.mark.sampled(4)
def test_delayed_and_asynchronous_methods_lose_and_repeat_no_sample(choices: tuple[str, ...], keys: dict[str, Any]):
    """What was under way is computed again: the parts before and after a stop cover the sequence once."""
    described = experiment(*choices, "workload=quadratic", **{**KEYS, **keys})
    whole = simulate(described, saved=True)

    for stop, checkpoint in enumerate(whole.checkpoints[:-1]):
        rest = simulate(described, checkpoint=checkpoint, saved=True)

        batches = [c.batch for group in [*whole.applied[: stop + 1], *rest.applied] for c in group]
        assert tiles(batches, 315)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_checkpoint_taken_while_a_rank_was_absent_is_whole(gone: int):
    """It has every rank: the absent one as it will come back, so that all ranks take the same steps after a resume."""
    faults = {"schedule": [{"nodes": [gone], "crash": 0.05, "repair": 0.2}]}
    keys = {**KEYS, "cluster": {**UNEVEN, "faults": faults}, "momentum": 0.9, "budget": {"epochs": 10}}
    crashed = simulate(experiment("method=ssgd", "workload=quadratic", **keys), saved=True)
    without = {state.version for state, group in zip(crashed.states, crashed.applied, strict=True) if gone not in {c.rank for c in group}}
    taken = next(its for its in crashed.checkpoints if its.state.version in without)

    rest = simulate(experiment("method=ssgd", "workload=quadratic", **{**keys, "cluster": UNEVEN}), checkpoint=taken, saved=True)

    assert [rank.rank for rank in taken.ranks] == [0, 1, 2]
    assert all(equal(rank.optimizer, its.ranks[0].optimizer) for its in [taken, *rest.checkpoints] for rank in its.ranks)
    assert rest.num_steps == len(rest.states)


def test_a_server_that_goes_on_without_a_worker_is_checkpointed():
    """At each version, of all ranks, and nothing is kept for versions that never become whole."""
    faults = {"schedule": [{"nodes": [1], "crash": 0.02}]}
    run = simulate(experiment("method=asgd", "workload=quadratic", **{**KEYS, "cluster": {**UNEVEN, "faults": faults}}), saved=True)

    assert len(run.checkpoints) == len(run.states) > 20
    assert {len(its.ranks) for its in run.checkpoints} == {4}
