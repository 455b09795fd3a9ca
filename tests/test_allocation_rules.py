"""How the shares follow what was measured: each rule by hand, and what all rules share over random measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.effects import Batch, Contribution
from hetsim.policies.allocation.base import Allocation, Even, Fixed
from hetsim.policies.allocation.gradual_shift import GradualShift
from hetsim.policies.allocation.optperf import OptPerf
from hetsim.policies.allocation.periodic import Periodic, PeriodicState, ProportionalController, SpeedProportional, averaged
from hetsim.policies.allocation.static import Static


def timing(rank: int, samples: int, seconds: float) -> Contribution:
    """One worker's gradient, as far as an allocation looks at it."""
    return Contribution(rank, Batch(0, samples), version=0, seconds=seconds, loss=0.0)


def timings(samples: Sequence[int], seconds: Sequence[float]) -> list[Contribution]:
    """A gradient of every worker, in rank order."""
    return [timing(rank, b, t) for rank, (b, t) in enumerate(zip(samples, seconds, strict=True))]


def followed(allocation: Allocation, state: Any, *steps: Sequence[float]) -> list[tuple[int, ...]]:
    """The shares after each of these updates, at which the workers took so many seconds for their share."""
    seen = []
    for seconds in steps:
        state = allocation.observe(state, timings(allocation.shares(state), seconds))
        seen.append(allocation.shares(state))
    return seen


# By speed


def test_shares_are_decided_every_so_many_updates_from_the_sums_since():
    """k = 3: twelve samples in 3 + 2 + 1 s against 9 s make 3 : 2, where the last update alone would make 3 : 1."""
    dbs = SpeedProportional(reallocate_every=3)

    assert followed(dbs, dbs.initial(2, 10), (3.0, 3.0), (2.0, 3.0), (1.0, 3.0)) == [(5, 5), (5, 5), (6, 4)]


def test_what_was_measured_before_a_decision_is_forgotten_after_it():
    """The second window of two is its own: 1 : 1 after 3 : 1."""
    dbs = SpeedProportional(reallocate_every=2)

    assert followed(dbs, dbs.initial(2, 8), (1.0, 3.0), (1.0, 3.0), (3.0, 1.0), (3.0, 1.0)) == [(4, 4), (6, 2), (6, 2), (4, 4)]


def test_an_update_without_measurements_counts_as_one_of_the_window():
    """Without a server only the update that decides is measured."""
    dbs = SpeedProportional(reallocate_every=2)
    state = dbs.observe(dbs.initial(2, 8), [])

    state = dbs.observe(state, timings((4, 4), (1.0, 3.0)))

    assert dbs.shares(state) == (6, 2)


def test_shares_are_decided_when_an_epoch_is_over():
    """From all updates of the epoch, the one that crosses its end included; every epoch has its own sums."""
    dbs = SpeedProportional(reallocate_every="epoch")
    state, seen = dbs.initial(2, 8), []

    for epoch, seconds in ((0, (1.0, 4.0)), (0, (1.0, 4.0)), (1, (1.0, 1.0)), (1, (6.0, 2.0)), (2, (6.0, 2.0))):
        state = dbs.observe(state, timings(dbs.shares(state), seconds), epoch)
        seen.append(dbs.shares(state))

    assert seen == [(4, 4), (4, 4), (6, 2), (6, 2), (4, 4)]


@pytest.mark.parametrize("rule", [SpeedProportional, ProportionalController])
@given(st.integers(1, 4) | st.just("epoch"), st.lists(st.booleans(), max_size=12))
def test_a_rule_asks_exactly_at_the_updates_where_it_decides(rule: type[Periodic], every: int | str, ends: list[bool]):
    """A measurement costs a gather: after a decision the sums are empty, and without one they are not."""
    allocation = rule(reallocate_every=every)
    state, epoch, asked, decided = allocation.initial(2, 8), 0, [], []

    for end in ends:
        epoch += end
        asked.append(allocation.asks(state, epoch))
        state = allocation.observe(state, timings(allocation.shares(state), (1.0, 3.0)), epoch)
        decided.append(state.samples == (0, 0))

    assert asked == decided
    assert asked == (ends if every == "epoch" else [update % every == 0 for update in range(1, len(ends) + 1)])


