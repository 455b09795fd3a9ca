"""Measured before the run: any allocation that measures begins with the measured split, in every world, and by default none does."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from allocation_timings import followed, timings
from hypothesis import given
from hypothesis import strategies as st
from threads import run_in_threads
from worlds import cluster, experiment, node, rows_of, simulate

from hetsim.policies.allocation.base import Allocation, Static
from hetsim.policies.allocation.gradual_shift import GradualShift
from hetsim.policies.allocation.optperf import OptPerf
from hetsim.policies.allocation.periodic import ProportionalController, SpeedProportional
from hetsim.runtime.profiling import NUM_PERIODS

RULES: dict[str, Allocation] = {
    "dbs": SpeedProportional(repetitions=2),
    "dbs_per_epoch": SpeedProportional(repetitions=2, reallocate_every="epoch"),
    "omnilearn": ProportionalController(repetitions=2),
    "lb_bsp": GradualShift(repetitions=2),
    "optperf": OptPerf(repetitions=2),
    "static": Static(repetitions=2),
}
EVERY_RULE = pytest.mark.parametrize("name", RULES)
UNEVEN = cluster(node(8e-4), node(2e-4, count=2), node(4e-4))
BY_SPEED = (16, 64, 64, 32)


@EVERY_RULE
def test_the_first_split_is_by_the_measured_speeds(name: str):
    """Of all repetitions: 4 + 2 s against 1 + 1 s for as many samples is a speed of a third."""
    rule = RULES[name]
    profile = [*timings((16, 16), (4.0, 1.0)), *timings((16, 16), (2.0, 1.0))]

    assert rule.shares(rule.observe_profile(rule.initial(2, 16), profile)) == (4, 12)


@EVERY_RULE
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5), st.integers(1, 20), st.data())
def test_it_is_a_split_within_memory(name: str, seconds: list[float], each: int, data: st.DataObject):
    """Σ b_i = B and 1 ≤ b_i ≤ max_samples_i."""
    rule, total = RULES[name], each * len(seconds)
    most = data.draw(st.lists(st.integers(each, total), min_size=len(seconds), max_size=len(seconds)))
    state = rule.initial(len(seconds), total, most)

    shares = rule.shares(rule.observe_profile(state, timings([min(total, bound) for bound in most], seconds)))

    assert sum(shares) == total
    assert all(1 <= b <= bound for b, bound in zip(shares, most, strict=True))


@pytest.mark.parametrize("kind", [SpeedProportional, ProportionalController, GradualShift, OptPerf])
def test_none_is_the_default_and_a_wrong_number_is_refused(kind: type[Any]):
    """One sentence."""
    assert kind().repetitions == 0
    for wrong, sentence in ((-1, "at least 0, not -1"), (1001, "at most 1000, not 1001"), (1.5, "a whole number, not 1.5")):
        with pytest.raises(ValueError, match=rf"^allocation\.repetitions must be {sentence}$"):
            kind(repetitions=wrong)


def test_the_profile_is_the_first_measurement_of_a_moving_average():
    """1 and 3 samples per second before the run, 3 and 3 in it: half of each is 2 and 3, so 8 and 12 of 20."""
    dbs = SpeedProportional(repetitions=1, smoothing=0.5)
    state = dbs.observe_profile(dbs.initial(2, 20), timings((12, 12), (12.0, 4.0)))

    assert dbs.shares(state) == (5, 15)
    assert followed(dbs, state, (5 / 3, 5.0)) == [(8, 12)]


def test_the_profile_takes_the_place_of_the_first_probing_split():
    """6 + b and b seconds: of 16 samples they take 22 and 16 s, so 7 and 9 at first; two sizes are known after the next probe."""
    optperf = OptPerf(probes=3, repetitions=1)
    state = optperf.observe_profile(optperf.initial(2, 16), timings((16, 16), (22.0, 16.0)))

    assert optperf.shares(state) == (7, 9)
    assert followed(optperf, state, *[(13.0, 9.0)] * 3) == [(7, 9), (7, 9), (5, 11)]


@EVERY_RULE
@pytest.mark.parametrize("coordination", ["all_reduce", "parameter_server"])
def test_a_run_begins_with_the_measured_split(name: str, coordination: str):
    """The first gradient of each worker, and rows of kind profile at negative seconds, one for each repetition."""
    choices = ("method=ssgd", f"allocation={name}", f"coordination={coordination}", "workload=phantom")
    made = experiment(*choices, cluster=UNEVEN, batch_size=176, allocation={"repetitions": 3}, budget={"updates": 4})

    run = simulate(made, trace="full")

    first = sorted({row.rank: row for row in run.rows("gradient")[::-1]}.values(), key=lambda row: row.rank)
    assert tuple(row.samples for row in first) == BY_SPEED
    profile = run.rows("profile")
    assert [[row.samples for row in profile if row.rank == rank] for rank in range(4)] == [[176] * 3] * 4
    assert run.simulation.record.profile_seconds == pytest.approx(3 * 176 * 8e-4)
    ends = list(accumulate([176 * 8e-4] * 3, initial=-run.simulation.record.profile_seconds))
    assert [row.start for row in profile if row.rank == 0] == pytest.approx(ends[:3])


@EVERY_RULE
def test_real_processes_measure_too(name: str):
    """All ranks begin with one split, which is that of the times that were gathered."""
    made = experiment("method=ssgd", f"allocation={name}", "workload=quadratic", allocation={"repetitions": 2}, budget={"updates": 2})

    runs: list[Any] = run_in_threads(made)

    for run in runs:
        rule, profile = made.coordination.allocation, run.prepared.profile
        measured = rule.observe_profile(rule.initial(4, 256), profile.timings(made.profile_batches))
        assert run.prepared.start.allocation == measured
    assert len([row for row in rows_of(runs[0].trace) if row.kind == "profile"]) == 2


QUOTAS = [{**node(1e-6), "host": "lab", "cpu_quota": share, "cpu_quota_period_seconds": 0.1} for share in (0.8, 0.4, 0.2, 0.2)]


def test_a_quota_is_measured_over_its_periods():
    """A gradient of 0.2 ms is not slowed by any of these quotas until its period's budget is used up; the rates are 4:2:1:1."""
    lab = {**cluster(*QUOTAS), "hosts": {"lab": {"cores": 4}}}
    made = experiment("method=hetgrad", "workload=phantom", cluster=lab, batch_size=200, budget={"updates": 1})

    run = simulate(made, trace="full")

    shares = {row.rank: row.samples for row in run.rows("gradient")}
    assert [shares[rank] for rank in range(4)] == pytest.approx([100, 50, 25, 25], abs=8)
    assert run.simulation.record.profile_seconds >= NUM_PERIODS * 0.1


