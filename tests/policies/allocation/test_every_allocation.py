"""What all allocations share, over random measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocation_timings import timing, timings
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hetsim.effects import Batch
from hetsim.policies.allocation.base import Allocation, Even, Fixed, Static
from hetsim.policies.allocation.gradual_shift import GradualShift
from hetsim.policies.allocation.optperf import OptPerf
from hetsim.policies.allocation.periodic import ProportionalController, SpeedProportional

pytestmark = pytest.mark.slow

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
@examples(40)
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


def test_only_a_rule_that_is_asked_to_is_profiled():
    """Gradients before the run are a price that no rule but `static` pays by itself; those that measure nothing would not use them."""
    rules = (Even(), Fixed(parts=[1, 1]), SpeedProportional(), ProportionalController(), GradualShift(), OptPerf())

    assert [rule.repetitions for rule in rules] == [0] * len(rules)
    for rule in rules[:2]:
        state = rule.initial(2, 8)
        assert rule.observe_profile(state, timings((8, 8), (1.0, 3.0))) == state
