"""Streaming DiLoCo: one fragment of the weights is averaged at a time, beside the next local steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_local_steps import learned, steps
from threads import run_in_threads
from worlds import NO_NETWORK, UNEVEN, Run, cluster, experiment, node, simulate

from hetsim.coordination.bookkeeping.fragments import divide_into_fragments
from hetsim.coordination.plan import Plan
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch, Fragment, Update
from hetsim.runtime.rank import RankState, fragment_memories
from hetsim.vector import Phantom
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import OptimizerRecipe, Recipe
from hetsim.workloads.tasks.quadratic_task import QuadraticTask

BOTH_WORLDS = pytest.mark.parametrize("world", ["sim", "dist"])
SMALL: dict[str, Any] = {
    "workload": {"num_parameters": 8, "num_samples": 90},
    "batch_size": 30,
    "dtype": "float64",
    "budget": {"epochs": 8},
}


def ended(world: str, *choices: str, coordination: dict[str, Any], **keys: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of a run in this world, each rank's global weights and its own, after the last version."""
    made = experiment(*choices, "workload=quadratic", **{**SMALL, "cluster": UNEVEN, **keys}, coordination=coordination)
    if world == "sim":
        last = simulate(made, saved=True).checkpoints[-1]
        return [(last.state.weights, rank.own.get("x", last.state.weights)) for rank in last.ranks]
    kept: dict[int, RankState] = {}
    runs = run_in_threads(made, keep=lambda state: kept.update({state.rank: state}))
    assert all(isinstance(run, RankRun) for run in runs), runs
    return [(run.last.weights, kept[run.rank].own.get("x", run.last.weights)) for run in runs]  # type: ignore[union-attr]


@BOTH_WORLDS
def test_one_fragment_that_is_averaged_at_once_is_diloco_bit_for_bit(world: str):
    """P = 1, τ = 0, α = 0: the same weights, and in virtual time the same trace, row by row."""
    whole = {"period": 3, "fragments": 1, "delay": 0, "local_share": 0.0}

    streaming, diloco = (ended(world, f"method={name}", coordination=its) for name, its in sides(whole))

    assert all(torch.equal(one, other) and torch.equal(x, one) for (one, x), (other, _) in zip(streaming, diloco, strict=True))
    if world == "sim":
        one, other = (
            simulate(experiment(f"method={name}", "workload=quadratic", **SMALL, cluster=UNEVEN, coordination=its), trace="full")
            for name, its in sides(whole)
        )
        assert one.rows() == other.rows()
        assert all(torch.equal(mine.weights, theirs.weights) for mine, theirs in zip(one.states, other.states, strict=True))