def test_a_quota_of_real_processes_is_measured_over_its_periods(monkeypatch: pytest.MonkeyPatch):
    """Each worker computes until ten periods have passed, and all ranks know all times."""
    monkeypatch.setattr("hetsim.distributed.rank.run.own_quota", lambda: (0.5, 0.003))
    made = experiment("method=hetgrad", "workload=quadratic", allocation={"repetitions": 1}, budget={"updates": 1})

    runs: list[Any] = run_in_threads(made)

    assert all(sum(seconds) >= NUM_PERIODS * 0.003 for seconds in runs[0].prepared.profile.seconds)
    assert all(run.prepared.profile.seconds == runs[0].prepared.profile.seconds for run in runs)


def test_a_straggler_is_late_at_first_unless_it_was_measured_before_the_run():
    """One of 32 takes 18.5 times as long: its first gradient, over an even share, is 18 · 31 versions old, and none is after that."""
    slow = cluster(node(1e-3, count=31), node(18.5e-3))
    choices = ("method=dbs_sgd", "workload=phantom")
    plain = experiment(*choices, cluster=slow, batch_size=2048, budget={"updates": 1500})
    measured = replace(plain, coordination=replace(plain.coordination, allocation=SpeedProportional(repetitions=1)))

    late = [[max(c.staleness for c in group) for group in simulate(made).applied] for made in (plain, measured)]

    assert max(late[0]) == 18 * 31
    assert max(late[0][700:]) <= 33
    assert max(late[1]) <= 33
