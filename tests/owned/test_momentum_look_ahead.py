"""What a server does with late changes: a momentum that looks ahead (MLA, HeLoCo), and a discount before Adam's moments (CGAD)."""

from __future__ import annotations

from math import cos, exp, pi
from typing import Any

import numpy as np
import pytest
import torch
from worlds import UNEVEN, experiment, simulate

from hetsim.policies.weighting import Exponential
from hetsim.workloads.heloco import HeLoCo
from hetsim.workloads.momentum_look_ahead import MomentumLookAhead

KEYS: dict[str, Any] = {
    "workload": {"num_parameters": 8, "num_samples": 90},
    "batch_size": 30,
    "dtype": "float64",
    "cluster": UNEVEN,
    "coordination": {"period": 3},
    "budget": {"updates": 40},
}


def test_the_momentum_is_a_mean_and_leads_each_step():
    """Pushes of 1 and 0, η = 1, γ = ½: m = ½ and W = −(½·½ + 1); then m = ¼ and W falls by ½·¼; m is a vector like the weights."""
    weights = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = MomentumLookAhead([weights], lr=1.0, momentum=0.5)
    after = []
    for delta in (1.0, 0.0):
        weights.grad = torch.full_like(weights, delta)
        optimizer.step()
        after.append(weights.tolist())

    assert after == [[-1.25, -1.25], [-1.375, -1.375]]
    assert optimizer.state[weights]["momentum_buffer"].tolist() == [0.25, 0.25]


def pushes(run: Any) -> list[tuple[np.ndarray[Any, Any], int]]:
    """Each Δ that made a version, with its staleness: w_i − x_i of three local steps, computed again at the weights that it began at."""
    task = run.simulation.task
    versions = [task.initial(), *(state.weights for state in run.states)]
    found = []
    for group in run.applied:
        (c,) = group
        x, share = versions[c.version], c.samples // c.num_gradients
        for start in range(c.batch.start, c.batch.stop, share):
            x = x - 0.2 * task.gradient(x, type(c.batch)(start, min(share, c.batch.stop - start)))[0]
        found.append(((versions[c.version] - x).numpy(), c.staleness))
    return found


def test_mla_is_its_equations():
    """Forty pushes of unequal, noisy workers: m ← γ m + (1 − γ) Δ, W ← W − η (γ m + Δ), in NumPy."""
    run = simulate(experiment("method=mla", "workload=quadratic", **KEYS))

    w, m = run.simulation.task.initial().numpy(), np.zeros(8)
    for (delta, _), state in zip(pushes(run), run.states, strict=True):
        m = 0.9 * m + 0.1 * delta
        w = w - 0.4 * (0.9 * m + delta)
        np.testing.assert_allclose(state.weights.numpy(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("delta", "corrected"),
    [
        ((3.0, 1.0), (3.0, 1.0)),
        ((0.0, 2.0), (1.2, 1.6)),
        ((0.5, -2.0), (0.6 * 4.25**0.5, -0.8 * 4.25**0.5)),
        ((-3.0, 4.0), (-3.0 + 0.6 * 5 / 7 * 3.0, 4.0)),
        ((-8.0, 0.0), (-8.0 + 0.5 * 8.0, 0.0)),
        ((-0.3, 0.4), (-0.3 + 0.12 * 0.3, 0.4)),
        ((0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_a_change_is_corrected_by_its_angle_to_the_momentum(delta: tuple[float, float], corrected: tuple[float, float]):
    """m = (2, 0), c_ok = 0.6, k = 1, β_max = ½, κ = 1: kept; turned to 0.6, on its own side; or rid of a part of what points against m."""
    optimizer = HeLoCo([torch.nn.Parameter(torch.zeros(2))], lr=1.0, cosine=0.6, strength=1.0, most=0.5, caution=1.0)
    of, momentum = torch.tensor(delta, dtype=torch.float64), torch.tensor([2.0, 0.0], dtype=torch.float64)

    torch.testing.assert_close(optimizer.corrected(of, momentum), torch.tensor(corrected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(optimizer.corrected(of, torch.zeros_like(momentum)), of)


def test_each_parameter_of_a_model_has_an_angle_of_its_own():
    """Two steps on digits, written out parameter by parameter; the memory is vectors by name."""
    task, optimizers = experiment("method=heloco", "workload=digits", dtype="float64", optimizer={"cosine": 0.5}).load()
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(len(task.initial()), dtype=torch.float64, generator=generator) for _ in range(2))
    memory, at = optimizers.main.step(optimizers.main.initial(), task.initial(), first, 0)
    memory, at = optimizers.main.step(memory, at, second, 0)

    expected = task.initial() - 0.4 * (0.9 * 0.1 * first + first)
    rule = HeLoCo([torch.nn.Parameter(torch.zeros(1))], lr=0.4, cosine=0.5)
    for spec in task.parameters():
        part = slice(spec.start, spec.start + int(np.prod(spec.shape)))
        m = 0.1 * first[part]
        delta = rule.corrected(second[part], m)
        expected[part] -= 0.4 * (0.9 * (0.9 * m + 0.1 * delta) + delta)
    assert len(task.parameters()) > 1
    torch.testing.assert_close(at, expected, rtol=0, atol=1e-12)
    assert set(memory) == {f"{spec.name}/momentum_buffer" for spec in task.parameters()}


def test_late_changes_count_less_in_both_moments():
    """Forty pushes: Adam along Δ e^(−a τ) / (1 + τ)^b, written out in NumPy; some are late."""
    run = simulate(experiment("method=cgad", "workload=quadratic", **KEYS, discount={"rate": 0.3, "cutoff": 4}))

    w, m, v = run.simulation.task.initial().numpy(), np.zeros(8), np.zeros(8)
    found = pushes(run)
    assert len({staleness for _, staleness in found}) > 2
    for t, ((delta, staleness), state) in enumerate(zip(found, run.states, strict=True), start=1):
        g = delta * exp(-0.3 * staleness) * (1 + cos(pi * min(staleness, 4) / 4)) / 2
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.003 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(state.weights.numpy(), w, rtol=0, atol=1e-10)


def test_a_discount_of_moments_is_one_where_nothing_is_late():
    """d(0) = 1, and it falls to 0 at the cutoff; another discount with Adam on single pushes is refused: it would do next to nothing."""
    gated, alone = ([Exponential(rate=0.5, cutoff=cutoff).factor(staleness) for staleness in range(6)] for cutoff in (4, None))

    assert gated[0] == alone[0] == 1.0
    assert alone == [pytest.approx(exp(-0.5 * s)) for s in range(6)]
    assert gated == [pytest.approx(gate * d) for gate, d in zip((1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0, 0), alone, strict=True)]
    with pytest.raises(ValueError, match="Adam does not depend on a gradient's scale"):
        experiment("method=cgad", "discount=polynomial", "workload=quadratic").load()


@pytest.mark.parametrize(
    ("choices", "keys", "sentence"),
    [
        (("method=mla",), {"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1"),
        (("method=heloco",), {"optimizer": {"cosine": 1.0}}, "cosine must be at least 0 and below 1, not 1"),
        (("method=cgad",), {"discount": {"rate": -1.0}}, "discount.rate must be a finite number of at least zero, not -1"),
        (("method=cgad",), {"discount": {"cutoff": 0}}, "discount.cutoff must be at least 1, not 0"),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(choices: tuple[str, ...], keys: dict[str, Any], sentence: str):
    """With the key and the value."""
    with pytest.raises(ValueError, match=sentence):
        experiment(*choices, "workload=quadratic", **keys).load()
