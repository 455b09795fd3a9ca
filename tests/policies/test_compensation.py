"""What a late gradient is corrected to: each rule by hand, in plain numbers, and where it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hetsim.effects import Batch, Contribution
from hetsim.policies.compensation import (
    AdaptiveDelayCompensation,
    Compensation,
    Dana,
    DanaState,
    DelayCompensation,
    GapAware,
    GapAwareState,
    Mixing,
    NoCompensation,
)
from hetsim.vector import Phantom

SGD = "torch.optim.SGD"

RULES: dict[str, Compensation] = {
    "none": NoCompensation(),
    "dc": DelayCompensation(strength=0.04),
    "dc_adaptive": AdaptiveDelayCompensation(strength=2.0, decay=0.95),
    "gap_aware": GapAware(learning_rate=0.1, momentum=0.9),
    "dana": Dana(learning_rate=0.1, momentum=0.9),
}


def vector(*numbers: float) -> torch.Tensor:
    """A vector in double precision."""
    return torch.tensor(numbers, dtype=torch.float64)


def contribution(gradient: Any, used: Any = None, *, rank: int = 0) -> Contribution:
    """A gradient and the weights it was computed at."""
    return Contribution(rank, Batch(0, 1), version=0, seconds=1.0, loss=0.0, gradient=gradient, used=used)


def corrected(compensation: Compensation, *steps: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> list[list[float]]:
    """What becomes of these gradients, each with where it was computed and where it is applied."""
    state, results = compensation.initial(steps[0][2], 1), []
    for gradient, used, now in steps:
        state, result = compensation.correct(state, contribution(gradient, used), now)
        results.append(result.tolist())
    return results


class Counting:
    """A vector that counts the operations on it and on results of them."""

    shape = ()

    def __init__(self) -> None:
        self.num = 0

    def once(self, *_: Any) -> Counting:
        """One more operation. The result is this vector."""
        self.num += 1
        return self

    def new_zeros(self, shape: Any) -> Counting:
        """The state of a rule."""
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __abs__ = sqrt = once


@pytest.mark.parametrize("name", [*RULES, "mixing"])
def test_the_operations_of_each_rule_are_counted(name: str) -> None:
    """Those of a correction and of the weights that are sent, by the number that a server's time depends on."""
    rule, vector = {**RULES, "mixing": Mixing()}[name], Counting()
    state, _ = rule.correct(rule.initial(vector, 1), contribution(vector, vector), vector)

    rule.outgoing(state, vector)

    assert vector.num == rule.operations


def test_every_rule_is_in_the_table() -> None:
    """Also those that are added later."""
    shipped = {rule for rule in Compensation.__subclasses__() if rule.__module__.startswith("hetsim.")}

    assert shipped == {type(rule) for rule in RULES.values()} | {Mixing}


# DC-ASGD


def test_a_delay_is_corrected_by_the_square_of_the_gradient_times_the_way_gone():
    """g + λ g² (W − w_i): 2 + 0.5 · 4 · 3, −1 + 0.5 · 1 · −4, 0 wherever g is."""
    dc = DelayCompensation(strength=0.5)

    assert corrected(dc, (vector(2.0, -1.0, 0.0), vector(1.0, 5.0, 0.0), vector(4.0, 1.0, 9.0))) == [[8.0, -3.0, 0.0]]


@pytest.mark.parametrize(("decay", "epsilon"), [(0.75, 1e-7), (0.0, 0.25), (0.95, 1e-7)])
def test_the_adaptive_correction_divides_by_the_root_of_the_mean_square(decay: float, epsilon: float):
    """g + λ0/√(MS + ε) g² (W − w_i), MS = m MS + (1 − m) g² from zero on, this gradient's square included."""
    steps = [(2.0, 1.0, 4.0), (-1.0, 0.5, 0.25), (3.0, 2.0, 2.5)]
    mean_square, expected = 0.0, []
    for g, used, now in steps:
        mean_square = decay * mean_square + (1 - decay) * g * g
        expected.append([g + 2.0 / sqrt(mean_square + epsilon) * g * g * (now - used)])

    results = corrected(
        AdaptiveDelayCompensation(strength=2.0, decay=decay, epsilon=epsilon), *[tuple(vector(x) for x in step) for step in steps]
    )

    assert results == [pytest.approx(numbers, rel=1e-15) for numbers in expected]


