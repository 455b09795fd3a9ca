"""A settled split of OptPerf is checked now and then: it follows a node that slows down, and stays where speeds are constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from allocation_timings import timings
from hypothesis import example, given
from hypothesis import strategies as st
from worlds import Run, cluster, experiment, node, simulate

from hetsim.policies.allocation.optperf import AffineTime, OptPerf, OptPerfState, fastest_split, seconds

Times = Callable[[int, Sequence[int]], Sequence[float]]
"""The seconds of each worker at an update, over its share."""


def followed(optperf: OptPerf, num_workers: int, total: int, num_updates: int, times: Times) -> list[OptPerfState]:
    """The state at first and after each update, as with a barrier: measured only where it asks, then as the mean since it last asked."""
    states = [optperf.initial(num_workers, total)]
    unreported: list[Sequence[float]] = []
    for update in range(num_updates):
        state = states[-1]
        unreported.append(times(update, state.shares))
        seen = []
        if optperf.asks(state, 0):
            seen = timings(state.shares, [fmean(of_rank) for of_rank in zip(*unreported, strict=True)])
            unreported = []
        states.append(optperf.observe(state, seen))
    return states


def longest_step(nodes: Sequence[Sequence[AffineTime]], shares: Sequence[int]) -> float:
    """The seconds of the slowest node, for which the others wait."""
    return max(seconds(lines, b) for lines, b in zip(nodes, shares, strict=True))


def affine(lines: Sequence[tuple[float, float]], factor: Callable[[int, int], float] = lambda *_: 1.0) -> Times:
    """The times of these lines, times a factor that depends on rank and update."""
    return lambda update, shares: [
        factor(rank, update) * (overhead + b * per_sample)
        for rank, ((overhead, per_sample), b) in enumerate(zip(lines, shares, strict=True))
    ]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=5), st.integers(1, 30), st.integers(1, 20))
@example([(0, 3), (3, 2)], 3, 1)
def test_with_constant_speeds_the_split_stays(parameters: list[tuple[int, int]], each: int, recheck: int):
    """However often it is checked, where all lines are known: what was measured is what was predicted."""
    optperf = OptPerf(probes=1, recheck_steps=recheck)

    states = followed(optperf, len(parameters), each * len(parameters), 12 + 3 * recheck, affine(parameters))

    after = [state for state in states if state.settled]
    if all(size.distinct for size in after[0].sizes):
        assert {state.shares for state in after} == {after[0].shares}


def test_a_settled_split_is_measured_once_in_so_many_updates():
    """Two probes of five updates; then the hundredth, two-hundredth … update after that, and no other."""
    optperf = OptPerf()

    states = followed(optperf, 2, 16, 320, affine([(6.0, 1.0), (0.0, 1.0)]))

    assert [update for update, state in enumerate(states[:-1], 1) if optperf.asks(state, 0)] == [*range(1, 11), 110, 210, 310]
    assert {state.shares for state in states[10:]} == {(5, 11)}


@pytest.mark.parametrize("slow", range(3))
@pytest.mark.parametrize("begins", [111, 150, 190, 205])
def test_a_node_that_becomes_three_times_as_slow_is_noticed_and_the_split_follows(slow: int, begins: int):
    """At the next check, 210 or 310; ten updates later it has the fastest split that there is now, and keeps it."""
    lines = [(6.0, 1.0), (2.0, 0.5), (0.0, 2.0)]
    times = affine(lines, lambda rank, update: 3.0 if rank == slow and update >= begins else 1.0)

    states = followed(OptPerf(), 3, 120, 530, times)

    now = [[AffineTime(*(3 * part if rank == slow else part for part in line))] for rank, line in enumerate(lines)]
    best = longest_step(now, fastest_split(now, 120))
    assert longest_step(now, states[109].shares) > 1.3 * best
    assert longest_step(now, states[221].shares) <= 1.001 * best
    assert states[221].settled
    assert states[221].shares == states[-1].shares


def test_a_split_that_froze_the_noise_of_its_probes_is_measured_again():
    """With noise of 10 %, over twenty seeds: the mean loss against the best split is halved."""
    lines, total = [(6.0, 1.0), (2.0, 0.5), (0.0, 2.0)], 240
    exact = [[AffineTime(*line)] for line in lines]
    best = longest_step(exact, fastest_split(exact, total))

    def mean_loss(optperf: OptPerf) -> float:
        ends = []
        for seed in range(20):
            chance = Random(seed)
            times = affine(lines, lambda *_, chance=chance: chance.lognormvariate(0.0, 0.1))  # type: ignore[misc]
            ends.append(longest_step(exact, followed(optperf, 3, total, 1000, times)[-1].shares) / best - 1)
        return fmean(ends)

    frozen, checked = mean_loss(OptPerf(recheck_steps=None)), mean_loss(OptPerf())

    assert checked < frozen / 2 < 0.03


def test_it_waits_until_everybody_was_measured():
    """On arrival at a server, or while somebody is absent: what was measured of the others is kept. Then it probes the present split."""
    optperf = OptPerf(probes=1, recheck_steps=3)
    settled = followed(optperf, 2, 16, 2, affine([(6.0, 1.0), (0.0, 1.0)]))[-1]
    assert settled.settled
    state = settled

    for _ in range(3):
        state = optperf.observe(state, timings((5,), (33.0,)))
    assert state.settled
    assert (state.shares, state.num_updates, state.since[0].count) == (settled.shares, 0, 3)
    for _ in range(3):
        state = optperf.observe(state, [c for c in timings((5, 11), (33.0, 11.0)) if c.rank == 1])

    assert state == optperf_from(settled.shares)


def optperf_from(shares: tuple[int, ...]) -> OptPerfState:
    """The state in which a split is probed, with nothing measured."""
    nothing = OptPerf().initial(len(shares), sum(shares))
    return replace(nothing, shares=shares)


def slowed(tmp_path: object, *choices: str, recheck: int | None) -> Run:
    """Four equal nodes, of which one takes three times as long from 2 s on; steps of about 0.05 s."""
    path = f"{tmp_path}/load.csv"
    with open(path, "w", encoding="utf-8") as file:
        file.write("seconds,factor\n0,1\n2,3\n")
    nodes = cluster(node(1e-3, 5e-3, count=3), node(1e-3, 5e-3, slowdown=path))
    keys = {"allocation": {"recheck_steps": recheck}, "batch_size": 160, "cluster": nodes, "budget": {"updates": 300}}
    return simulate(experiment("workload=phantom", *choices, **keys), trace="full")


@pytest.mark.parametrize("coordination", ["all_reduce", "one_step_delay_all_reduce", "parameter_server"])
def test_a_run_follows_a_node_that_slows_down(coordination: str, tmp_path: object):
    """5 + b and 15 + 3b milliseconds: 49 and 13 of 160 end at 54 ms, where 40 each end at 135; what asks pays."""
    choices = ("method=optperf", f"coordination={coordination}")
    frozen, checked = (slowed(tmp_path, *choices, recheck=steps) for steps in (None, 50))

    ends = {name: run.simulation.experiment.coordination.allocation.shares(run.states[-1].allocation)
            for name, run in (("frozen", frozen), ("checked", checked))}  # fmt: skip
    assert ends["frozen"] == (40, 40, 40, 40)
    assert ends["checked"][3] == pytest.approx(13, abs=2)
    assert checked.seconds[-1] - checked.seconds[-20] < 0.45 * (frozen.seconds[-1] - frozen.seconds[-20])
    if coordination == "all_reduce":
        gathers = [len({row.version for row in run.rows("gather")}) for run in (frozen, checked)]
        assert gathers[1] - gathers[0] == 5 + 10  # five checks, and two probing splits
