"""Decisions are pure functions: what goes in, what comes out, and the laws of each published rule."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hetsim.effects import Batch, Contribution
from hetsim.policies.admission import Barrier, Decision, EveryGradient
from hetsim.policies.allocation.base import Even, Fixed, Static, proportional
from hetsim.policies.allocation.gradual_shift import GradualShift
from hetsim.policies.allocation.optperf import OptPerf
from hetsim.policies.allocation.periodic import ProportionalController, SpeedProportional
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.weighting import NoDiscount, PerSample, PerWorker


def contribution(rank: int, samples: int = 1, *, seconds: float = 1.0, gradient: Any = None) -> Contribution:
    """A gradient by one worker."""
    return Contribution(rank, Batch(0, samples), version=0, seconds=seconds, loss=0.0, gradient=gradient)


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[float], int]:
    """Some workers' speeds, and a batch of at least one sample each."""
    weights = draw(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9))
    return weights, draw(st.integers(len(weights), 300))


# Largest remainder


@given(splits())
@example(([1254.9349977216366] * 8, 8))
def test_shares_sum_to_the_batch_and_nobody_goes_without(split: tuple[list[float], int]):
    """Σ b_i = B and b_i ≥ 1, also where B is no more than one sample for each."""
    weights, total = split

    shares = proportional(weights, total)

    assert sum(shares) == total
    assert min(shares) >= 1


@given(splits())
@example(([999999.9999999999, 1e6], 3))
def test_a_faster_worker_never_takes_less(split: tuple[list[float], int]):
    """v_i ≥ v_j implies b_i ≥ b_j, except where a tie goes to the lower rank; quotas within 10⁻⁹ of a sample are a tie."""
    weights, total = split

    shares = proportional(weights, total)

    assert all(
        shares[i] >= shares[j]
        for i in range(len(weights))
        for j in range(len(weights))
        if weights[i] > weights[j] * (1 + 2e-9) or (weights[i] == weights[j] and i < j)
    )


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 400))
def test_shares_are_within_one_of_their_quota(weights: list[int], total: int):
    """Floor of the exact quota B·v_i/Σv, or one more, where no quota is below one."""
    quotas = [Fraction(weight * total, sum(weights)) for weight in weights]
    if min(quotas) < 1:
        return

    shares = proportional([float(weight) for weight in weights], total)

    assert all(share - floor(quota) in (0, 1) for share, quota in zip(shares, quotas, strict=True))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 40))
def test_whole_quotas_are_met_exactly(weights: list[int], scale: int):
    """Where B divides in proportion without a remainder, nothing is rounded, however large the common factor of the speeds."""
    shares = proportional([weight * 0.1 for weight in weights], scale * sum(weights))

    assert shares == tuple(scale * weight for weight in weights)


@pytest.mark.parametrize(
    ("weights", "total", "shares"),
    [
        ([1.0, 1.0, 2.0, 4.0], 256, (32, 32, 64, 128)),
        ([1.0, 1.0, 1.0], 5, (2, 2, 1)),  # equal remainders: the lower ranks
        ([1.0, 1.0, 1.0, 1.0], 6, (2, 2, 1, 1)),
        ([1.0, 2.0, 4.0], 10, (1, 3, 6)),  # 1.43 2.86 5.71: the largest remainder first
        ([1.0, 1000.0], 10, (1, 9)),  # 0.01 9.99: never below one
        ([1.0, 1.0, 1000.0, 500.0], 8, (1, 1, 4, 2)),  # two are held at one, the other six split by speed
        ([7.0], 3, (3,)),
        ([1.0, 8.0, 10.0, 10.0, 4.0], 88, (3, 21, 27, 27, 10)),  # 2.67 21.33 26.67 26.67 10.67: equal remainders, however they round
        ([1e308, 1e308], 3, (2, 1)),  # whatever a user's parts are
        ([5e-324, 5e-324], 3, (2, 1)),
    ],
)
def test_largest_remainder_by_hand(weights: list[float], total: int, shares: tuple[int, ...]):
    """Floors of the quotas, then one more for each of the largest remainders."""
    assert proportional(weights, total) == shares


# Allocation