def test_the_adaptive_correction_by_hand():
    """m = 0.75, ε = 1: g = 4 makes MS a quarter of 16, and 16 · 2 / √5 is added; of 20 a gradient of zero leaves three quarters."""
    dc = AdaptiveDelayCompensation(strength=1.0, decay=0.75, epsilon=1.0)

    state, result = dc.correct(vector(0.0), contribution(vector(4.0), vector(1.0)), vector(3.0))

    assert state.tolist() == [4.0]
    assert result.tolist() == [pytest.approx(4.0 + 32.0 / sqrt(5.0), rel=1e-15)]
    assert dc.correct(vector(20.0), contribution(vector(0.0), vector(1.0)), vector(3.0))[0].tolist() == [15.0]


def test_a_mean_square_that_remembers_nothing_is_this_gradients():
    """m = 0, as OD-SGD has it: g + λ0 |g| (W − w_i), but for ε; each number for itself."""
    dc = AdaptiveDelayCompensation(strength=2.0, decay=0.0, epsilon=1e-300)

    assert corrected(dc, *[(vector(3.0, -4.0), vector(0.0, 0.0), vector(1.0, 0.5))] * 2) == [[9.0, 0.0]] * 2


# Gap-Aware


def test_a_gap_of_a_usual_step_halves_a_gradient():
    """C = scale · η(√v̂ + ε): 0.5 · (√16 + 0) = 2; gaps of 0, 2 and −6 leave the whole, a half and a quarter."""
    gap_aware = GapAware(learning_rate=0.5, momentum=0.0, decay=0.5, epsilon=1e-300)
    known = GapAwareState(vector(0.0, 0.0, 0.0), vector(8.0, 8.0, 8.0), num_steps=1)  # 8 / (1 − 0.5) is 16

    state, result = gap_aware.correct(known, contribution(vector(4.0, 4.0, -4.0), vector(1.0, 1.0, 1.0)), vector(1.0, 3.0, -5.0))

    assert result.tolist() == [4.0, 2.0, -1.0]
    assert state.u.tolist() == [4.0, 2.0, -1.0]
    assert state.v.tolist() == [4.0 + 8.0, 4.0 + 2.0, 4.0 + 0.5]
    assert state.num_steps == 2


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_gaps_are_measured_in_steps_of_the_momentum_buffer(scale: float):
    """u = γu + g of what was really applied; v = βv + (1 − β)u², without its beginning at zero: v/(1 − βⁿ)."""
    rate, gamma, beta, epsilon = 0.1, 0.9, 0.99, 1e-3
    steps = [(2.0, 1.0, 1.0), (-1.0, 1.0, 0.5), (3.0, 0.5, 0.75), (0.5, 0.0, 0.75)]
    u = v = 0.0
    expected = []
    for count, (gradient, used, now) in enumerate(steps):
        average = v / (1 - beta**count) if count else 0.0
        g = gradient / (1 + abs(now - used) / (scale * rate * (sqrt(average) + epsilon)))
        u = gamma * u + g
        v = beta * v + (1 - beta) * u * u
        expected.append([g])

    results = corrected(
        GapAware(learning_rate=rate, momentum=gamma, decay=beta, epsilon=epsilon, scale=scale),
        *[tuple(vector(x) for x in step) for step in steps],
    )

    assert results == [pytest.approx(numbers, rel=1e-13) for numbers in expected]


def test_the_buffer_of_gap_aware_is_the_one_that_the_optimizer_has():
    """torch.optim.SGD, fed what Gap-Aware hands on, keeps the same u."""
    gap_aware = GapAware(learning_rate=0.25, momentum=0.5)
    weights = torch.nn.Parameter(vector(1.0, -2.0))
    optimizer = torch.optim.SGD([weights], lr=0.25, momentum=0.5)
    state = gap_aware.initial(weights.detach(), 2)
    used = vector(1.0, -2.0)

    for gradient in (vector(1.0, 2.0), vector(-3.0, 0.5), vector(0.25, 0.125)):
        state, weights.grad = gap_aware.correct(state, contribution(gradient, used), weights.detach().clone())
        optimizer.step()

        assert torch.equal(state.u, optimizer.state[weights]["momentum_buffer"])


