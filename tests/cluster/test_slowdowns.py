"""Slow spells and recorded slowdown: how long work takes on a node that changes its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from cluster_runs import built, certain, recorded, timed, times, world
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from worlds import node

from hetsim.cluster import distributions
from hetsim.cluster.compute_times import Slowdown, StepTimes
from hetsim.cluster.distributions import SPELLS
from hetsim.errors import RunFailed

SPELLS_OF_TWO = {"factor": 2.0, "seconds_between": certain(4.0), "seconds_lasting": certain(2.0)}
"""Slow from 4 to 6 s, from 10 to 12 s, and so on."""


@pytest.mark.parametrize(
    ("start", "work", "took"),
    [
        (0.0, 4.0, 4.0),  # up to the spell
        (1.0, 2.0, 2.0),  # before it
        (6.0, 4.0, 4.0),  # between two
        (3.0, 1.5, 2.0),  # begins before it and ends in it
        (4.5, 0.5, 1.0),  # in it
        (4.0, 1.0, 2.0),  # all of it
        (5.0, 3.0, 3.5),  # begins in it and ends behind it
        (3.0, 3.0, 4.0),  # spans it
        (2.0, 9.0, 11.0),  # spans two: 2 + 1 in 2 + 4 + 1 in 2 + 1
        (11.0, 5.0, 6.0),  # begins in the second, ends in the third
    ],
)
def test_work_in_a_slow_spell_takes_factor_times_as_long(start: float, work: float, took: float, tmp_path: Path):
    """A gradient of so many seconds that begins then; spells by law, or the same recorded."""
    points = [(0.0, 1.0), *((6.0 * k + at, factor) for k in range(3) for at, factor in ((4.0, 2.0), (6.0, 1.0)))]

    assert times(node(0.5, slow_spells=SPELLS_OF_TWO)).seconds(int(2 * work), start) == took
    assert times(node(0.5, slowdown=recorded(tmp_path, *points))).seconds(int(2 * work), start) == took


def test_a_run_goes_through_slow_spells():
    """Steps of 3 s, slow by half from 4 to 6, 10 to 12 and 16 to 18 s: the second, fourth and fifth take a second longer."""
    run = timed("ssgd", workers=world(node(3.0, slow_spells=SPELLS_OF_TWO)), updates=6, batch_size=1)

    assert run.seconds == [3.0, 7.0, 10.0, 14.0, 18.0, 21.0]


def test_the_last_recorded_factor_holds_for_ever(tmp_path: Path):
    """Half as fast up to 2 s, then four times as slow, to the end of time."""
    its = times(node(1.0, slowdown=recorded(tmp_path, (0, 2), (2, 4))))

    assert [its.seconds(3, start) for start in (0.0, 1.0, 2.0, 1e6)] == [2 + 2 * 4.0, 1 + 2.5 * 4.0, 12.0, 12.0]


def test_a_factor_below_one_makes_work_shorter(tmp_path: Path):
    """A factor of a half from 2 s on: 3 s of work from the beginning take 2 + 1/2."""
    assert times(node(1.0, slowdown=recorded(tmp_path, (0, 1), (2, 0.5)))).seconds(3) == 2.5


def test_slow_spells_and_a_recorded_slowdown_multiply(tmp_path: Path):
    """By 4 from 2 s on, and by 2 from 4 to 6 and from 10 to 12 s: in all by 1, 4, 8, 4, 8, 4 from 0, 2, 4, 6, 10, 12 s on."""
    its = times(node(0.25, slow_spells=SPELLS_OF_TWO, slowdown=recorded(tmp_path, (0, 1), (2, 4))))

    assert [its.seconds(1, start) for start in (0.5, 2.0, 4.0, 6.0, 10.0)] == [0.25, 1.0, 2.0, 1.0, 2.0]
    assert its.seconds(9, 1.0) == 1 + 2 + 2 + 4 * 0.5  # 1, 1/2 and 1/4 of 9/4 are done by 2, 4 and 6 s
    assert its.seconds(8, 4.5) == 1.5 + 4 + 2 + 4 * 0.5625  # 3/16, 1 and 1/4 of 2 by 6, 10 and 12 s


def test_a_node_s_updates_are_slowed_down_too(tmp_path: Path):
    """Gradients of 3 s and updates of 2 s, all twice as slow from 4 s to 8 s: 3, 4 + 2, 8 + 2, 12, 15, 17."""
    slowdown = recorded(tmp_path, (0, 1), (4, 2), (8, 1))
    run = timed("ssgd", workers=world(node(3.0, seconds_per_update=2.0, slowdown=slowdown)), updates=3, batch_size=1, trace="full")

    ends = [(row.kind, row.end) for row in run.rows("gradient", "update")]
    assert ends == [("gradient", 3.0), ("update", 6.0), ("gradient", 10.0), ("update", 12.0), ("gradient", 15.0), ("update", 17.0)]


def test_a_node_s_slowdown_is_its_own(tmp_path: Path):
    """One of two nodes is slow from 1 s on: the other's gradients take what they took."""
    slow = node(1.0, slowdown=recorded(tmp_path, (0, 1), (1, 4)))
    run = timed("asgd", workers=world(slow, node(1.25)), updates=5, batch_size=2)

    assert [(seconds, group[0].rank) for seconds, group in zip(run.seconds, run.applied, strict=True)] == [
        (1.0, 0),
        (1.25, 1),
        (2.5, 1),
        (3.75, 1),
        (5.0, 0),
    ]