def test_smoothing_is_the_part_that_the_past_keeps_of_a_speed():
    """Measured 1 and 3, then 3 and 3 samples a second: at 0.75 the first is held for 1.5, at 0 for 3."""
    seen = [
        followed(SpeedProportional(smoothing=smoothing), SpeedProportional().initial(2, 12), (6.0, 2.0), (1.0, 3.0))
        for smoothing in (0.75, 0.0)
    ]

    assert seen == [[(3, 9), (4, 8)], [(3, 9), (6, 6)]]


def test_a_first_measurement_is_not_smoothed():
    """There is no past to keep; after that, smoothing · old + (1 − smoothing) · new."""
    assert averaged(None, 3.0, 0.75) == 3.0
    assert averaged(1.0, 3.0, 0.75) == 1.5
    assert averaged(1.0, 3.0, 0.0) == 3.0


@given(st.sampled_from([0.0, 0.25, 0.5, 0.75]), st.lists(st.sampled_from([1.0, 2.0, 4.0, 8.0]), min_size=1, max_size=8))
def test_a_smoothed_speed_is_the_exponential_moving_average_of_all_speeds(smoothing: float, seconds: list[float]):
    """v = (1 − s) Σ s^k v_k, and s^n for the first: of speeds, never of times."""
    dbs = SpeedProportional(smoothing=smoothing)
    state, s = dbs.initial(1, 16), Fraction(smoothing)
    speeds = [Fraction(16) / Fraction(t) for t in seconds]

    for t in seconds:
        state = dbs.observe(state, timings((16,), (t,)))

    expected = s ** (len(speeds) - 1) * speeds[0] + (1 - s) * sum(s**k * v for k, v in enumerate(reversed(speeds[1:])))
    assert state.v == (float(expected),)


def test_the_split_stays_while_no_share_would_change_by_more_than_the_dead_band():
    """From 8 and 8 to 10 and 6 is a quarter: allowed at 0.25, made at 0.24; the band is of the share in force."""
    seconds = (8 / 10, 8 / 6)

    kept, made = (SpeedProportional(dead_band=band) for band in (0.25, 0.24))

    assert followed(kept, kept.initial(2, 16), seconds) == [(8, 8)]
    assert followed(made, made.initial(2, 16), seconds) == [(10, 6)]


def test_the_dead_band_is_measured_at_the_share_that_would_change_most():
    """From (8, 8) to (4, 12), then a wish for (5, 11): a quarter of the smaller share, one twelfth of the larger."""
    steps = ((2.0, 8 / 12), (4 / 5, 12 / 11))
    made, kept = (SpeedProportional(dead_band=band) for band in (0.2, 0.25))

    assert followed(made, made.initial(2, 16), *steps) == [(4, 12), (5, 11)]
    assert followed(kept, kept.initial(2, 16), *steps) == [(4, 12), (4, 12)]


def test_within_the_dead_band_speeds_are_remembered_all_the_same():
    """What is smoothed goes on, so that a slow drift is followed in the end."""
    dbs = SpeedProportional(smoothing=0.5, dead_band=0.3)

    assert followed(dbs, dbs.initial(2, 16), (1.0, 1.0), (0.5, 1.0), (0.5, 1.0), (0.25, 1.0)) == [(8, 8), (8, 8), (8, 8), (12, 4)]


# The proportional controller


def test_the_controller_scales_each_share_by_the_mean_time_over_its_own():
    """Shares 6 and 6 in 1 s and 3 s: 6 · 2/1 and 6 · 2/3, renormalised to 9 and 3."""
    controller = ProportionalController()

    assert followed(controller, controller.initial(2, 12), (1.0, 3.0)) == [(9, 3)]


def test_the_controller_smooths_the_seconds_a_sample_takes():
    """At 18 and 6, 1/12 and 1/4 s a sample, the second takes 1/2: 3/8 is remembered, quotas are 19.6 and 4.4, not 20.6 and 3.4."""
    smooth, at_once = ProportionalController(), ProportionalController(smoothing=0.0)

    assert followed(smooth, smooth.initial(2, 24), (1.0, 3.0), (1.5, 3.0)) == [(18, 6), (20, 4)]
    assert followed(at_once, at_once.initial(2, 24), (1.0, 3.0), (1.5, 3.0)) == [(18, 6), (21, 3)]