def test_gap_aware_never_makes_a_gradient_larger_or_turns_it():
    """It divides by at least one, the more the larger the gap is."""
    gap_aware = GapAware(learning_rate=0.1, momentum=0.9)
    state, _ = gap_aware.correct(gap_aware.initial(vector(0.0), 1), contribution(vector(1.0), vector(0.0)), vector(0.0))

    results = [gap_aware.correct(state, contribution(vector(-1.0), vector(0.0)), vector(gap))[1].item() for gap in (0.0, 0.1, -0.2, 5.0)]

    assert results[0] == -1.0
    assert results == sorted(results)
    assert results[-1] < 0.0
    assert len(set(results)) == 4


# DANA


def test_dana_keeps_a_momentum_for_each_worker_and_looks_ahead_by_all_of_them():
    """v_i = γ v_i + g_i with γ = 0.5; workers compute at W − ηγ Σ v_j with η = 0.25."""
    dana = Dana(momentum=0.5, learning_rate=0.25)
    weights = vector(10.0, 10.0)
    state, applied, sent = dana.initial(weights, 3), [], [dana.outgoing(dana.initial(weights, 3), weights).tolist()]

    for rank, gradient in ((0, (8.0, 0.0)), (2, (4.0, 16.0)), (0, (0.0, -8.0)), (2, (2.0, 0.0))):
        state, velocity = dana.correct(state, contribution(vector(*gradient), rank=rank), weights)
        applied.append(velocity.tolist())
        sent.append(dana.outgoing(state, weights).tolist())

    assert applied == [[8.0, 0.0], [4.0, 16.0], [4.0, -8.0], [4.0, 8.0]]
    assert [v.tolist() for v in state.v] == [[4.0, -8.0], [0.0, 0.0], [4.0, 8.0]]
    assert sent == [[10.0, 10.0], [9.0, 10.0], [8.5, 8.0], [9.0, 9.0], [9.0, 10.0]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-100, 100)), max_size=30))
def test_danas_sum_of_velocities_is_the_sum_of_its_parts(steps: list[tuple[int, int]]):
    """After any number of steps, by whomever; γ is a half, so sums of double precision are exact."""
    dana = Dana(momentum=0.5, learning_rate=1.0)
    state = dana.initial(vector(0.0), 4)

    for rank, gradient in steps:
        state, _ = dana.correct(state, contribution(vector(float(gradient)), rank=rank), vector(0.0))

    assert torch.equal(state.total, sum(state.v))


def test_dana_with_one_worker_is_momentum_and_its_nesterov_look_ahead():
    """v = γ v + g is the buffer of torch.optim.SGD; W − ηγ v is where its next step would lead without a gradient."""
    dana = Dana(momentum=0.5, learning_rate=0.25)
    weights = torch.nn.Parameter(vector(1.0, -2.0))
    optimizer = torch.optim.SGD([weights], lr=0.25, momentum=0.5)
    state, ours = dana.initial(weights.detach(), 1), weights.detach().clone()

    for gradient in (vector(1.0, 2.0), vector(-3.0, 0.5), vector(0.25, 0.125)):
        weights.grad = gradient
        optimizer.step()
        state, velocity = dana.correct(state, contribution(gradient), ours)
        ours = ours - 0.25 * velocity

        assert torch.equal(ours, weights.detach())
        assert torch.equal(dana.outgoing(state, ours), weights.detach() - 0.25 * 0.5 * optimizer.state[weights]["momentum_buffer"])


def test_dana_without_momentum_is_asynchronous_sgd():
    """The gradient as it came, the weights as they are."""
    dana, weights = Dana(momentum=0.0, learning_rate=0.25), vector(3.0)
    state = dana.initial(weights, 2)

    for gradient in (vector(2.0), vector(-5.0)):
        state, result = dana.correct(state, contribution(gradient, rank=1), weights)

        assert torch.equal(result, gradient)
        assert torch.equal(dana.outgoing(state, weights), weights)


# Where nothing changes


@pytest.mark.parametrize(
    "compensation",
    [
        DelayCompensation(strength=0.0),
        AdaptiveDelayCompensation(strength=0.0, decay=0.95),
        GapAware(learning_rate=0.1, momentum=0.9, scale=inf),
    ],
)
def test_without_strength_or_with_an_endless_scale_a_gradient_stays_as_it_is(compensation: Compensation):
    """To the bit, however far the weights have moved on, step after step."""
    gradients = [vector(0.1, -3.0, 0.0), vector(1e-9, 7.0, 1e9)]

    results = corrected(compensation, *[(g, vector(0.0, 1.0, -5.0), vector(9.0, 0.3, 1e6)) for g in gradients])

    assert results == [g.tolist() for g in gradients]


