"""FedBuff and FedAsync against a few lines of NumPy, and what of their configs is refused."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from own_pools import Q
from worlds import NOISE, UNEVEN, cluster, experiment, node, simulate

from hetsim.coordination.async_local_steps import cut
from hetsim.effects import Batch

SECONDS = (4.13, 3.71, 2.29, 1.03)
"""No two workers ever push at the same moment, in these runs."""
CENTRES = (1.0, 2.0, 3.0, 4.0)


Push = tuple[int, int, float, float]
"""Who pushed, how many versions old it is, from where, to where."""


def pushed(count: int, *, period: int, rate: float, server: Callable[[float, list[Push]], float | None]) -> list[float]:
    """The weights of `count` versions: an event loop in which worker i takes `period` steps of ½ (x − a_i)² and pushes a Push.

    `server(W, pushes)` gives the next W, or None if it waits for more pushes.
    """
    weights = 2.0
    versions: list[float] = []
    held: list[Push] = []
    queue = [(period * seconds, rank, 0, weights) for rank, seconds in enumerate(SECONDS)]
    heapq.heapify(queue)
    while len(versions) < count:
        now, rank, version, used = heapq.heappop(queue)
        x = used
        for _ in range(period):
            x -= rate * (x - CENTRES[rank])
        held.append((rank, version, used, x))
        stale = [(rank, len(versions) - version, used, x) for rank, version, used, x in held]
        after = server(weights, stale)
        if after is not None:
            weights, held = after, []
            versions.append(weights)
        heapq.heappush(queue, (now + period * SECONDS[rank], rank, len(versions), weights))
    return versions


def on_q(name: str, *choices: str, updates: int = 60, **keys: Any) -> np.ndarray:
    """The weights of all versions of a method in World Q, with workers that never push at the same moment."""
    settings = {"batch_size": 4, "dtype": "float64", "cluster": cluster(*map(node, SECONDS)), "budget": {"updates": updates}, **keys}
    made = experiment(f"method={name}", "workload=phantom", "partition=contiguous", *choices, data="owned", **settings)
    return np.array([state.weights.item() for state in simulate(replace(made, workload=Q())).states])


@pytest.mark.parametrize("size", [1, 3, 10])
def test_fedbuff_is_its_equation(size: int):
    """W ← W − η_g (1/K) Σ (1 + s)^−½ (w_i − x_i) after every K pushes; K may be more than the workers."""

    def server(weights: float, pushes: list[Push]) -> float | None:
        if len(pushes) < size:
            return None
        return weights - 0.7 / size * sum((1 + s) ** -0.5 * (w - x) for _, s, w, x in pushes)

    mine = on_q("fedbuff", admission={"size": size}, coordination={"period": 3}, learning_rate=0.7, local_learning_rate=0.05)

    np.testing.assert_allclose(mine, pushed(60, period=3, rate=0.05, server=server), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("choice", "keys", "d"),
    [
        ("polynomial", {"exponent": 0.7}, lambda s: (1 + s) ** -0.7),
        ("hinge", {"slope": 2.0, "bound": 2}, lambda s: 1.0 if s <= 2 else 1 / (2.0 * (s - 2) + 1)),
        ("none", {}, lambda s: 1.0 + 0 * s),
    ],
)
def test_fedasync_is_its_equation(choice: str, keys: dict[str, float], d: Callable[[int], float]):
    """W ← (1 − α_s) W + α_s x_i, α_s = α d(s), at every push; with the present W, not the one that the worker began at."""

    def server(weights: float, pushes: list[Push]) -> float:
        ((_, s, _, x),) = pushes
        return (1 - 0.6 * d(s)) * weights + 0.6 * d(s) * x

    rates = {"learning_rate": 0.6, "local_learning_rate": 0.05, "coordination": {"period": 5}}
    mine = on_q("fedasync", f"discount={choice}", discount=keys, **rates)

    np.testing.assert_allclose(mine, pushed(60, period=5, rate=0.05, server=server), rtol=0, atol=1e-12)


def test_a_range_is_cut_into_shares():
    """The last one may be shorter."""
    assert cut(Batch(7, 10, 2), 4) == [Batch(7, 4, 2), Batch(11, 4, 2), Batch(15, 2, 2)]


def test_the_allocation_sees_a_mean_local_step():
    """By speed, as without local steps: 32, 32, 64 and 128 of 256 samples on nodes of 4, 4, 2 and 1 ms a sample."""
    workers = cluster(node(4e-3, count=2), node(2e-3), node(1e-3))
    run = simulate(experiment("method=fedbuff", "allocation=dbs", "workload=phantom", cluster=workers, budget={"updates": 30}))

    assert run.simulation.experiment.coordination.allocation.shares(run.states[-1].allocation) == (32, 32, 64, 128)
    assert {c.samples for group in run.applied[20:-3] for c in group} == {4 * 32, 4 * 64, 4 * 128}


def test_weights_per_sample_are_those_of_a_local_step():
    """Each worker's w_i is b_i N / B, however many steps it takes: 1, 3 and 2 parts of 6 weigh ½, 3/2 and 1."""
    made = experiment(
        "method=fedbuff", "allocation=fixed", "weighting=per_sample", "discount=none", "workload=phantom",
        allocation={"parts": [1, 3, 2]}, cluster=UNEVEN, batch_size=60, budget={"updates": 12},
    )  # fmt: skip
    run = simulate(made)

    plan = made.plan(run.simulation.task)
    factors = {c.rank: 3 * f for g in run.applied[:8] for c, f in zip(g, made.coordination.factors(g, plan), strict=True)}
    assert factors == pytest.approx({0: 0.5, 1: 1.5, 2: 1.0})


def test_a_resumed_run_goes_on_in_the_streams_of_gradient_times():
    """A push of three steps has used three of its node's times."""
    workers = cluster(node(1e-3, noise=NOISE), node(2e-3, noise=NOISE))
    made = experiment("method=fedasync", "workload=phantom", coordination={"period": 3}, cluster=workers, budget={"updates": 9})
    run = simulate(made, saved=True)

    for checkpoint, upto in zip(run.checkpoints, range(1, 10), strict=True):
        pushes = [c.rank for group in run.applied[:upto] for c in group]
        assert [rank.num_gradients for rank in checkpoint.ranks[:2]] == [3 * pushes.count(0), 3 * pushes.count(1)]


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (("method=asgd", "compensation=mixing"), "compensation is Mixing, but it corrects differences, and workers push gradients"),
        (
            ("method=fedbuff", "compensation=dc"),
            "compensation is DelayCompensation, but it corrects gradients, and workers push differences",
        ),
        (("method=fedbuff", "local_optimizer=none"), "local_optimizer is none, but between a pull and a push the workers take local steps"),
        (("method=od_sgd", "compensation=mixing"), "compensation is Mixing, but a worker cannot correct its local step by it"),
    ],
)
def test_what_does_not_fit_is_one_sentence(choices: tuple[str, ...], sentence: str):
    """Before the run."""
    with pytest.raises(ValueError, match=sentence):
        experiment(*choices, "workload=phantom")