def test_the_controller_keeps_the_split_while_all_times_are_within_the_dead_band():
    """Times of 3 and 5 s are a quarter off their mean: kept at 0.25, changed at 0.24."""
    kept, made = (ProportionalController(dead_band=band) for band in (0.25, 0.24))

    assert followed(kept, kept.initial(2, 16), (3.0, 5.0)) == [(8, 8)]
    assert followed(made, made.initial(2, 16), (3.0, 5.0)) == [(10, 6)]


def test_one_worker_outside_the_dead_band_is_enough():
    """3, 3 and 6 s: the mean is 4, the last half of it off, the others a quarter; whether it is slower or faster."""
    controller = ProportionalController(dead_band=0.3)

    assert followed(controller, controller.initial(3, 12), (3.0, 3.0, 6.0)) == [(5, 5, 2)]
    assert followed(controller, controller.initial(3, 12), (6.0, 6.0, 3.0)) == [(3, 3, 6)]


def test_the_controllers_own_settings_are_omnilearns():
    """Half of the past, five per cent."""
    assert (ProportionalController().smoothing, ProportionalController().dead_band) == (0.5, 0.05)


@st.composite
def measurements(draw: st.DrawFn) -> tuple[int, int, list[list[tuple[int, int]]]]:
    """N workers, B samples, and updates at which some of the workers are measured, in whole milliseconds."""
    num_workers = draw(st.integers(1, 6))
    update = st.lists(st.tuples(st.integers(0, num_workers - 1), st.integers(1, 5000)), max_size=num_workers)
    return num_workers, draw(st.integers(num_workers, 200)), draw(st.lists(update, max_size=8))


@given(measurements(), st.integers(1, 3))
def test_the_controller_without_smoothing_and_dead_band_is_dbs(measured: tuple[int, int, list[list[tuple[int, int]]]], every: int):
    """b_i · t̄/t_i renormalised is proportional to b_i/t_i."""
    num_workers, batch_size, updates = measured
    dbs = SpeedProportional(reallocate_every=every)
    controller = ProportionalController(reallocate_every=every, smoothing=0.0, dead_band=0.0)
    ours, theirs = dbs.initial(num_workers, batch_size), controller.initial(num_workers, batch_size)

    for update in updates:
        seen = [timing(rank, dbs.shares(ours)[rank], milliseconds / 1000) for rank, milliseconds in update]
        ours, theirs = dbs.observe(ours, seen), controller.observe(theirs, seen)

        assert controller.shares(theirs) == dbs.shares(ours)


@pytest.mark.parametrize("rule", [SpeedProportional, ProportionalController])
def test_the_split_stays_even_until_everyone_was_measured(rule: type[Periodic]):
    """A worker of unknown speed can have no share by speed; what was measured of the others is remembered."""
    allocation = rule()
    state, seen = allocation.initial(3, 12), []

    for rank, seconds in ((0, 4.0), (1, 2.0), (2, 2.0)):
        state = allocation.observe(state, [timing(rank, 4, seconds)])
        seen.append(allocation.shares(state))

    assert seen == [(4, 4, 4), (4, 4, 4), (2, 5, 5)]


@pytest.mark.parametrize("rule", [SpeedProportional, ProportionalController])
@pytest.mark.parametrize("nothing", [timing(0, 0, 5.0), timing(0, 0, 0.0), timing(0, 6, 0.0)])
def test_an_empty_or_instant_gradient_is_no_measurement(rule: type[Periodic], nothing: Contribution):
    """Neither its samples nor its seconds go into the window."""
    allocation = rule(reallocate_every=2)
    with_it, without = (
        allocation.observe(allocation.observe(allocation.initial(2, 12), more), timings((6, 6), (1.0, 3.0))) for more in ([nothing], [])
    )

    assert with_it == without


