"""Nodes that hold so many samples at once: every allocation keeps to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
import worlds
from cluster_runs import base, built, timed, world
from hypothesis import given
from hypothesis import strategies as st
from worlds import Run, experiment, node, simulate

from hetsim.coordination.state import State
from hetsim.policies.allocation.base import proportional

pytestmark = pytest.mark.slow

SPEEDS = (1.0, 1.0, 2.0, 4.0)
BOUNDS = (None, None, 30, 20)
"""A batch of 96 by speed is 12, 12, 24, 48; as far as memory allows, 20 to the last, then 19, 19, 38, and so 30 to the third."""
FITTED = (23, 23, 30, 20)
ALLOCATIONS: dict[str, tuple[str, ...]] = {
    "even": (),
    "fixed": ("allocation.parts=[1,1,2,4]",),
    "dbs": (),
    "dbs_per_epoch": (),
    "omnilearn": (),
    "lb_bsp": (),
    "static": (),
    "optperf": ("allocation.probes=2",),
}
COORDINATIONS = {"all_reduce": ("method=ssgd",), "barrier": ("method=ssgd", "coordination=parameter_server"), "server": ("method=asgd",)}


def bounded(coordination: str, allocation: str, *, s: float | None = None, bounds: Sequence[int | None] = BOUNDS) -> Run:
    """40 updates of 96 samples, an epoch of 480, on nodes with so much memory each."""
    noise = None if s is None else {"distribution": "lognorm", "s": s}
    rows = [node(1 / v, noise=noise, max_samples=bound) for v, bound in zip(SPEEDS, bounds, strict=True)]
    choices = (*COORDINATIONS[coordination], f"allocation={allocation}", *ALLOCATIONS[allocation])
    described = base(*choices, batch_size=96, num_samples=480, updates=40)
    return simulate(replace(described, cluster=built(*rows)), trace="full")


def split_of(run: Run, state: State) -> tuple[int, ...]:
    """The shares that are in force."""
    shares: tuple[int, ...] = run.simulation.experiment.coordination.allocation.shares(state.allocation)
    return shares


@pytest.mark.parametrize("coordination", COORDINATIONS)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_no_step_ever_has_more_samples_than_fit(allocation: str, coordination: str):
    """Under any allocation, with noise, in every gradient, also those that measure before the run; and the batch stays whole."""
    run = bounded(coordination, allocation, s=0.3)

    computed = [(row.rank, row.samples) for row in run.rows("gradient", "profile")]
    assert all(1 <= samples <= (BOUNDS[rank] or inf) for rank, samples in computed)
    assert {rank for rank, samples in computed if samples == BOUNDS[rank]} >= ({3} if allocation != "lb_bsp" else set())
    assert all(sum(split_of(run, state)) == 96 for state in run.states)
    if coordination != "server":
        assert {sum(c.samples for c in group) for group in run.applied} == {96}


@pytest.mark.parametrize("coordination", COORDINATIONS)
@pytest.mark.parametrize("allocation", ["fixed", "dbs", "dbs_per_epoch", "omnilearn", "optperf"])
def test_what_does_not_fit_goes_to_the_others_by_their_speed(allocation: str, coordination: str):
    """48, 24, 12, 12 by speed become 20, 30 and twice 23; where everything fits, they stay."""
    run, free = bounded(coordination, allocation), bounded(coordination, allocation, bounds=(None,) * 4)

    assert split_of(run, run.states[-1]) == FITTED
    assert split_of(free, free.states[-1]) == (12, 12, 24, 48)


def test_a_static_split_gives_what_does_not_fit_to_the_others_by_their_speed():
    """As every other one does: a step takes as long as its largest part per speed."""
    run, free = bounded("all_reduce", "static"), bounded("all_reduce", "static", bounds=(None,) * 4)

    assert split_of(free, free.states[-1]) == (12, 12, 24, 48)
    assert split_of(run, run.states[-1]) == FITTED


def test_an_even_split_gives_what_does_not_fit_to_the_others_evenly():
    """24 each, of which 20 fit: 26, 25, 25 for the rest, the lower rank first."""
    run = bounded("all_reduce", "even")

    assert split_of(run, run.states[-1]) == (26, 25, 25, 20)


def test_a_gradual_shift_fills_the_fast_ones_and_stops():
    """LB-BSP moves five samples at a time to the fastest until it is full, of the last ones only what fits; then to the others."""
    run = bounded("all_reduce", "lb_bsp", bounds=(None, None, None, 43))

    splits = [split_of(run, state) for state in run.states]
    assert [split[3] for split in splits[:5]] == [29, 34, 39, 43, 43]
    assert max(abs(a - b) for a, b in zip(splits[-1], (13, 13, 27, 43), strict=True)) <= 2


def test_what_a_lost_worker_held_goes_to_others_only_as_far_as_it_fits():
    """Twelve samples of a node that crashed are handed out again, to one that holds four at once: in parts, and none is left out."""
    faults = {"schedule": [{"nodes": [1], "crash": 5.0, "repair": 100.0}]}
    described = experiment(
        *("method=asgd", "workload=phantom", "allocation=fixed"),
        workload={"num_parameters": 8, "num_samples": 160},
        allocation={"parts": [1, 3]},
        budget={"epochs": 1},
        cluster=world(node(1.0, max_samples=4), node(0.25), faults=faults),
        batch_size=16,
    )

    run = simulate(described, trace="full")

    assert max(row.samples for row in run.rows("gradient") if row.rank == 0) == 4
    assert worlds.tiles([c.batch for group in run.applied for c in group], 160)


def test_a_node_without_a_bound_takes_whatever_is_left():
    """A thousand samples of 1020, where the other holds 20."""
    workers = world(node(1.0), node(1.0, max_samples=20))

    run = timed("ssgd", workers=workers, updates=2, batch_size=1020)

    assert [[c.samples for c in group] for group in run.applied] == [[1000, 20]] * 2
    assert built(node(1.0, count=3)).max_samples is None


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_less_memory_than_a_batch_is_refused(allocation: str):
    """Whatever the allocation, in one sentence, before anything runs; exactly enough is enough."""
    with pytest.raises(ValueError, match=r"^the nodes' max_samples hold 95 samples in all, but batch_size=96: raise them, or lower it$"):
        bounded("all_reduce", allocation, bounds=(20, 25, 30, 20))

    run = bounded("all_reduce", allocation, bounds=(21, 25, 30, 20))
    assert {split_of(run, state) for state in run.states} == {(21, 25, 30, 20)}


WEIGHTS = st.lists(st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=8)


@given(weights=WEIGHTS, extra=st.integers(0, 60), data=st.data())
def test_a_bounded_split_is_whole_and_keeps_to_its_bounds(weights: list[float], extra: int, data: st.DataObject):
    """Σ b_i = B and 1 ≤ b_i ≤ most_i for all bounds that hold B in all."""
    total = len(weights) + extra
    most = data.draw(st.lists(st.integers(1, total), min_size=len(weights), max_size=len(weights)).filter(lambda m: sum(m) >= total))

    split = proportional(weights, total, max_samples=most)

    assert sum(split) == total
    assert all(1 <= share <= bound for share, bound in zip(split, most, strict=True))


@given(weights=WEIGHTS, extra=st.integers(0, 60), data=st.data())
def test_a_bound_that_does_not_bind_changes_nothing(weights: list[float], extra: int, data: st.DataObject):
    """Where the split by weight fits, also just so, it is the split."""
    total = len(weights) + extra
    free = proportional(weights, total)
    room = data.draw(st.lists(st.sampled_from([0, 0, 1, 1000]), min_size=len(weights), max_size=len(weights)))

    assert proportional(weights, total, max_samples=[share + more for share, more in zip(free, room, strict=True)]) == free


@given(weights=WEIGHTS, extra=st.integers(0, 60), data=st.data())
def test_who_is_not_full_has_its_part_by_weight(weights: list[float], extra: int, data: st.DataObject):
    """b_i = min(most_i, max(1, λ w_i)) for one λ, each within one sample: no other of weight w may have less by two than one's own part."""
    total = len(weights) + extra
    most = data.draw(st.lists(st.integers(1, total), min_size=len(weights), max_size=len(weights)).filter(lambda m: sum(m) >= total))

    split = proportional(weights, total, max_samples=most)

    not_full = [(share, w) for share, bound, w in zip(split, most, weights, strict=True) if share < bound]
    some = [(share, w) for share, w in zip(split, weights, strict=True) if share > 1]
    for more, heavy in some:
        for less, light in not_full:
            assert (more - 1) / heavy <= (less + 1) / light * (1 + 1e-9)
