"""MindFlayer: trials that are given so many seconds, what a version is made of, and the seconds that it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from methods import num_given_up
from own_pools import Q
from threads import run_in_threads
from worlds import Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.trials import TrialMean, TrialMeans, Trials, count_trials
from hetsim.effects import Batch

HEAVY = {"distribution": "lognorm", "s": 1.5}
NOISY = cluster(*(node(seconds, noise=HEAVY) for seconds in (4.0, 4.0, 2.0, 1.0)))
WORLD_Q = cluster(*(node(seconds) for seconds in (4.0, 4.0, 2.0, 1.0)))


def on_q(*, where: dict[str, Any], updates: int = 60, rate: float = 0.05, **keys: Any) -> Run:
    """MindFlayer in World Q: a sample of ½ (x − a_i)² each, a = 1, 2, 3, 4."""
    settings = {
        "batch_size": 4,
        "dtype": "float64",
        "cluster": where,
        "budget": {"updates": updates},
        "learning_rate": rate,
        "momentum": 0.0,
    }
    made = experiment("method=mindflayer", "workload=phantom", "partition=contiguous", data="owned", coordination=keys, **settings)
    return simulate(replace(made, workload=Q()), trace="full")


@pytest.mark.parametrize("success", [None, [0.5, 0.25, 0.75, 1.0]])
def test_a_version_is_its_equation(success: list[float] | None):
    """W − γ Σ_i m_i (W − a_i) / Σ_i B_i p_i by the numbers of trials that ended, with p_i as given, or those of all trials so far."""
    trials = [1, 2, 3, 4]
    run = on_q(where=NOISY, trials=trials, within=[4.0, 3.0, 2.0, 1.5], success=success)

    weights, ended = 2.0, np.zeros(4)
    for version, (state, group) in enumerate(zip(run.states, run.applied, strict=True), start=1):
        m = np.array([c.num_gradients for c in sorted(group, key=lambda c: c.rank)])
        ended += m
        p = ended / (version * np.array(trials)) if success is None else np.array(success)
        if m.any():
            weights -= 0.05 * (m @ (weights - np.arange(1, 5))) / (trials @ p)
        assert state.weights.item() == pytest.approx(weights, abs=1e-12)
    assert 0 < ended.sum() < 60 * sum(trials)
    assert num_given_up(run) == 60 * sum(trials) - ended.sum()


def test_a_version_takes_as_long_as_the_slowest_workers_trials():
    """World Q, two trials of at most 2.5 s: those of 4 s take 2 · 2.5 s and have nothing to show, so a version takes 5 s."""
    run = on_q(where=WORLD_Q, trials=2, within=2.5, updates=4)

    assert run.seconds == pytest.approx([5.0, 10.0, 15.0, 20.0])
    assert [c.num_gradients for c in run.applied[0]] == [0, 0, 2, 2]
    workers = run.simulation.metrics.summary()["per_worker"]
    assert [worker["compute_seconds"] for worker in workers] == pytest.approx([20.0, 20.0, 16.0, 8.0])
    assert [worker["iterations"] for worker in workers] == [0, 0, 8, 8]


def test_heavy_tails_are_cut():
    """Times with a long tail: at most 4 s a trial gives more gradients a second than waiting for all of them does."""
    cutting, waiting = (on_q(where=NOISY, trials=2, within=within, updates=200) for within in (4.0, None))

    made = [sum(c.num_gradients for group in run.applied for c in group) / run.seconds[-1] for run in (cutting, waiting)]
    assert made[0] > 1.5 * made[1]


def test_who_never_ends_in_time_has_no_part_and_is_named():
    """It rests between the optima of the two others, and the summary's remark says whose samples are missing."""
    run = on_q(where=WORLD_Q, trials=1, within=2.5, updates=400)

    assert run.weights.item() == pytest.approx(3.5, abs=1e-6)
    assert run.simulation.metrics.applied.weight_shares == pytest.approx([0.0, 0.0, 0.5, 0.5])
    told = run.simulation.experiment.coordination.remark(run.states[-1])
    assert (
        told == "no trial of rank 0, 1 ended within coordination.within, so its samples have had no part in the run: give it more seconds"
    )


def test_a_run_in_which_nothing_ends_in_time_changes_nothing_and_has_not_diverged():
    """Versions go by, their weights stay."""
    run = on_q(where=WORLD_Q, trials=1, within=0.5, updates=10)

    assert run.weights.item() == 2.0
    assert [state.num_samples for state in run.states] == [0] * 10
    assert run.simulation.history.divergence.reason is None


def test_each_position_is_applied_or_discarded_once():
    """Those of trials that ended are the first ones of each range; the others are discarded."""
    keys = {
        "workload": {"num_parameters": 8, "num_samples": 100},
        "batch_size": 31,
        "cluster": cluster(*(node(s, noise=HEAVY) for s in (4e-3, 1e-3, 2e-3))),
    }
    run = simulate(experiment("method=mindflayer", "workload=phantom", coordination={"within": 0.03}, **keys, budget={"epochs": 4.3}))

    applied = [c for group in run.applied for c in group]
    ended = run.simulation.history.last
    assert sum(c.samples for c in applied) == ended.num_samples == len({p for c in applied for p in range(c.batch.start, c.batch.stop)})
    assert ended.num_samples + ended.num_samples_discarded == 430
    assert 0 < ended.num_samples_discarded < 300
    cut = [Batch(c.batch.stop, c.num_samples_cut) for c in applied if isinstance(c, TrialMean)]
    assert tiles([c.batch for c in applied] + cut, 430)