@pytest.mark.parametrize("rule", [SpeedProportional, ProportionalController])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reallocate_every": 0}, r"^allocation\.reallocate_every must be at least 1, not 0$"),
        ({"reallocate_every": "update"}, r"^allocation\.reallocate_every must be a number of updates or epoch, not 'update'$"),
        ({"reallocate_every": 1.5}, r"^allocation\.reallocate_every must be a whole number, not 1\.5$"),
        ({"reallocate_every": None}, r"^allocation\.reallocate_every must be a whole number, not None$"),
        ({"reallocate_every": True}, r"^allocation\.reallocate_every must be a whole number, not True$"),
        ({"smoothing": 1.0}, r"^allocation\.smoothing must be at least 0 and below 1, not 1\.0$"),
        ({"smoothing": -0.5}, r"^allocation\.smoothing must be a finite number of at least zero, not -0\.5$"),
        ({"dead_band": -0.1}, r"^allocation\.dead_band must be a finite number of at least zero, not -0\.1$"),
        ({"dead_band": "5%"}, r"^allocation\.dead_band must be a number, not '5%'$"),
    ],
)
def test_a_periodic_rule_refuses_what_makes_no_sense(rule: type[Periodic], options: dict[str, Any], sentence: str):
    """One sentence that names the key and the value."""
    with pytest.raises(ValueError, match=sentence):
        rule(**options)


@pytest.mark.parametrize("rule", [SpeedProportional, ProportionalController])
def test_a_periodic_rule_takes_what_makes_sense(rule: type[Periodic]):
    """A number of updates, or epoch; no smoothing and no dead band."""
    assert [rule(reallocate_every=every).reallocate_every for every in (1, 100, "epoch")] == [1, 100, "epoch"]
    assert rule(smoothing=0.0, dead_band=0).shares(PeriodicState.nothing(2, 8)) == (4, 4)


# Gradual shift


def test_a_shift_goes_from_the_slowest_to_the_fastest():
    """Δ = 5 of eight each; those between keep theirs."""
    shift = GradualShift(step=5)

    assert followed(shift, shift.initial(3, 24), (3.0, 1.0, 2.0), (1.0, 2.0, 3.0)) == [(3, 13, 8), (8, 13, 3)]


def test_a_shift_is_halved_when_the_one_that_received_last_is_the_slowest_now():
    """5, then back 2, then back 1, and then none: one sample there and back, to end no sooner, would go on for ever."""
    shift = GradualShift(step=5)
    state = shift.initial(2, 20)

    seen = followed(shift, state, (2.0, 1.0), (1.0, 2.0), (2.0, 1.0), (1.0, 1.05), (1.0, 1.05))

    assert seen == [(5, 15), (7, 13), (6, 14), (6, 14), (6, 14)]


def test_a_shift_at_its_smallest_still_goes_on_in_its_own_direction():
    """Only going back to where a sample would end no sooner is not made at Δ = 1."""
    shift = GradualShift(step=1)

    assert followed(shift, shift.initial(2, 20), (2.0, 1.0), (2.0, 1.0), (1.0, 1.05), (2.0, 1.0)) == [(9, 11), (8, 12), (8, 12), (7, 13)]


def test_a_shift_at_its_smallest_goes_back_when_the_speeds_have_changed():
    """A worker that received last and has become ten times as slow gives its samples back, down to the balance."""
    shift = GradualShift(step=1)
    state = shift.initial(2, 20)

    for seconds in (((0.2, 0.1),) * 40) + (((0.1, 1.0),) * 40):
        state = shift.observe(state, [timing(rank, b, b * seconds[rank]) for rank, b in enumerate(shift.shares(state))])

    assert shift.shares(state) == (19, 1)  # 1.9 s and 1 s; one sample more or less would be 2 s


def test_a_shift_waits_until_all_have_been_measured_under_the_present_split():
    """A gradient of another size, handed out before the last shift, tells nothing about this one."""
    shift = GradualShift(step=2)
    state, seen = shift.initial(2, 8), []

    for arrival in (timing(0, 4, 2.0), timing(1, 4, 1.0), timing(0, 4, 2.0), timing(1, 6, 3.0), timing(1, 4, 1.0), timing(0, 2, 1.0)):
        state = shift.observe(state, [arrival])
        seen.append(shift.shares(state))

    assert seen == [(4, 4), (2, 6), (2, 6), (2, 6), (2, 6), (3, 5)]


def test_a_shift_uses_the_newest_time_of_each():
    """Measured twice before the last one was: the second counts."""
    shift = GradualShift(step=1)
    state = shift.initial(2, 8)

    for arrival in (timing(0, 4, 9.0), timing(0, 4, 1.0), timing(1, 4, 2.0)):
        state = shift.observe(state, [arrival])

    assert shift.shares(state) == (5, 3)