def test_even_gives_everyone_the_same_and_the_rest_to_the_lower_ranks():
    """B/N, to a sample."""
    even = Even()

    state = even.observe(even.initial(3, 11), [contribution(0, 4, seconds=9.0)])

    assert even.shares(state) == (4, 4, 3)


def test_fixed_gives_each_its_part_for_ever():
    """Parts are relative, and what is measured does not matter."""
    small, large = Fixed(parts=[1, 1, 2, 4]), Fixed(parts=[32, 32, 64, 128])

    assert small.shares(small.initial(4, 256)) == (32, 32, 64, 128)
    assert large.shares(large.initial(4, 8)) == (1, 1, 2, 4)
    assert small.shares(small.observe(small.initial(4, 8), [contribution(0, 1, seconds=9.0)])) == (1, 1, 2, 4)


@pytest.mark.parametrize("parts", [[], [1, 0], [1, -2], [1, float("nan")], [1, float("inf")], [1, True], [1, "2"], "12", 3, None, {"a": 1}])
def test_fixed_refuses_what_is_no_list_of_positive_numbers(parts: Any):
    """One sentence that names the key."""
    with pytest.raises(ValueError, match=r"^allocation\.parts .*positive number"):
        Fixed(parts=parts)


def test_fixed_refuses_another_number_of_workers():
    """Silence about a worker is an error, never zero."""
    with pytest.raises(ValueError, match=r"^allocation\.parts has 2 numbers, but the cluster has 3 workers"):
        Fixed(parts=[1, 2]).initial(3, 12)


def test_dbs_is_even_until_everyone_was_measured():
    """A worker of unknown speed can have no share by speed."""
    dbs = SpeedProportional()
    state = dbs.initial(3, 12)

    seen = [dbs.shares(state)]
    for rank, seconds in ((0, 4.0), (1, 2.0), (2, 2.0)):
        state = dbs.observe(state, [contribution(rank, 4, seconds=seconds)])
        seen.append(dbs.shares(state))

    assert seen == [(4, 4, 4), (4, 4, 4), (4, 4, 4), (2, 5, 5)]


def test_dbs_shares_by_samples_per_second():
    """b_i = B · v_i / Σ v_j with v_i = b_i / t_i: 1 : 1 : 2 : 4 samples a second, measured on unequal batches."""
    dbs = SpeedProportional()

    state = dbs.observe(
        dbs.initial(4, 256), [contribution(rank, b, seconds=t) for rank, (b, t) in enumerate([(8, 8.0), (4, 4.0), (6, 3.0), (16, 4.0)])]
    )

    assert dbs.shares(state) == (32, 32, 64, 128)


def test_dbs_follows_a_change_of_speed():
    """The speed last measured is the one that counts, and only its worker needs to be measured again."""
    dbs = SpeedProportional()
    state = dbs.observe(dbs.initial(2, 12), [contribution(0, 6, seconds=1.0), contribution(1, 6, seconds=1.0)])

    slower = dbs.observe(state, [contribution(0, 6, seconds=3.0)])

    assert (dbs.shares(state), dbs.shares(slower)) == ((6, 6), (3, 9))


@pytest.mark.parametrize("timing", [contribution(0, 0, seconds=5.0), contribution(0, 0, seconds=0.0), contribution(0, 6, seconds=0.0)])
def test_dbs_learns_nothing_from_an_empty_or_instant_gradient(timing: Contribution):
    """Behind the end of an epoch budget a range is empty and says nothing about speed."""
    dbs = SpeedProportional()
    state = dbs.observe(dbs.initial(2, 12), [contribution(0, 6, seconds=1.0), contribution(1, 6, seconds=3.0)])

    assert dbs.observe(state, [timing]) == state


def test_only_rules_that_measure_ask_for_measurements():
    """What does not use them does not pay for a gather; OptPerf pays until it knows enough."""
    rules = (Even(), Fixed(parts=[1, 1]), Static(), SpeedProportional(), ProportionalController(), GradualShift(), OptPerf())

    assert [rule.asks(rule.initial(2, 8), 0) for rule in rules] == [False, False, False, True, True, True, True]


# Weighting


def test_per_worker_counts_every_mean_alike():
    """w_i = 1, however many samples are behind it."""
    assert PerWorker().weights([contribution(0, 1), contribution(1, 99)], 50.0) == (1.0, 1.0)


