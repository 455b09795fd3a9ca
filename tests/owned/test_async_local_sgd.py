"""Asynchronous local SGD: the delayed momentum against torch and by hand, steps by speed, and where it comes to rest on unequal data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_async_local_steps import CENTRES, SECONDS, on_q
from test_owned_data import WORLD_Q, settled
from worlds import NO_NETWORK, NOISE, cluster, experiment, node, simulate

from hetsim.coordination.dynamic_local_steps import DynamicLocalSteps
from hetsim.effects import Batch, Contribution
from hetsim.workloads.delayed_nesterov import DelayedNesterov


def stepped(pushes: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    """The weights after each push, from 0."""
    weights = torch.nn.Parameter(torch.zeros_like(pushes[0]))
    optimizer = DelayedNesterov([weights], **options)
    after = []
    for delta in pushes:
        weights.grad = delta
        optimizer.step()
        after.append(weights.detach().clone())
    return after


def test_the_momentum_changes_at_every_nth_push():
    """Pushes of 1, ε = 1, β = 0.9, N = 4: W falls by a quarter each time, and at each fourth push by 0.9 m, too."""
    ones = [torch.ones(1, dtype=torch.float64)] * 8

    fallen = [-weights.item() for weights in stepped(ones, lr=1.0, momentum=0.9, buffer_size=4)]

    assert fallen == pytest.approx([0.25, 0.5, 0.75, 1.9, 2.15, 2.4, 2.65, 4.61], abs=1e-12)


@pytest.mark.parametrize("buffer_size", [1, 3, 4])
def test_n_pushes_are_one_step_of_torchs_nesterov_along_their_mean(buffer_size: int):
    """Over five steps, with c = 0."""
    pushes = list(torch.randn(5 * buffer_size, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    mine = stepped(pushes, lr=0.3, momentum=0.8, buffer_size=buffer_size)

    theirs = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    nesterov = torch.optim.SGD([theirs], lr=0.3, momentum=0.8, nesterov=True)
    for step in range(5):
        theirs.grad = torch.stack(pushes[step * buffer_size : (step + 1) * buffer_size]).mean(0)
        nesterov.step()

        torch.testing.assert_close(mine[(step + 1) * buffer_size - 1], theirs.detach(), rtol=0, atol=1e-12)


def test_activation_spreads_the_momentum_over_the_pushes():
    """Pushes of 1, ε = 1, β = ½, N = 2, c = ½: ½ β m in the pushes between, and ½ β of the new m at every second one."""
    fallen = [-weights.item() for weights in stepped([torch.ones(1)] * 4, lr=1.0, momentum=0.5, buffer_size=2, activation=0.5)]

    assert fallen == [0.5, 0.5 + 0.5 * 0.5 * 1 + 0.5, 1.25 + 0.5 * 0.5 * 1 + 0.5, 2.0 + 0.5 * 0.5 * 1.5 + 0.5]


def test_the_method_is_its_equations():
    """Sixty pushes of workers of 4.13, 3.71, 2.29 and 1.03 s, H = 5, in a few lines of NumPy: steps by speed, delayed momentum."""
    seconds_known: dict[int, float] = {}
    pulled = [(2.0, 1)] * 4
    ends = list(SECONDS)
    weights, m, d, versions = 2.0, 0.0, 0.0, []
    for t in range(60):
        rank = int(np.argmin(ends))
        used, steps = pulled[rank]
        x = used
        for _ in range(steps):
            x -= 0.05 * (x - CENTRES[rank])
        seconds_known[rank] = SECONDS[rank]
        d += used - x
        if (t + 1) % 3 == 0:
            m = 0.6 * m + d / 3
            weights, d = weights - 0.7 * ((1 - 0.1 * 3 + 0.1) * 0.6 * m + (used - x) / 3), 0.0
        else:
            weights -= 0.7 * (0.1 * 0.6 * m + (used - x) / 3)
        versions.append(weights)
        pulled[rank] = weights, max(1, int(5 * min(seconds_known.values()) / SECONDS[rank]))
        ends[rank] += pulled[rank][1] * SECONDS[rank]

    mine = on_q(
        "async_local_sgd", coordination={"period": 5}, optimizer={"buffer_size": 3, "activation": 0.1},
        learning_rate=0.7, momentum=0.6, local_learning_rate=0.05,
    )  # fmt: skip

    np.testing.assert_allclose(mine, versions, rtol=0, atol=1e-12)


def test_all_rounds_take_as_long_as_the_fastest_workers():
    """World Q, H = 8: after a first step each, 2, 2, 4 and 8 steps, and every push is three versions old."""
    made = experiment("method=async_local_sgd", "workload=phantom", cluster=WORLD_Q, batch_size=4, budget={"updates": 400})
    run = simulate(made)

    assert {(c.rank, c.num_gradients) for group in run.applied[12:] for c in group} == {(0, 2), (1, 2), (2, 4), (3, 8)}
    assert {c.staleness for group in run.applied[12:] for c in group} == {3}
    assert [c.num_gradients for group in run.applied for c in group if c.version == 0] == [1] * 4


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [({0: 4.0, 1: 4.0, 2: 2.0, 3: 1.0}, [2, 2, 4, 8]), ({0: 0.3, 1: 0.1, 2: 0.1 * 9}, [2, 8, 1, 1]), ({3: 7.0}, [1, 1, 1, 8])],
)
def test_steps_are_by_speed(seconds: dict[int, float], steps: list[int]):
    """⌊H v_i / max v⌋, at least one; whose speed is not known takes one; a last bit changes nothing."""
    policy = DynamicLocalSteps(8)

    assert [policy.steps(seconds, rank) for rank in range(4)] == steps
    assert [policy.steps({r: s * (1 + 1e-15) for r, s in seconds.items()}, rank) for rank in range(4)] == steps


def test_a_speed_is_that_of_a_mean_step_of_the_last_round():
    """And is forgotten when its worker leaves."""
    policy = DynamicLocalSteps(8)
    push = Contribution(1, Batch(0, 40), 0, 6.0, 0.0, num_gradients=4)

    seconds = policy.observe({0: 3.0, 1: 9.0}, [push])

    assert (seconds, policy.remove_worker(seconds, 0)) == ({0: 3.0, 1: 1.5}, {1: 1.5})


def test_a_fast_worker_that_is_gone_no_longer_sets_the_pace():
    """Nodes of 4, 2 and 1 ms a sample, the last of which crashes for good: the second one takes H steps from then on, the first half."""
    nodes = cluster(*(node(seconds) for seconds in (4e-3, 2e-3, 1e-3)), network=NO_NETWORK)
    faults = {"detection_seconds": 1e-3, "schedule": [{"nodes": [2], "crash": 0.5}]}
    keys = {"cluster": {**nodes, "faults": faults}, "batch_size": 30, "workload": {"num_parameters": 8, "num_samples": 100}}
    run = simulate(experiment("method=async_local_sgd", "workload=phantom", **keys, budget={"seconds": 4.0}))

    steps = [{c.rank: c.num_gradients for group in part for c in group} for part in (run.applied[10:15], run.applied[-12:-6])]
    assert steps == [{0: 2, 1: 4, 2: 8}, {0: 4, 1: 8}]


@pytest.mark.parametrize(
    ("choices", "rests_at", "shares"),
    [
        ((), 3.125, (1 / 8, 1 / 8, 1 / 4, 1 / 2)),
        pytest.param(("weighting=per_local_step",), 2.5, (1 / 4,) * 4, marks=pytest.mark.long),
    ],
    ids=["per_worker", "per_local_step"],
)
@pytest.mark.long
def test_where_it_comes_to_rest_goes_by_the_number_of_steps(choices: tuple[str, ...], rests_at: float, shares: tuple[float, ...]):
    """World Q: equal rounds are no equal weights, as fast workers take more steps; Δ_i / H_i is unbiased."""
    keys = {"optimizer": {"momentum": 0.0}, "local_learning_rate": 1e-3, "learning_rate": 1.0}
    rest, weights = settled("async_local_sgd", *choices, updates=20_000 if choices else 9_000, **keys)

    assert rest == pytest.approx(rests_at, abs=0.01)
    assert weights == pytest.approx(shares, abs=1e-3)


def test_a_resumed_run_knows_the_speeds():
    """They are part of the state: no worker begins with single steps again."""
    workers = cluster(node(4e-3, noise=NOISE), node(1e-3, noise=NOISE))
    made = experiment("method=async_local_sgd", "workload=phantom", cluster=workers, budget={"updates": 12})
    whole = simulate(made, saved=True)

    rest = simulate(made, checkpoint=whole.checkpoints[5], saved=True)

    assert whole.states[5].measured.keys() == {0, 1}
    assert max(c.num_gradients for c in rest.applied[0]) > 1


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"optimizer": {"buffer_size": 0}}, "buffer_size must be at least 1, not 0"),
        ({"optimizer": {"activation": 0.3}}, r"activation must be at most 1 / buffer_size, here 0\.25, not 0\.3"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1"),
        (
            {"optimizer": {"nesterov": True}},
            r"optimizer\.nesterov is not an option of hetsim\.workloads\.delayed_nesterov\.DelayedNesterov",
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(keys: dict[str, Any], sentence: str):
    """Before the run."""
    with pytest.raises(ValueError, match=sentence):
        experiment("method=async_local_sgd", "workload=quadratic", **keys).load()


def test_weights_of_local_steps_are_refused_where_gradients_are_pushed():
    """They would do nothing."""
    with pytest.raises(ValueError, match=r"^weighting is PerLocalStep, but workers push gradients, not changes of several local steps"):
        experiment("method=asgd", "weighting=per_local_step", "workload=phantom")