@pytest.mark.parametrize("name", ["none", "dc", "dc_adaptive", "gap_aware"])
def test_a_gradient_that_is_not_late_stays_as_it_is(name: str):
    """W = w_i: to the bit, also in the first step, when nothing is known."""
    gradients = [vector(0.1, -3.0, 0.0), vector(1e-9, 7.0, 1e9), vector(-0.7, 0.0, 0.2)]

    results = corrected(RULES[name], *[(g, vector(0.3, 1.0, -5.0), vector(0.3, 1.0, -5.0)) for g in gradients])

    assert results == [g.tolist() for g in gradients]


@pytest.mark.parametrize("name", ["none", "dc", "dc_adaptive", "gap_aware"])
def test_only_dana_sends_anything_but_the_weights(name: str):
    """The very vector, before a gradient and after it."""
    compensation, weights = RULES[name], vector(1.0, 2.0)
    state, _ = compensation.correct(compensation.initial(weights, 2), contribution(vector(1.0, 1.0), vector(0.0, 0.0)), weights)

    assert compensation.outgoing(compensation.initial(weights, 2), weights) is weights
    assert compensation.outgoing(state, weights) is weights


@pytest.mark.parametrize("name", ["dc", "dc_adaptive", "gap_aware", "dana"])
def test_a_correction_leaves_all_it_was_given_as_it_was(name: str):
    """Gradient, weights and state: a slower worker may hold the one, a checkpoint the other."""
    compensation = RULES[name]
    gradient, used, now = vector(1.0, -2.0), vector(0.0, 0.5), vector(1.0, 0.25)
    first, _ = compensation.correct(compensation.initial(now, 2), contribution(gradient, used), now)
    before = repr(first)

    compensation.correct(first, contribution(gradient, used), now)
    compensation.outgoing(first, now)

    assert (gradient.tolist(), used.tolist(), now.tolist()) == ([1.0, -2.0], [0.0, 0.5], [1.0, 0.25])
    assert repr(first) == before


@pytest.mark.parametrize("name", RULES)
def test_a_phantom_is_corrected_to_itself(name: str):
    """It takes time to move, and nothing else: no rule needs numbers."""
    compensation, phantom = RULES[name], Phantom(64)
    state = compensation.initial(phantom, 3)

    for rank in (2, 0, 2):
        state, result = compensation.correct(state, contribution(phantom, phantom, rank=rank), phantom)

        assert result is phantom
        assert compensation.outgoing(state, phantom) is phantom


def test_a_state_begins_with_zeros_of_the_size_of_the_weights():
    """In their own kind."""
    weights = torch.ones(3, dtype=torch.float32)
    zeros = [0.0, 0.0, 0.0]

    adaptive, momentum, velocities = (RULES[name].initial(weights, 2) for name in ("dc_adaptive", "gap_aware", "dana"))

    assert isinstance(momentum, GapAwareState)
    assert isinstance(velocities, DanaState)
    vectors: Sequence[torch.Tensor] = [adaptive, momentum.u, momentum.v, *velocities.v, velocities.total]
    assert [(x.tolist(), x.dtype) for x in vectors] == [(zeros, torch.float32)] * 6
    assert momentum.num_steps == 0


# What suits them


def test_only_what_needs_no_server_can_correct_a_workers_own_step():
    """Gap-Aware and DANA mean the server's momentum."""
    assert {name: rule.corrects_locally for name, rule in RULES.items()} == {
        "none": True,
        "dc": True,
        "dc_adaptive": True,
        "gap_aware": False,
        "dana": False,
    }


@pytest.mark.parametrize("name", ["none", "dc", "dc_adaptive"])
def test_a_first_order_correction_suits_any_optimizer(name: str):
    """It is a gradient, whatever is done with it."""
    RULES[name].suits("torch.optim.AdamW", {"lr": 3.0}, "torch.optim.lr_scheduler.StepLR")


