"""Samples shifted from the slowest to the fastest: the rule by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from allocation_timings import followed, timing, timings
from hypothesis import given
from hypothesis import strategies as st

from hetsim.policies.allocation.gradual_shift import GradualShift


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


@pytest.mark.slow
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
