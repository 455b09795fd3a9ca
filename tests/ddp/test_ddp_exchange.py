"""What an allocation is shown of the measured windows: only steps that were split as it last decided, and after warming up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hetsim.ddp.clock import HostClock
from hetsim.ddp.exchange import Balance
from hetsim.ddp.rules import RULES
from hetsim.ddp.saved import resume, save
from hetsim.ddp.schedule import Data, Schedule
from hetsim.ddp.timed import Timed
from hetsim.ddp.windows import Window
from hetsim.policies.allocation import Allocation, Even, OptPerf, SpeedProportional
from hetsim.trust.shipped import configs

SPEEDS = (4.0, 2.0, 1.0)


class Alone:
    """The control group of one rank of three, which knows how fast the others are: all seconds are in proportion to samples."""

    rank = 0

    def __init__(self, speeds: tuple[float, ...]) -> None:
        self.speeds = speeds
        self.windows: list[tuple[int, ...]] = []

    def begin_gather(self, seconds: float):
        others = [b / v for b, v in zip(self.windows[-1], self.speeds, strict=True)][1:]
        return torch.tensor([seconds, *others], dtype=torch.float64), self

    def wait(self) -> None:
        """It is there."""


def run(
    allocation: Allocation,
    *,
    steps: int,
    look_ahead: int = 0,
    warmup_steps: int = 0,
    batch_size: int = 84,
    num_samples: int = 10**6,
    waits: tuple[tuple[float, float], ...] = (),
    speeds: tuple[float, ...] = SPEEDS,
    slower: Callable[[int], float] = lambda _: 1.0,
):
    """A loop of this many steps on rank 0; of each step its split, and what the allocation observed at its beginning.

    A step of rank 0 takes `slower` times as long as by its speed.
    """
    schedule = Schedule(Data(num_samples, batch_size), 3, allocation.shares(allocation.initial(3, batch_size)), look_ahead)
    control = Alone(speeds)
    seen: list[tuple[int, object]] = []

    class Watched(type(allocation)):
        def observe(self, state, timings, epoch=0):
            seen.append((number, tuple((c.samples, c.version, round(c.seconds, 9)) for c in timings)))
            return super().observe(state, timings, epoch)

    balance = Balance(Watched(**vars(allocation)), allocation.initial(3, batch_size), control, warmup_steps=warmup_steps)
    drawn = list(schedule.steps(0))[:0]
    draws, splits = schedule.steps(0), []
    for number in range(steps):
        shares = balance.decided()
        if shares is not None:
            schedule.decided(shares, before=number)
        while len(drawn) <= number + look_ahead:
            drawn.append(next(draws))
        step = drawn[number]
        balance.begin_exchange(HostClock())
        control.windows.append(step.split)
        splits.append(step.split)
        balance.end_window(
            Window(number, step, 1, (number + 1) // 40, 0.0, step.split[0] / speeds[0] * slower(number), waits if number % 2 else ())
        )
    return splits, seen, balance


@pytest.mark.parametrize("look_ahead", [0, 1, 5])
def test_what_was_measured_at_step_k_holds_from_step_k_plus_2_plus_the_look_ahead(look_ahead: int):
    """DBS with one exchange per step: measured at step 0, in force at step 2 + L."""
    splits, seen, _ = run(SpeedProportional(), steps=12, look_ahead=look_ahead)

    assert splits[: 2 + look_ahead] == [(28, 28, 28)] * (2 + look_ahead)
    assert splits[2 + look_ahead :] == [(48, 24, 12)] * (10 - look_ahead)
    assert seen[0] == (2, ((28, 0, 7.0), (28, 0, 14.0), (28, 0, 28.0)))


@pytest.mark.parametrize("look_ahead", [0, 1, 5])
@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_only_the_split_in_force_is_observed(look_ahead: int, warmup_steps: int):
    """No step of a superseded split, nor the first ones of a split."""
    splits, seen, _ = run(OptPerf(probes=3, recheck_steps=8), steps=80, look_ahead=look_ahead, warmup_steps=warmup_steps)
    observed = [(at, timings) for at, timings in seen if timings]

    changes = [step for step in range(1, len(splits)) if splits[step] != splits[step - 1]]
    assert splits[-1] == (48, 24, 12)
    for _, timings in observed:
        number = timings[0][1]
        since = max([change for change in changes if change <= number], default=0)
        assert tuple(samples for samples, *_ in timings) == splits[number]
        assert number - since >= warmup_steps


def test_a_window_of_several_steps_reports_the_mean_of_all_of_them():
    """DBS that decides every four steps asks once in four, and gets what all four took."""
    _, seen, balance = run(SpeedProportional(reallocate_every=4), steps=11)

    assert [bool(timings) for _, timings in seen] == [False] * 3 + [True] + [False] * 3 + [True]
    assert balance.num_exchanges == 2
    assert seen[3][1] == ((28, 3, 7.0), (28, 3, 14.0), (28, 3, 28.0))


@pytest.mark.parametrize("waited", [7.0, 9.0])
def test_a_window_in_which_a_rank_only_waited_is_not_measured(waited: float):
    """No time by its clock, or less, in every other window: the mean is that of the others, and with none nothing is observed."""
    splits, seen, _ = run(SpeedProportional(reallocate_every=4), steps=7, waits=((0.0, waited),))
    _, each, _ = run(SpeedProportional(reallocate_every=1, dead_band=10.0), steps=5, waits=((0.0, waited),))

    assert seen[3][1] == ((28, 3, 7.0), (28, 3, 14.0), (28, 3, 28.0))
    assert splits[5:] == [(48, 24, 12)] * 2
    assert [bool(timings) for _, timings in each] == [True, False, True]


def test_a_short_step_is_not_measured():
    """The last one of an epoch says little of a whole batch."""
    *_, balance = run(SpeedProportional(reallocate_every=2), steps=2, num_samples=84 + 9)
    balance.begin_exchange(HostClock())

    assert balance._num_steps == 1


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("at", [3, 4, 9, 17])
def test_an_outlier_never_decides_a_split(name: str, at: int):
    """Rank 0 of equal ranks evaluates in this step and in every 25th after it, for as long as a hundred steps: its share stays."""
    outliers = {"slower": lambda number: 100.0 if number % 25 == at else 1.0}
    seen, calm = (run(RULES[name], steps=120, warmup_steps=2, speeds=(1.0,) * 3, **each)[0] for each in (outliers, {}))

    assert seen == calm == [(28, 28, 28)] * len(seen)


@pytest.mark.parametrize("name", ["dbs", "omnilearn", "optperf"])
def test_a_rank_that_stays_slow_is_no_outlier(name: str):
    """Ten times as slow from step 60 on, of three equal ranks: its share is that of its speed."""
    splits, *_ = run(RULES[name], steps=400, warmup_steps=2, speeds=(1.0,) * 3, slower=lambda number: 10.0 if number >= 60 else 1.0)

    assert splits[59] == (28, 28, 28)
    assert splits[-1] == (4, 40, 40)


def test_a_step_is_compared_with_what_others_would_have_taken_for_its_samples():
    """Thirty samples instead of one may take thirty times as long, and one sample as long as thirty."""
    timed = Timed()
    for seconds, samples in ((1.0, 1), (1.0, 1), (30.0, 30), (31.0, 30), (1.5, 1)):
        timed.add(seconds, samples, 1)
        assert timed.mean() == seconds

    timed.add(151.0, 30, 1)
    assert timed.mean() == 0.0


@pytest.mark.parametrize("at", range(12))
def test_optperf_recovers_from_one_outlier(at: int):
    """Also in its first step, which nothing can be compared with: after the next check of the split, and for good."""
    splits, *_ = run(OptPerf(recheck_steps=20), steps=120, speeds=(1.0,) * 3, slower=lambda number: 100.0 if number == at else 1.0)

    assert splits[60:] == [(28, 28, 28)] * 60


def test_settled_steps_cost_no_exchange():
    """OptPerf asks in its probing steps, and then once in `recheck_steps`."""
    *_, balance = run(OptPerf(probes=2, recheck_steps=10), steps=60)
    before = balance.num_exchanges
    *_, balance = run(OptPerf(probes=2, recheck_steps=10), steps=100)

    assert balance.num_exchanges - before == 4


@pytest.mark.parametrize("name", RULES)
def test_a_state_is_saved_as_plain_numbers(name: str):
    """And restored as it was, after it has seen something."""
    allocation = RULES[name]
    *_, balance = run(allocation, steps=40, warmup_steps=1)
    fresh = allocation.initial(3, 84)

    for state, other in ((balance.state, fresh), (fresh, balance.state)):
        saved = json.loads(json.dumps(save(schedule(allocation), 4, Balance(allocation, state, Alone(SPEEDS), warmup_steps=1), None)))
        resumed = Balance(allocation, other, Alone(SPEEDS), warmup_steps=1)
        resume(schedule(allocation), resumed, None, saved)
        assert resumed.state == state


def schedule(allocation: Allocation) -> Schedule:
    """The steps of three ranks."""
    return Schedule(Data(10**6, 84), 3, allocation.shares(allocation.initial(3, 84)), 0)


@dataclass(frozen=True)
class Vague:
    """A state whose type does not say what is in it."""

    shares: tuple[int, ...]
    more: Any


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (object(), r"cannot hold a builtins\.object: keep numbers, texts, tuples, mappings and dataclasses in it"),
        (torch.zeros(3), r"cannot hold a torch\.Tensor: keep numbers"),
        (Window(0, None, 1, 0, 0.0, 0.0, ()), r"is not a Vague \(it has an object of the class 'hetsim\.ddp\.windows\.Window'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_saved_is_refused(more: Any, sentence: str):
    """When it is saved, and not on resume. An allocation of the user's own may keep anything."""
    balance = Balance(Even(), Vague((28, 28, 28), more), Alone(SPEEDS), warmup_steps=1)

    with pytest.raises(ValueError, match=sentence):
        save(schedule(Even()), 4, balance, None)


def test_the_names_of_rules_are_those_of_the_configs():
    """But for those that need parameters, measure before the run, or leave ranks out."""
    assert set(RULES) == {path.stem for path in (configs() / "allocation").glob("*.yaml")} - {"fixed", "static", "ata"}
    assert {path.stem for path in (configs() / "allocation").glob("*.yaml")} > {"fixed", "static"}
