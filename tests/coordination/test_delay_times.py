"""One-step delay: how long a version takes, and how late its gradients are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from delays import BOTH, LINK, MESSAGE, RING, SIZES, delayed
from worlds import Run, cluster, experiment, node, simulate


def timed(where: str, *, gradient: float, updates: int, local: float = 0.25, server: float = 0.125, **coordination: Any) -> Run:
    """Two workers, the second twice as fast, whose slower one needs so many seconds for a gradient and for a step."""
    workers = cluster(
        *(node(seconds, seconds_per_update=local) for seconds in (gradient, gradient / 2)), network=LINK, seconds_per_update=server
    )
    keys: dict[str, Any] = {"workload": SIZES, "batch_size": 2, "cluster": workers, "budget": {"updates": updates}}
    return simulate(delayed(where, "workload=phantom", coordination=coordination, **keys), trace="full")


def ssgd(where: str, *, gradient: float, updates: int, step: float) -> Run:
    """The same two workers without a delay; `step` is what whoever steps globally needs for it."""
    coordination = "parameter_server" if where == "server" else "all_reduce"
    workers = cluster(
        *(node(seconds, seconds_per_update=step) for seconds in (gradient, gradient / 2)), network=LINK, seconds_per_update=step
    )
    keys: dict[str, Any] = {"workload": SIZES, "batch_size": 2, "cluster": workers, "budget": {"updates": updates}}
    return simulate(experiment("method=ssgd", f"coordination={coordination}", "workload=phantom", **keys))


def periods(run: Run, *, after: int) -> list[float]:
    """Seconds between commits, from this version on."""
    return [later - earlier for earlier, later in pairwise(run.seconds[after - 1 :])]


def staleness(run: Run) -> list[list[int]]:
    """Of everyone's gradient in each version."""
    return [[c.staleness for c in group] for group in run.applied]


@BOTH
@pytest.mark.parametrize("warm_up", [0, 3])
def test_every_gradient_behind_the_first_delayed_one_is_one_version_late(where: str, warm_up: int):
    """Never more, and in warm-up none."""
    run = timed(where, gradient=1.0, updates=12, warm_up=warm_up)

    assert staleness(run) == [[0, 0]] * (warm_up + 1) + [[1, 1]] * (11 - warm_up)


@pytest.mark.parametrize("gradient", [0.25, 1.0, 1.125, 1.25, 4.0])
def test_a_period_on_a_server_is_the_longer_of_compute_and_communication(gradient: float):
    """max(gradient + local update, push + server update + pull), once it has begun; SSGD's is gradient + communication."""
    run, synchronous = timed("server", gradient=gradient, updates=12), ssgd("server", gradient=gradient, updates=4, step=0.125)

    communication = MESSAGE + 0.125 + MESSAGE
    assert periods(run, after=4) == [max(gradient + 0.25, communication)] * 8
    assert periods(run, after=1)[:3] == periods(synchronous, after=1) == [gradient + communication] * 3


@pytest.mark.parametrize("gradient", [0.125, 0.25, 0.375, 4.0])
def test_a_period_in_a_ring_is_the_longer_of_compute_and_reduction(gradient: float):
    """max(gradient + global update + local update, all-reduce); SSGD's is gradient + all-reduce + update."""
    run, synchronous = timed("all_reduce", gradient=gradient, updates=12), ssgd("all_reduce", gradient=gradient, updates=4, step=0.25)

    assert RING == 0.25 + 0.25 + 0.25
    assert periods(run, after=4) == [max(gradient + 0.25 + 0.25, RING)] * 8
    assert periods(run, after=1)[:2] == periods(synchronous, after=1)[:2] == [gradient + RING + 0.25] * 2


@BOTH
def test_the_global_update_is_no_part_of_the_workers_time_on_a_server(where: str):
    """There it is on the way; in a ring each worker does it too."""
    run = timed(where, gradient=4.0, updates=12, local=0.5, server=0.25)

    assert periods(run, after=4) == [4.0 + (0.5 if where == "server" else 2 * 0.5)] * 8


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pulling_every_kth_push_makes_gradients_one_to_k_versions_late(k: int):
    """0 … k on the first weights of the delay, then 1 … k again and again: it is bounded by k, for everyone."""
    run = timed("server", gradient=1.0, updates=4 + 4 * k, pull_every=k)

    assert staleness(run) == [[tau, tau] for tau in [0, 0, 0, *range(k + 1), *(4 * list(range(1, k + 1)))]][: 4 + 4 * k]


@pytest.mark.parametrize("gradient", [0.25, 4.0])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_workers_do_not_wait_between_pulls(k: int, gradient: float):
    """Of k periods one is max(gradient + local update, communication), the others are gradient + local update."""
    run = timed("server", gradient=gradient, updates=4 + 4 * k, pull_every=k)

    slow = [row for row in run.rows("gradient") if row.rank == 0][3 : 3 + 3 * k + 1]
    waited = [later.start - earlier.end - 0.25 for earlier, later in pairwise(slow)]
    at_a_pull = max(0.0, 2 * MESSAGE + 0.125 - gradient - 0.25)
    assert waited == [at_a_pull if initial_within > 1 and initial_within % k == 1 else 0.0 for initial_within in range(1, 3 * k + 1)]


@pytest.mark.parametrize(("where", "ahead"), [("server", 1), ("server", 3), ("all_reduce", 1)])
def test_shares_follow_speeds_as_soon_as_ranges_are_dealt_again(where: str, ahead: int):
    """Speeds 1 : 1 : 2 : 4 and B = 256: even in the first global batch and those dealt with it, by speed behind them."""
    workers = cluster(*(node(seconds) for seconds in (4e-3, 4e-3, 2e-3, 1e-3)))
    coordination = {"pull_every": ahead} if where == "server" else {}
    keys: dict[str, Any] = {"workload": SIZES, "batch_size": 256, "cluster": workers, "budget": {"updates": ahead + 4}}

    run = simulate(delayed(where, "workload=phantom", "allocation=dbs", warm_up=0, coordination=coordination, **keys))

    even, by_speed = [64, 64, 64, 64], [32, 32, 64, 128]
    assert [[c.samples for c in group] for group in run.applied] == [even] * (1 + ahead) + [by_speed] * 3


@BOTH
def test_a_reallocation_by_epochs_is_in_force_two_versions_behind_the_end_of_one(where: str):
    """An epoch of two global batches: the third was dealt before the second made its version, the fourth is by speed."""
    workers = cluster(*(node(seconds) for seconds in (4e-3, 4e-3, 2e-3, 1e-3)))
    keys: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 512}, "batch_size": 256, "cluster": workers}
    every_epoch = {"reallocate_every": "epoch"}

    run = simulate(delayed(where, "workload=phantom", "allocation=dbs", allocation=every_epoch, warm_up=0, budget={"updates": 6}, **keys))

    assert [[c.samples for c in group] for group in run.applied] == [[64, 64, 64, 64]] * 3 + [[32, 32, 64, 128]] * 3