def test_equal_times_shift_nothing():
    """There is no slowest of equals, and nobody received: Δ is whole when times differ again."""
    shift = GradualShift(step=4)

    assert followed(shift, shift.initial(2, 20), (2.0, 2.0), (2.0, 2.0), (2.0, 1.0)) == [(10, 10), (10, 10), (6, 14)]


def test_a_shift_leaves_a_sample_to_the_slowest():
    """Of three it can give two, whatever Δ is, and of one none."""
    shift = GradualShift(step=5)

    assert followed(shift, shift.initial(2, 6), (9.0, 1.0), (9.0, 1.0)) == [(1, 5), (1, 5)]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=2, max_size=5),
    st.integers(1, 40),
    st.integers(1, 8),
)
def test_shifts_come_to_rest_near_the_balance(nodes: list[tuple[int, int]], each: int, step: int):
    """On times overhead + b · s the slowest has only one sample, or the last sample to be moved would have to go back.

    Then it is the slowest by at most the sample that it received and the one that the fastest gave, which was not faster before that.
    """
    shift = GradualShift(step=step)
    state = shift.initial(len(nodes), each * len(nodes))

    def times(shares: Sequence[int]) -> list[int]:
        return [overhead + b * per_sample for b, (per_sample, overhead) in zip(shares, nodes, strict=True)]

    for _ in range(20 * each * len(nodes)):
        state = shift.observe(state, timings(state.shares, times(state.shares)))
    at_rest = times(state.shares)
    slowest = at_rest.index(max(at_rest))

    assert shift.observe(state, timings(state.shares, at_rest)).shares == state.shares
    others = [per_sample for rank, (per_sample, _) in enumerate(nodes) if rank != slowest]
    assert max(at_rest) - min(at_rest) <= nodes[slowest][0] + max(others) or state.shares[slowest] == 1


def test_a_step_of_no_samples_is_refused():
    """It would never shift anything."""
    with pytest.raises(ValueError, match=r"^allocation\.step must be at least 1, not 0$"):
        GradualShift(step=0)


# Static


@pytest.mark.parametrize(
    ("seconds", "batch_size", "shares"),
    [
        ((1.0, 1.0, 0.5, 0.25), 256, (32, 32, 64, 128)),
        ((3.0, 2.0, 1.0), 10, (2, 3, 5)),  # 1.82 2.73 5.45
        ((1.0, 1.0, 1.0), 7, (3, 2, 2)),  # 2.33 each: what is left over to the fastest, at a tie to the lowest rank
        ((1.0, 1.0, 1.0), 8, (2, 3, 3)),  # 2.67 each: too much is taken from the fastest
        ((1.0, 1.0), 5, (3, 2)),  # 2.5 each: rint goes to the even number
        ((1.0, 1.0), 7, (3, 4)),  # 3.5 each: to four and four, and one is taken from the fastest
        ((100.0, 1.0), 10, (1, 9)),  # 0.1 9.9: never empty
        ((100.0, 100.0, 100.0, 1.0), 4, (1, 1, 1, 1)),
        ((7.0,), 3, (3,)),
    ],
)
def test_static_rounds_to_the_nearest_and_the_fastest_makes_up_for_it(seconds: tuple[float, ...], batch_size: int, shares: tuple[int, ...]):
    """b_i = rint(B · s_i) with s_i by 1/t_i; the remainder to the fastest."""
    static = Static()
    state = static.initial(len(seconds), batch_size)

    assert static.shares(static.observe_profile(state, timings((batch_size,) * len(seconds), seconds))) == shares


def test_static_goes_by_the_sum_over_its_repetitions():
    """One slow repetition of several is part of a worker's speed: 1 + 5 s against 1 + 1 s."""
    static = Static(repetitions=2)
    profile = [*timings((8, 8), (1.0, 1.0)), *timings((8, 8), (5.0, 1.0))]

    assert static.repetitions == 2
    assert static.shares(static.observe_profile(static.initial(2, 8), profile)) == (2, 6)


def test_static_stays_for_the_run():
    """What is measured later does not matter, and it does not ask."""
    static = Static()
    state = static.observe_profile(static.initial(2, 8), timings((8, 8), (3.0, 1.0)))

    assert static.observe(state, timings((2, 6), (9.0, 0.1)), 3) == state
    assert static.shares(state) == (2, 6)
    assert not static.asks(state, 3)


