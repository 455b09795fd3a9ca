"""Shares by measured speed, and the proportional controller: each rule by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from allocation_timings import followed, timing, timings
from hypothesis import given
from hypothesis import strategies as st

from hetsim.effects import Contribution
from hetsim.policies.allocation.periodic import Periodic, PeriodicState, ProportionalController, SpeedProportional, moving_average

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
    assert moving_average(None, 3.0, 0.75) == 3.0
    assert moving_average(1.0, 3.0, 0.75) == 1.5
    assert moving_average(1.0, 3.0, 0.0) == 3.0


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
    assert rule(smoothing=0.0, dead_band=0).shares(PeriodicState.initial(2, 8)) == (4, 4)
