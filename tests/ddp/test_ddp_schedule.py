"""Which samples each rank takes in each step: each position once per epoch, whatever the shares, the workers and the resumes."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hetsim.ddp.schedule import Data, Schedule, short_split
from hetsim.policies.allocation import proportional


class Rank:
    """A rank's DataLoader: with a look-ahead of L it has drawn the batches up to L steps after the one that it hands out."""

    def __init__(self, rank: int, look_ahead: int, schedule: Schedule) -> None:
        self.rank, self.look_ahead, self.schedule = rank, look_ahead, schedule
        self.number = 0
        self.drawn: list = []
        self.draws = None

    def begin_epoch(self) -> None:
        self.draws = self.schedule.steps(self.number)
        self.drawn = list(islice(self.draws, self.look_ahead))

    def next(self):
        """The step that is handed out; None at the end of the epoch. One more is drawn first."""
        self.drawn += islice(self.draws, 1)
        if not self.drawn:
            self.schedule.begin_epoch(self.number)
            return None
        self.number += 1
        return self.drawn.pop(0)


splits = st.integers(1, 5).flatmap(
    lambda n: st.lists(
        st.tuples(st.integers(0, 25), st.lists(st.floats(0.1, 10), min_size=n, max_size=n)), max_size=6, unique_by=lambda entry: entry[0]
    ).map(lambda decisions: (n, dict(decisions)))
)


@st.composite
def cases(draw):
    num_ranks, decisions = draw(splits)
    accumulate = draw(st.integers(1, 3))
    batch_size = draw(st.integers(num_ranks, 20))
    drop_last = accumulate > 1 or draw(st.booleans())
    num_samples = draw(st.integers(batch_size * accumulate if drop_last else 1, 120))
    look_aheads = draw(st.lists(st.integers(0, 7), min_size=num_ranks, max_size=num_ranks))
    return num_ranks, decisions, look_aheads, Data(num_samples, batch_size, 3, True, drop_last, accumulate)


def run(num_ranks, decisions, look_aheads, data, *, epochs=2, start=None, stop=None):
    """All ranks' steps, where a decision of this number is known at the beginning of that step; and the schedule of rank 0."""
    ranks = []
    for rank in range(num_ranks):
        schedule = Schedule(data, num_ranks, proportional([1.0] * num_ranks, data.batch_size), max(look_aheads), *(start or (0, 0)))
        ranks.append(Rank(rank, look_aheads[rank], schedule))
    steps = [[] for _ in ranks]
    for rank in ranks:  # each goes through the whole run alone: nothing but decisions is common
        for _ in range(epochs):
            begun = False
            while stop is None or rank.number < stop:
                if rank.number in decisions:
                    rank.schedule.decided(proportional(decisions[rank.number], data.batch_size), before=rank.number)
                if not begun:
                    rank.begin_epoch()
                    begun = True
                step = rank.next()
                if step is None:
                    break
                steps[rank.rank].append(step)
    return steps, ranks[0]


@examples(100)
@given(cases())
def test_all_ranks_agree_and_each_position_is_taken_once_per_epoch(case):
    """Whatever each rank's own look-ahead, and whenever splits change."""
    num_ranks, _, _, data = case
    steps, _ = run(*case)

    assert all(each == steps[0] for each in steps)
    for epoch in range(2):
        taken = [place for step in steps[0] if step.epoch == epoch for rank in range(num_ranks) for place in positions(step, rank)]
        whole = data.num_samples // (data.batch_size * data.accumulate) * data.batch_size * data.accumulate
        assert sorted(taken) == list(range(whole if data.drop_last else data.num_samples))


def positions(step, rank):
    """Those that count."""
    return step.range_of(rank) if step.shares[rank] else ()


@examples(100)
@given(cases())
def test_weights_are_those_of_the_mean_over_the_step(case):
    """Σ_i w_i / N = 1; a rank's weight is N·b_i/R, and a rank without samples has one to compute, of weight 0."""
    num_ranks, *_ = case
    (steps, *_), _ = run(*case)

    for step in steps:
        weights = [step.weight(rank) for rank in range(num_ranks)]
        assert sum(weights) == pytest.approx(num_ranks)
        assert all(len(step.range_of(rank)) == max(1, step.shares[rank]) for rank in range(num_ranks))
        assert sum(step.shares) == step.samples
        if step.samples >= num_ranks:
            assert min(step.shares) >= 1