def test_what_lies_outside_of_every_spell_is_unchanged_to_the_last_bit(tmp_path: Path):
    """Noisy gradients and updates, and spells that begin when the run is over."""
    plain = node(0.0013, 0.0007, seconds_per_update=0.003, noise={"distribution": "lognorm", "s": 0.5})
    spells = {"factor": 3.0, "seconds_between": certain(1e6), "seconds_lasting": certain(1.0)}
    slowdown = recorded(tmp_path, (0, 1), (1e6, 7))

    runs = [
        timed("ssgd", workers=world(plain, {**plain, **more}), updates=40, batch_size=7)
        for more in ({}, {"slow_spells": spells}, {"slowdown": slowdown}, {"slow_spells": spells, "slowdown": slowdown})
    ]
    assert [run.seconds for run in runs] == [runs[0].seconds] * 4


def integral(pieces: Sequence[tuple[float, float]], start: float, end: float) -> Fraction:
    """∫ 1/factor from start to end, exactly, over (second, factor) pieces."""
    total = Fraction(0)
    for (since, factor), (until, _) in pairwise([*pieces, (max(end, pieces[-1][0]) + 1, 1.0)]):
        overlap = min(Fraction(end), Fraction(until)) - max(Fraction(start), Fraction(since))
        total += max(Fraction(0), overlap) / Fraction(factor)
    return total


SECONDS = st.floats(0.0, 50.0, allow_subnormal=False)
TRACES = st.lists(st.tuples(st.floats(0.01, 9.0), st.floats(0.1, 10.0)), min_size=1, max_size=8).map(
    lambda steps: tuple(zip(np.cumsum([0.0, *(seconds for seconds, _ in steps[:-1])]).tolist(), (f for _, f in steps), strict=True))
)


def sped(*, trace: tuple[tuple[float, float], ...] = (), spells: bool = False, seed: int = 0) -> Slowdown:
    """The slowdown of a node with this trace, and spells of a second or so that take three times as long."""
    slow = {"factor": 3.0, "seconds_between": 1.5, "seconds_lasting": 0.75} if spells else None
    return Slowdown(replace(built(node(1.0, slow_spells=slow)).nodes[0], slowdown=trace), seed=seed, rank=2)