def sides(whole: dict[str, Any]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Streaming with one fragment, and DiLoCo of the same period."""
    return ("streaming_diloco", whole), ("diloco", {"period": whole["period"]})


@BOTH_WORLDS
def test_workers_that_keep_all_of_their_own_never_meet(world: str):
    """α = 1: each worker's weights are those of its local optimizer alone, over its share of every batch."""
    keys = {"period": 4, "fragments": 2, "delay": 1, "local_share": 1.0}

    ranks = ended(world, "method=streaming_diloco", "local_optimizer=sgd", local_learning_rate=0.05, coordination=keys)

    task = task_of()
    for rank, (_, x) in enumerate(ranks):
        alone = steps(task, task.initial(), [Batch(start + 10 * rank, 10) for start in range(0, 720, 30)], {}, "sgd")
        torch.testing.assert_close(x, alone, rtol=0, atol=1e-12)
    assert (ranks[0][1] - ranks[1][1]).abs().max() > 1e-3


@BOTH_WORLDS
def test_one_worker_with_plain_outer_steps_of_rate_1_is_its_local_optimizer_alone(world: str):
    """N = 1, τ = 0: every outer step puts the worker's own weights in the place of the global ones, fragment by fragment."""
    keys = {"period": 6, "fragments": 3, "delay": 0, "local_share": 0.0}
    rates = {"learning_rate": 1.0, "momentum": 0.0, "local_learning_rate": 0.02, "local_optimizer": {"weight_decay": 0.01}}

    ((weights, x),) = ended(
        world, "method=streaming_diloco", "optimizer=sgd", coordination=keys, cluster=cluster(node(1e-4)), batch_size=15, **rates
    )

    task = task_of()
    alone = steps(task, task.initial(), [Batch(start, 15) for start in range(0, 720, 15)], {}, "adamw")
    torch.testing.assert_close(x, alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights[5:], alone[5:], rtol=0, atol=1e-10)  # the fragment of the last version


def task_of() -> QuadraticTask:
    """The data of SMALL."""
    task = experiment("method=ssgd", "workload=quadratic", **SMALL, cluster=UNEVEN).load()[0]
    assert isinstance(task, QuadraticTask)
    return task


def written_out(
    task: QuadraticTask, *, positions: int, weights: tuple[float, ...], shares: tuple[int, ...], **of: Any
) -> list[torch.Tensor]:
    """Every version: h steps of each worker, Δ_p taken τ steps before their end, Nesterov's step of p, x_p ← (1 − α) Θ_p + α x_p."""
    n, total, h, size = len(shares), sum(shares), of["period"] // of["fragments"], len(task.optimum)
    theta = torch.zeros_like(task.optimum)
    velocity = torch.zeros_like(theta)  # one number for each parameter, moved only with its fragment
    own, memories = [theta.clone() for _ in shares], [{} for _ in shares]  # type: ignore[var-annotated]
    versions = []
    for version, start in enumerate(range(0, positions, h * total)):
        p = version % of["fragments"]
        part = slice(size * p // of["fragments"], size * (p + 1) // of["fragments"])
        firsts = range(start, min(start + h * total, positions), total)
        taken = max(1, len(firsts) - of["delay"])
        delta = torch.zeros_like(theta)[part]
        for i in range(n):
            ranges = [Batch(first + sum(shares[:i]), shares[i]) for first in firsts]
            x = steps(task, own[i], ranges[:taken], memories[i], "adamw")
            delta = delta + weights[i] * (theta - x)[part] / n
            own[i] = steps(task, x, ranges[taken:], memories[i], "adamw")
        velocity[part] = 0.9 * velocity[part] + delta
        theta = theta.clone()
        theta[part] -= 0.7 * (delta + 0.9 * velocity[part])
        for i in range(n):
            own[i] = own[i].clone()
            own[i][part] = (1 - of["local_share"]) * theta[part] + of["local_share"] * own[i][part]
        versions.append(theta)
    return versions


@pytest.mark.parametrize("weighting", ["per_worker", "per_sample"])
@pytest.mark.parametrize(
    "keys",
    [
        {"period": 6, "fragments": 2, "delay": 1, "local_share": 0.5},
        {"period": 6, "fragments": 3, "delay": 0, "local_share": 0.0},
        {"period": 8, "fragments": 1, "delay": 3, "local_share": 0.3},
        {"period": 3, "fragments": 3, "delay": 0, "local_share": 0.0},
    ],
    ids=str,
)
def test_it_is_the_algorithm_written_out(keys: dict[str, Any], weighting: str):
    """Every version to 1e-12, on three unlike shares; the last period is shorter."""
    shares = (2, 9, 4)
    weights = tuple(b / 5 for b in shares) if weighting == "per_sample" else (1.0, 1.0, 1.0)
    rates = {"learning_rate": 0.7, "momentum": 0.9, "local_learning_rate": 0.02}
    made = experiment(
        "method=streaming_diloco", "workload=quadratic", "allocation=fixed", f"weighting={weighting}",
        workload={"num_parameters": 8, "num_samples": 50, "noise": 1.0}, cluster=cluster(node(1e-3, count=3), network=NO_NETWORK),
        batch_size=15, allocation={"parts": list(shares)}, dtype="float64", budget={"epochs": 6}, coordination=keys, **rates,
    )  # fmt: skip

    run = simulate(made)

    assert isinstance(run.simulation.task, QuadraticTask)
    versions = written_out(run.simulation.task, positions=300, weights=weights, shares=shares, **keys)
    assert len(versions) == len(run.states) >= 3
    for version, state in zip(versions, run.states, strict=True):
        torch.testing.assert_close(state.weights, version, rtol=0, atol=1e-12)


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_a_period_takes_h_steps_and_what_of_the_all_reduce_is_not_hidden(delay: int):
    """hσ + max(0, A − τσ), exactly: σ = ¾ s, h = 4, and A = 2 (½ + 32 bytes/(2 · 64 bytes/s)) s."""
    link = {"latency_seconds": 0.5, "bytes_per_second": 64.0}
    made = experiment(
        "method=streaming_diloco", "workload=phantom", workload={"num_parameters": 16, "num_samples": 60_000}, batch_size=6,
        cluster=cluster(node(0.25), node(0.125), network=link), coordination={"period": 8, "delay": delay}, budget={"updates": 4},
    )  # fmt: skip

    run = simulate(made)

    period = 4 * 0.75 + max(0.0, 1.5 - delay * 0.75)
    assert run.seconds == [1 * period, 2 * period, 3 * period, 4 * period]
    assert {c.staleness for group in run.applied for c in group} == {0}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_each_exchange_is_of_4n_over_p_bytes(count: int):
    """Every h = H/P steps; so the bytes of H steps are those of one DiLoCo round."""
    keys = {"period": 8, "fragments": count, "delay": 0}
    sizes = {"num_parameters": 4000, "num_samples": 60_000}
    run = simulate(
        experiment("method=streaming_diloco", "workload=phantom", workload=sizes, coordination=keys, budget={"updates": 2 * count}),
        trace="full",
    )

    sent = [row.nbytes for row in run.rows("all_reduce") if row.rank == 0]
    assert sent == [4 * 4000 // count] * (2 * count)
    assert all(len(group) == 4 * 8 // count for group in run.applied)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"period": 10, "fragments": 3},
            "coordination.period=10 steps cannot be divided among coordination.fragments=3: take a multiple of it",
        ),
        (
            {"period": 10, "fragments": 2, "delay": 5},
            "coordination.delay=5 must be less than coordination.period/coordination.fragments=5, the",
        ),
        ({"fragments": 0}, "coordination.fragments must be at least 1, not 0"),
        ({"delay": -1}, "coordination.delay must be at least 0, not -1"),
        ({"local_share": 1.5}, "coordination.local_share must be at most 1, not 1.5"),
        ({"local_share": float("nan")}, "coordination.local_share must be a finite number"),
    ],
)
def test_what_does_not_fit_is_one_sentence(keys: dict[str, Any], sentence: str):
    """Before the run."""
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.")):
        experiment("method=streaming_diloco", coordination=keys)


def test_more_fragments_than_parameters_are_refused():
    """Once the model is known."""
    made = experiment("method=streaming_diloco", "workload=quadratic", **SMALL, coordination={"period": 9, "fragments": 9, "delay": 0})

    with pytest.raises(ValueError, match=r"^coordination\.fragments=9 is more than the model's 8 parameters: give at most 8"):
        simulate(made)


def test_fragments_cover_the_vector_and_the_last_has_what_stands_after_the_parameters():
    """Of seven parameters and three numbers after them; a phantom has the same."""
    plan = Plan(2, 4, num_parameters=7)

    cut = divide_into_fragments(torch.zeros(10), plan, 3)

    assert cut == (Fragment(0, 2), Fragment(2, 4), Fragment(4, 10))
    assert divide_into_fragments(Phantom(40), plan, 3) == cut


OPTIMIZERS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("AdamW", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_a_fragment_is_stepped_as_if_it_were_alone(name: str, options: dict[str, Any]):
    """Each with its own memory, however often the others are stepped; the other numbers stay; statistics become their weighted mean."""
    recipe = OptimizerRecipe(Recipe(f"torch.optim.{name}", options))
    whole, first, last = FlatOptimizer(recipe, 5), FlatOptimizer(recipe, 2), FlatOptimizer(recipe, 3)
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(8, generator=generator)
    rank, memories, alone = RankState(rank=0, optimizer=whole.initial()), [first.initial(), last.initial()], [weights[:2], weights[2:]]
    cut = (Fragment(0, 2), Fragment(2, 8))

    for p in (0, 1, 1, 0, 1, 0, 0):
        gradient = torch.rand(cut[p].stop - cut[p].start, generator=generator)
        before = weights
        weights = rank.update(whole, Update(weights, gradient, cut[p]))
        memories[p], alone[p] = (first, last)[p].step(memories[p], alone[p], gradient, 0)
        other = slice(cut[1 - p].start, cut[1 - p].stop)
        assert torch.equal(weights[other], before[other])

    assert torch.equal(weights, torch.cat(alone))
    assert fragment_memories(rank.optimizer)
    assert rank.num_updates == 7


def test_a_crash_lets_all_go_on_from_the_global_weights():
    """What only a worker knew is lost: after the regroup its own weights are those of the last commit."""
    away = {**UNEVEN, "faults": {"schedule": [{"nodes": [1], "crash": 0.08}], "detection_seconds": 0.001}}
    keys = {"period": 4, "fragments": 2, "delay": 1, "local_share": 1.0}
    run = simulate(
        experiment("method=streaming_diloco", "workload=quadratic", **SMALL, cluster=away, coordination=keys), trace="full", saved=True
    )

    first = next(v for v, group in enumerate(run.applied) if {c.rank for c in group} == {0, 2})
    before, after = run.checkpoints[first - 1], run.checkpoints[first]
    moved = [(rank.own["x"] - before.state.weights).abs().max() for rank in after.ranks if rank.rank != 1]
    jumped = [(rank.own["x"] - before.state.weights).abs().max() for rank in before.ranks if rank.rank != 1]
    assert {row.rank for row in run.rows("regroup")} == {0, 2}
    assert max(moved) < min(jumped)


def late(run: Run) -> set[int]:
    """The staleness of all contributions."""
    return {c.staleness for group in run.applied for c in group}


def test_diloco_is_not_what_several_fragments_learn():
    """Otherwise the laws above would hold of nothing."""
    keys = {"cluster": cluster(node(1e-3, count=3)), "batch_size": 15, "coordination": {"period": 4}}
    whole = learned("diloco", **{key: value for key, value in keys.items() if key != "coordination"}, learning_rate=0.7, momentum=0.9)
    parts = simulate(experiment("method=streaming_diloco", "workload=quadratic", **{**SMALL, **keys}))

    assert late(whole) == late(parts) == {0}
    assert not torch.equal(whole.weights, parts.weights)