def test_the_allocation_sees_a_mean_trial():
    """Shares by speed: 32, 32, 64 and 128 of 256 samples on nodes of 4, 4, 2 and 1 ms a sample, whatever B_i."""
    workers = cluster(node(4e-3, count=2), node(2e-3), node(1e-3))
    made = experiment(
        "method=mindflayer",
        "allocation=dbs",
        "workload=phantom",
        cluster=workers,
        coordination={"trials": [3, 1, 2, 4]},
        budget={"updates": 9},
    )
    run = simulate(made)

    assert made.coordination.allocation.shares(run.states[-1].allocation) == (32, 32, 64, 128)
    assert [c.samples for c in run.applied[-1]] == [96, 32, 128, 512]


def test_what_is_measured_is_part_of_the_state():
    """A run that goes on from a version knows the trials before it."""
    made = experiment(
        "method=mindflayer", "workload=phantom", cluster=NOISY, batch_size=4, coordination={"within": 4.0}, budget={"updates": 8}
    )
    whole = simulate(made, saved=True)
    rest = simulate(made, checkpoint=whole.checkpoints[3], saved=True)

    assert [trials for _, trials in whole.states[3].measured.values()] == [8] * 4
    assert [trials for _, trials in rest.states[-1].measured.values()] == [16] * 4


def test_trials_are_counted_by_worker():
    """Ended, and made."""
    tried = [
        TrialMean(0, Batch(0, 4), 0, 1.0, 0.0, num_gradients=2, num_trials=3),
        TrialMean(2, Batch(4, 0), 0, 0.0, 0.0, num_gradients=0, num_trials=1),
    ]

    assert count_trials({0: (1, 1)}, tried) == {0: (3, 4), 2: (0, 1)}


def test_factors_are_by_the_trials_that_ended():
    """m_i / Σ B_j p_j; all zero where nothing was to end in time."""
    made = experiment("method=mindflayer", "workload=phantom", cluster=WORLD_Q)
    plan = made.plan(made.load()[0])
    tried = [TrialMean(rank, Batch(0, 4), 0, 1.0, 0.0, num_gradients=m, num_trials=3) for rank, m in enumerate((0, 1, 3, 2))]

    assert made.coordination.factors(TrialMeans(tried, 5.0), plan) == [0.0, 0.2, 0.6, 0.4]
    assert made.coordination.factors(TrialMeans(tried[:1], 0.0), plan) == [0.0]


@pytest.mark.parametrize(("within", "micro_batch"), [(None, None), (None, 3), (10.0, 3)])
def test_real_ranks_compute_what_the_simulation_computes(within: float | None, micro_batch: int | None):
    """Where nothing is cut, time decides nothing: the simulator's weights, micro-batches but for rounding."""
    quick = cluster(
        *(node(seconds, 1e-4) for seconds in (4e-6, 1e-6, 2e-6)),
        network={"latency_seconds": 1e-6, "bytes_per_second": 1e9, "sharing": "none"},
    )
    keys = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 30, "cluster": quick, "data": "owned"}
    keys |= {"coordination": {"within": within}, "dtype": "float64", "budget": {"epochs": 2}}
    made = experiment("method=mindflayer", "workload=quadratic", "partition=even", **keys)
    simulated = simulate(made)

    ends: Any = run_in_threads(made, micro_batch=micro_batch, finish=lambda run: run.close())

    assert ends[3].history.last.version == simulated.states[-1].version
    torch.testing.assert_close(ends[3].history.last.weights, simulated.weights, rtol=0, atol=1e-12)


@pytest.mark.realtime
def test_padded_ranks_give_up_what_simulated_ones_do():
    """Trials of 60, 20 and 5 ms within 30 ms, real and padded: the first worker never ends, the others always do."""
    workers = cluster(node(0.06), node(0.02), node(0.005))
    keys = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 3, "cluster": workers, "data": "owned"}
    keys |= {"coordination": {"within": 0.03}, "dtype": "float64", "budget": {"updates": 5}}
    made = experiment("method=mindflayer", "workload=quadratic", "partition=even", **keys)

    ends: Any = run_in_threads(made, pad=True, finish=lambda run: run.close())

    assert ends[3].history.last.measured[0] == (0, 10)
    assert ends[3].history.last.measured[2] == (10, 10)
    assert ends[3].metrics.applied.seconds >= 5 * 0.06


@pytest.mark.parametrize(
    ("choices", "keys", "sentence"),
    [
        ((), {"trials": 0}, r"^coordination\.trials must be at least 1, not 0"),
        ((), {"trials": [1, 2]}, r"^coordination\.trials has 2 numbers, but the cluster has 4 workers: give one for each"),
        ((), {"trials": None}, r"^coordination\.trials must be a whole number, not None"),
        ((), {"within": -1.0}, r"^coordination\.within must be a finite number above zero, not -1"),
        ((), {"within": [1.0]}, r"^coordination\.within has 1 numbers"),
        ((), {"success": 1.5}, r"^coordination\.success is a probability, at most 1, not 1\.5"),
        ((), {"success": 0.0}, r"^coordination\.success must be a finite number above zero, not 0"),
        (("admission=every_gradient",), {}, r"^admission is EveryGradient, but a version is of the trials of all workers"),
        (("weighting=per_sample",), {}, r"^weighting is PerSample, but a version is of the trials of all workers"),
    ],
)
def test_what_does_not_fit_is_one_sentence(choices: tuple[str, ...], keys: dict[str, Any], sentence: str):
    """Before the run."""
    with pytest.raises(ValueError, match=sentence):
        experiment("method=mindflayer", *choices, "workload=phantom", coordination=keys, cluster=WORLD_Q)


def test_it_is_a_server_whose_gradients_can_be_given_up():
    """So micro-batches of real gradients mean something."""
    assert Trials.gives_up_gradients