@examples(100)
@given(cases())
def test_a_decision_holds_from_its_step_and_the_look_ahead_on(case):
    """Known before step n is drawn without look-ahead, it holds from the first window at or after n + L, and no drawn step changes."""
    num_ranks, decisions, look_aheads, data = case
    (steps, *_), _ = run(*case)
    window, ahead = data.accumulate, max(look_aheads)
    even = proportional([1.0] * num_ranks, data.batch_size)

    for number, step in enumerate(steps):
        known = [at for at in sorted(decisions) if -(-(at + ahead) // window) * window <= number]
        assert step.split == (proportional(decisions[known[-1]], data.batch_size) if known else even)
        assert step.ends_window == ((number + 1) % window == 0)


@examples(100)
@given(cases(), st.integers(0, 30), st.integers(1, 5))
def test_a_resumed_run_takes_the_rest_of_the_epoch(case, stop, other_ranks):
    """Stopped after any step, with batches drawn ahead, and resumed by any number of ranks: each position once."""
    *_, data = case
    steps, rank = run(*case, epochs=1, stop=stop)
    saved = json.loads(json.dumps(rank.schedule.state(rank.number)))
    if data.batch_size < other_ranks:
        return
    others, _ = run(other_ranks, {}, [1] * other_ranks, data, epochs=1, start=(saved["epoch"], saved["position"]))

    taken = [step for step in (*steps[0], *others[0]) if step.epoch == 0]
    again = steps[0][len(steps[0]) - len(steps[0]) % data.accumulate :]
    ranges = [place for step in taken for place in range(step.start, step.start + step.samples)]
    whole = data.num_samples // (data.batch_size * data.accumulate) * data.batch_size * data.accumulate
    assert sorted(set(ranges)) == list(range(whole if data.drop_last else data.num_samples))
    assert len(ranges) - len(set(ranges)) == len(again) * data.batch_size  # an open window begins again


def test_an_epoch_is_another_order_of_the_same_samples():
    """By the seed and the epoch alone."""
    data = Data(100, 10, seed=5)

    assert sorted(data.order(0)) == list(range(100))
    assert not np.array_equal(data.order(0), data.order(1))
    assert not np.array_equal(data.order(0), Data(100, 10, seed=6).order(0))
    assert np.array_equal(data.order(3), Data(100, 20, seed=5).order(3))
    assert np.array_equal(Data(100, 10, shuffle=False).order(3), range(100))


def test_a_short_step_is_divided_in_proportion_or_among_the_largest():
    """At least one sample each where there are enough."""
    assert short_split((8, 4, 2, 2), 8) == (4, 2, 1, 1)
    assert short_split((8, 4, 2, 2), 4) == (1, 1, 1, 1)
    assert short_split((2, 8, 4, 2), 2) == (0, 1, 1, 0)


def test_windows_need_whole_steps():
    """Steps that are added up before the reduction must have equal weights."""
    with pytest.raises(ValueError, match="add drop_last=True"):
        Data(100, 10, accumulate=2)
    with pytest.raises(ValueError, match="drops them all"):
        Data(19, 10, accumulate=2, drop_last=True)


@pytest.mark.parametrize("position", [100, 90])
def test_a_state_of_the_end_of_an_epoch_begins_the_next_one(position: int):
    """Also where fewer samples are left than drop_last takes for a step; no epoch is empty."""
    schedule = Schedule(Data(100, 30, drop_last=position == 90), 2, (15, 15))
    assert schedule.state(4 if position == 100 else 3) == {"epoch": 1, "position": 0, "shares": [15, 15], "pending": []}

    schedule.resume(3, position, (15, 15), ())
    assert [step.epoch for step in schedule.steps(0)] == [4] * (4 if position == 100 else 3)


def test_the_last_step_of_an_epoch_has_the_fewest_samples():
    """Also after a resume, by which another number is left."""
    for data, position in (
        (Data(100, 30), 0),
        (Data(100, 30), 55),
        (Data(90, 30), 0),
        (Data(100, 30, drop_last=True), 0),
        (Data(7, 30), 0),
    ):
        schedule = Schedule(data, 2, (15, 15), position=position)

        assert schedule.fewest_samples() == min(step.samples for step in schedule.steps(0))