def test_static_is_even_before_it_was_measured_and_measures_at_least_once():
    """Five repetitions as published, one at least."""
    assert Static().shares(Static().initial(3, 8)) == (3, 3, 2)
    assert Static().repetitions == 5
    with pytest.raises(ValueError, match=r"^allocation\.repetitions must be at least 1, not 0$"):
        Static(repetitions=0)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.data())
def test_a_static_split_is_the_rounded_one_but_for_the_fastest(seconds: list[float], data: st.DataObject):
    """Σ b_i = B, b_i ≥ 1; whoever is not the fastest has rint(B · s_i) or one, where the fastest can pay for it."""
    batch_size = data.draw(st.integers(len(seconds), 500))
    static = Static()

    profile = timings((batch_size,) * len(seconds), seconds)
    shares = static.shares(static.observe_profile(static.initial(len(seconds), batch_size), profile))

    assert sum(shares) == batch_size
    assert min(shares) >= 1
    speeds = [1 / t for t in seconds]
    fastest = speeds.index(max(speeds))
    if shares[fastest] > 1:
        others = [rank for rank in range(len(seconds)) if rank != fastest]
        assert [shares[rank] for rank in others] == [max(1, round(batch_size * speeds[rank] / sum(speeds))) for rank in others]


# What all rules share


RULES: dict[str, Allocation] = {
    "even": Even(),
    "dbs": SpeedProportional(),
    "dbs with everything": SpeedProportional(reallocate_every=2, smoothing=0.5, dead_band=0.1),
    "dbs by epochs": SpeedProportional(reallocate_every="epoch"),
    "controller": ProportionalController(),
    "controller without a dead band": ProportionalController(dead_band=0.0),
    "shift": GradualShift(),
    "shift by one": GradualShift(step=1),
    "shift by many": GradualShift(step=1000),
    "static": Static(),
    "optperf": OptPerf(),
    "optperf at once": OptPerf(probes=1),
}


@pytest.mark.parametrize("name", RULES)
@given(st.data())
def test_shares_sum_to_the_batch_and_nobody_goes_without_whatever_is_observed(name: str, data: st.DataObject):
    """Σ b_i = B and b_i ≥ 1 after any sequence of observations, of any sizes and times, by anyone, at any epoch."""
    allocation = RULES[name]
    num_workers = data.draw(st.integers(1, 5))
    batch_size = data.draw(st.integers(num_workers, 100))
    state, seen, epoch = allocation.initial(num_workers, batch_size), [], 0

    for _ in range(data.draw(st.integers(0, 6))):
        epoch += data.draw(st.booleans())
        shares = allocation.shares(state)
        ranks = data.draw(st.sampled_from([list(range(num_workers))] * 3 + [[], [0], [num_workers - 1] * 2]))
        observed = [timing(rank, shares[rank], data.draw(st.floats(1e-4, 1e4))) for rank in ranks]
        if data.draw(st.booleans()):
            observed = [replace(c, batch=Batch(0, data.draw(st.integers(0, batch_size)))) for c in observed]
        state = allocation.observe(state, observed, epoch)
        seen.append(allocation.shares(state))

    assert all(sum(shares) == batch_size and min(shares) >= 1 and len(shares) == num_workers for shares in seen)


@pytest.mark.parametrize("name", RULES)
def test_observing_changes_no_state_that_was_handed_out(name: str):
    """A state is a value: what is kept for a restart stays what it was."""
    allocation = RULES[name]
    state = allocation.initial(2, 8)
    before = repr(state), allocation.shares(state)

    allocation.observe(state, timings((4, 4), (1.0, 3.0)), 1)

    assert (repr(state), allocation.shares(state)) == before


def test_only_a_rule_that_says_so_is_profiled():
    """Five gradients before the run are a price that the others do not pay, and would not use."""
    rules = (Even(), Fixed(parts=[1, 1]), SpeedProportional(), ProportionalController(), GradualShift(), OptPerf())

    assert [rule.repetitions for rule in rules] == [0] * len(rules)
    for rule in rules:
        state = rule.initial(2, 8)
        assert rule.observe_profile(state, timings((8, 8), (1.0, 3.0))) == state