def pieces_of(trace: tuple[tuple[float, float], ...], *, spells: bool, seed: int, until: float) -> list[tuple[float, float]]:
    """Where the factor changes, and to what, put together anew from the draws."""
    changes, now, slow = {0.0: 1.0}, 0.0, False
    if spells:
        between, lasting = (
            distributions.Distribution("expon", {"scale": mean}).draws(seed, 2, SPELLS, k) for k, mean in ((0, 1.5), (1, 0.75))
        )
        while now < until:
            now += next(lasting if slow else between)
            slow = not slow
            changes[now] = 3.0 if slow else 1.0
    moments = sorted({*changes, *(seconds for seconds, _ in trace)})

    def at(points: Sequence[tuple[float, float]], moment: float) -> float:
        return next((factor for seconds, factor in reversed(points) if seconds <= moment), 1.0)

    by_law = sorted(changes.items())
    return [(moment, at(by_law, moment) * at(trace, moment)) for moment in moments]


@examples(60)
@given(trace=TRACES, spells=st.booleans(), seed=st.integers(0, 99), start=SECONDS, work=SECONDS)
def test_stretched_work_is_the_integral_of_the_rate(
    trace: tuple[tuple[float, float], ...], spells: bool, seed: int, start: float, work: float
):
    """∫ 1/factor over the time that work takes is the work, exactly but for the rounding of the sums."""
    took = sped(trace=trace, spells=spells, seed=seed).stretch(work, start)

    done = integral(pieces_of(trace, spells=spells, seed=seed, until=start + took + 1), start, start + took)
    assert float(done) == pytest.approx(work, rel=1e-12, abs=1e-12)


@given(trace=TRACES, seed=st.integers(0, 99), starts=st.lists(SECONDS, min_size=2, max_size=6), work=SECONDS)
def test_who_begins_later_ends_no_earlier(trace: tuple[tuple[float, float], ...], seed: int, starts: list[float], work: float):
    """The end does not go back as the start goes on, whichever order they are asked in; and no work takes less than no time."""
    slowdown = sped(trace=trace, spells=True, seed=seed)
    ends = {start: start + slowdown.stretch(work, start) for start in starts}

    for before, behind in pairwise(sorted(starts)):
        assert before <= ends[before] <= ends[behind] + 1e-9
    assert all(slowdown.stretch(0.0, start) == 0.0 for start in starts)


@given(trace=TRACES, seed=st.integers(0, 99), start=SECONDS, parts=st.lists(SECONDS, min_size=2, max_size=5))
def test_work_in_parts_ends_when_it_would_in_one_piece(trace: tuple[tuple[float, float], ...], seed: int, start: float, parts: list[float]):
    """No work is lost or done twice where one part ends and the next begins."""
    slowdown, now = sped(trace=trace, spells=True, seed=seed), start
    for work in parts:
        now += slowdown.stretch(work, now)

    assert now == pytest.approx(start + slowdown.stretch(sum(parts), start), rel=1e-12)


def test_spells_by_exponential_laws_are_slow_for_their_part_of_the_time():
    """A number of seconds is the mean of an exponential law: of a cycle of 3 + 1 s at factor 4, 3 + 1/4 s of work are done.

    The means of 40 nodes, within 3.6 of their standard errors: p < 1e-3 by Student's t with 39 degrees of freedom.
    """
    row = node(1.0, slow_spells={"factor": 4.0, "seconds_between": 3, "seconds_lasting": 1})
    rates = [2000 / times(row, rank=rank).seconds(2000) for rank in range(40)]

    assert abs(fmean(rates) - 3.25 / 4) < 3.6 * stdev(rates) / sqrt(40) < 0.01


