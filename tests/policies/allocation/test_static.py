"""A split decided once, before the run: the rule by hand."""

from __future__ import annotations

import pytest
from allocation_timings import timings
from hypothesis import given
from hypothesis import strategies as st

from hetsim.policies.allocation.base import Static


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