@pytest.mark.parametrize(
    ("optimizer", "options", "schedule", "sentence"),
    [
        (SGD, {"lr": 0.1, "momentum": 0.9}, None, r"^compensation=dana .*must be torch\.optim\.SGD without one.*momentum=0\.9"),
        ("torch.optim.Adam", {"lr": 0.1}, None, r"^compensation=dana .*must be torch\.optim\.SGD.*not torch\.optim\.Adam"),
        (SGD, {"lr": 0.2}, None, r"^compensation\.learning_rate=0\.1 is not the optimizer's \(0\.2\)"),
        (SGD, {}, None, r"^compensation\.learning_rate=0\.1 is not the optimizer's \(None\)"),
        (SGD, {"lr": 0.1}, "torch.optim.lr_scheduler.StepLR", r"^compensation=dana .*leave learning_rate_schedule out"),
    ],
)
def test_dana_refuses_what_makes_nonsense_of_it(optimizer: str, options: dict[str, Any], schedule: str | None, sentence: str):
    """A second momentum, another optimizer, another learning rate, or one that changes; plain SGD of the same rate suits it."""
    dana = RULES["dana"]

    dana.suits(SGD, {"lr": 0.1}, None)
    dana.suits(SGD, {"lr": 0.1, "momentum": 0.0}, None)
    with pytest.raises(ValueError, match=sentence):
        dana.suits(optimizer, options, schedule)


@pytest.mark.parametrize(
    ("optimizer", "options", "sentence"),
    [
        (SGD, {"lr": 0.2, "momentum": 0.9}, r"^compensation measures gaps.*lr=0\.1, but.*lr=0\.2: set"),
        (SGD, {"lr": 0.1, "momentum": 0.5}, r"^compensation measures gaps.*momentum=0\.9, but.*momentum=0\.5: set"),
        (SGD, {"lr": 0.1}, r"^compensation measures gaps.*momentum=0\.9, but.*momentum=0: set"),
        (SGD, {"momentum": 0.9}, r"^compensation measures gaps.*lr=0\.1, but.*lr=None: set"),
        (
            "torch.optim.AdamW",
            {"lr": 0.1, "momentum": 0.9},
            r"^compensation measures gaps.*torch\.optim\.SGD.*but the optimizer is torch\.optim\.AdamW",
        ),
    ],
)
def test_gap_aware_refuses_an_optimizer_that_takes_other_steps(optimizer: str, options: dict[str, Any], sentence: str):
    """Its rate and its momentum are the optimizer's, or a gap in steps means nothing; without momentum both have none."""
    gap_aware = RULES["gap_aware"]

    gap_aware.suits(SGD, {"lr": 0.1, "momentum": 0.9}, None)
    GapAware(learning_rate=0.1, momentum=0.0).suits(SGD, {"lr": 0.1}, None)
    with pytest.raises(ValueError, match=sentence):
        gap_aware.suits(optimizer, options, None)


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (DelayCompensation, {"strength": -0.1}, r"^compensation\.strength must be a finite number of at least zero, not -0\.1$"),
        (
            AdaptiveDelayCompensation,
            {"strength": inf, "decay": 0.5},
            r"^compensation\.strength must be a finite number of at least zero, not inf$",
        ),
        (AdaptiveDelayCompensation, {"strength": 2.0, "decay": 1.0}, r"^compensation\.decay must be at least 0 and below 1, not 1\.0$"),
        (
            AdaptiveDelayCompensation,
            {"strength": 2.0, "decay": 0.5, "epsilon": 0},
            r"^compensation\.epsilon must be a finite number above zero",
        ),
        (GapAware, {"learning_rate": 0, "momentum": 0.9}, r"^compensation\.learning_rate must be a finite number above zero, not 0$"),
        (GapAware, {"learning_rate": 0.1, "momentum": 1}, r"^compensation\.momentum must be at least 0 and below 1, not 1$"),
        (GapAware, {"learning_rate": 0.1, "momentum": 0.9, "decay": 1}, r"^compensation\.decay must be at least 0 and below 1, not 1$"),
        (GapAware, {"learning_rate": 0.1, "momentum": 0.9, "epsilon": 0}, r"^compensation\.epsilon must be a finite number above zero"),
        (GapAware, {"learning_rate": 0.1, "momentum": 0.9, "scale": 0}, r"^compensation\.scale must be a finite number above zero, not 0$"),
        (Dana, {"learning_rate": 0.1, "momentum": 1.0}, r"^compensation\.momentum must be at least 0 and below 1, not 1\.0$"),
        (Dana, {"learning_rate": -1, "momentum": 0.9}, r"^compensation\.learning_rate must be a finite number above zero, not -1$"),
    ],
)
def test_a_compensation_refuses_what_makes_no_sense(make: type[Compensation], options: dict[str, float], sentence: str):
    """One sentence that names the key and the value."""
    with pytest.raises(ValueError, match=sentence):
        make(**options)