TRACE_FILES: dict[str, tuple[str | bytes | None, str]] = {
    "missing": (None, " cannot be read (No such file or directory): give a CSV file"),
    "empty": ("", " must begin with the line seconds,factor: give another file"),
    "without a head": ("0,1\n", " must begin with the line seconds,factor: give another file"),
    "of other columns": ("seconds,speed\n0,1\n", " must begin with the line seconds,factor: give another file"),
    "without rows": ("seconds,factor\n", " has no rows: give at least 0,1"),
    "that begins late": (
        "seconds,factor\n0.5,1\n",
        ", line 2: a trace must start at 0 seconds, not 0.5: add the factor that holds from there",
    ),
    "that begins early": ("seconds,factor\n-1,1\n0,2\n", ", line 2: a trace must start at 0 seconds, not -1: add the factor"),
    "that goes back": ("seconds,factor\n0,1\n4,2\n3,1\n", ", line 4: time goes back from 4 to 3 s: sort the rows"),
    "that stands still": ("seconds,factor\n0,1\n\n4,2\n4,1\n", ", line 5: there are two factors from 4 s on: leave one of them out"),
    "of words": ("seconds,factor\n0,1\n4,slow\n", ", line 3: needs two numbers, seconds and factor: correct it"),
    "of three columns": ("seconds,factor\n0,1,2\n", ", line 2: needs two numbers, seconds and factor: correct it"),
    "of no factor": ("seconds,factor\n0,1\n4,0\n", ", line 3: seconds must be finite, and the factor between 1e-09 and 1e+09: correct it"),
    "without end": ("seconds,factor\n0,1\ninf,2\n", ", line 3: seconds must be finite, and the factor between 1e-09 and 1e+09: correct it"),
    "that is not text": (b"\xff\xfe\x00", " cannot be read (it is not text): give a CSV file"),
}


@pytest.mark.parametrize("mistake", TRACE_FILES)
def test_a_recorded_slowdown_that_is_none_is_one_sentence_with_its_line(mistake: str, tmp_path: Path):
    """The key, the file, the line as an editor counts it, and what to do."""
    text, sentence = TRACE_FILES[mistake]
    path = tmp_path / "slowdown.csv"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    with pytest.raises(ValueError, match=r".") as caught:
        built(node(1.0), node(1.0, slowdown=str(path)))

    assert str(caught.value).startswith(f"cluster.nodes.1.slowdown={path}{sentence}")


def test_slow_spells_too_short_to_be_added_up_are_one_sentence():
    """A second that changes a node's speed a billion times would never end."""
    its = built(node(1.0, slow_spells={"factor": 2, "seconds_between": 1e-9, "seconds_lasting": 1e-9})).nodes[0]

    with pytest.raises(RunFailed, match="one step has over 100000 changes of speed: make slow_spells' seconds_between"):
        StepTimes(its, seed=0, rank=0).seconds(1)


def test_a_recorded_slowdown_may_have_spaces_and_empty_lines(tmp_path: Path):
    """As spreadsheets write them."""
    path = tmp_path / "slowdown.csv"
    path.write_text("\ufeffseconds, factor\r\n0, 1\r\n\r\n2, 3\r\n", encoding="utf-8")

    assert built(node(1.0, slowdown=str(path))).nodes[0].slowdown == ((0.0, 1.0), (2.0, 3.0))


def test_a_recorded_slowdown_may_begin_again(tmp_path: Path):
    """Every four seconds: two at factor 1, two at factor 2. In each turn three seconds of work are done."""
    its = times(node(1.0, slowdown=recorded(tmp_path, (0, 1), (2, 2)), slowdown_period_seconds=4))

    assert [its.seconds(1, start) for start in (0.0, 2.0, 5.0, 402.0)] == [1.0, 2.0, 1.0, 2.0]
    assert its.seconds(300, 0.0) == 400.0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"slowdown": None, "slowdown_period_seconds": 4}, "cluster.nodes.0.slowdown_period_seconds does nothing without a slowdown"),
        ({"slowdown_period_seconds": 2}, "cluster.nodes.0.slowdown_period_seconds must be later than the last row of the slowdown, not 2"),
        ({"slowdown_period_seconds": 4, "stop": 1}, "cluster.faults.schedule stops a node with a slowdown_period_seconds"),
    ],
)
def test_a_period_that_makes_no_sense_is_one_sentence(more: dict[str, Any], said: str, tmp_path: Path):
    """Nothing repeats, or it would begin again before its end."""
    row = {"slowdown": recorded(tmp_path, (0, 1), (2, 2)), **more}
    stop = row.pop("stop", None)
    faults = {} if stop is None else {"faults": {"schedule": [{"nodes": [0], "stop": stop, "continue": 2}]}}

    with pytest.raises(ValueError, match=r".") as caught:
        built(node(1.0, **row), **faults)

    assert str(caught.value).startswith(said)