def test_per_sample_counts_every_sample_alike():
    """w_i = N · b_i / B: of two workers' batch of 12, one with 3 samples counts half, one with 9 one and a half."""
    assert PerSample().weights([contribution(0, 3), contribution(1, 9)], 12 / 2) == (0.5, 1.5)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_per_sample_behind_a_barrier_is_the_mean_over_all_samples(samples: list[int]):
    """(1/c) w_i = b_i / Σ b_j, also for a group smaller than a global batch."""
    group = [contribution(rank, count) for rank, count in enumerate(samples)]

    weights = PerSample().weights(group, Barrier().fair_share(group, 10_000, 8))

    assert [weight / len(group) for weight in weights] == pytest.approx([count / sum(samples) for count in samples], rel=1e-14)


def test_a_gradient_on_its_own_is_compared_with_an_equal_part_of_the_batch():
    """On arrival there is no group: N · b_i / B scales the learning rate by the share."""
    assert EveryGradient().fair_share([contribution(0, 3)], 12, 4) == 3.0


def test_the_identities_change_nothing():
    """No discount is a factor of one, no compensation hands back the very gradient and sends the very weights."""
    gradient, weights = object(), object()
    nothing = NoCompensation()

    assert [NoDiscount().factor(staleness) for staleness in (0, 1, 100)] == [1.0, 1.0, 1.0]
    assert nothing.correct(nothing.initial(weights, 4), contribution(0, gradient=gradient), weights) == (None, gradient)
    assert nothing.outgoing(None, weights) is weights


# Admission


def test_every_gradient_is_applied_as_it_arrives_and_frees_its_worker():
    """Asynchronous SGD."""
    every = EveryGradient()
    arrival = contribution(2)

    assert every.arrived(every.initial(4), arrival) == (None, Decision(apply=(arrival,), release=(2,)))
    assert every.worker_left(None, 2) == (None, Decision())


def test_a_barrier_waits_for_everyone_and_applies_in_rank_order():
    """Nothing happens until the last is here; then all as one, whatever order they came in; then the next round."""
    barrier = Barrier()
    state = barrier.initial(3)
    arrivals = {rank: contribution(rank) for rank in range(3)}

    decisions = []
    for rank in (2, 0, 1, 1, 2, 0):
        state, decision = barrier.arrived(state, arrivals[rank])
        decisions.append(decision)

    everyone = Decision(apply=tuple(arrivals.values()), release=(0, 1, 2))
    assert decisions == [Decision(), Decision(), everyone, Decision(), Decision(), everyone]
    assert state == barrier.initial(3)


def test_a_worker_that_leaves_completes_the_round_of_the_others():
    """At the end of an epoch budget there is no range for it, and the last group is smaller."""
    barrier = Barrier()
    first, second = contribution(0), contribution(1)
    state, _ = barrier.arrived(barrier.initial(3), second)
    state, _ = barrier.arrived(state, first)

    state, decision = barrier.worker_left(state, 2)

    assert decision == Decision(apply=(first, second), release=(0, 1))
    assert barrier.arrived(barrier.worker_left(state, 1)[0], first)[1] == Decision(apply=(first,), release=(0,))


def test_a_worker_that_leaves_an_empty_barrier_applies_nothing():
    """There is nothing to apply when the last one goes."""
    barrier = Barrier()
    state = barrier.initial(2)

    for rank in (1, 0):
        state, decision = barrier.worker_left(state, rank)
        assert decision == Decision()


def test_a_barriers_group_is_its_own_global_batch():
    """The last, shorter batch is averaged over the samples that it has."""
    assert Barrier().fair_share([contribution(0, 3), contribution(1, 2)], 256, 4) == 2.5


@pytest.mark.parametrize(
    "policy", [Even(), Fixed(parts=[1, 2]), SpeedProportional(), PerSample(), EveryGradient(), Barrier(), NoDiscount(), NoCompensation()]
)
def test_policies_are_frozen_values(policy: Any):
    """The same configuration is the same policy; nothing in it changes as it decides."""
    with pytest.raises(AttributeError):
        policy.anything = 1
