"""Decoupled DiLoCo: learners that never wait, and a syncer that merges a quorum's weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from test_local_steps import steps
from worlds import NO_NETWORK, Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.decoupled_steps import radial_directional
from hetsim.effects import Batch, Contribution
from hetsim.policies.quorum import Quorum, QuorumState
from hetsim.policies.weighting import Tokens
from hetsim.vector import Phantom, unit
from hetsim.workloads.tasks.quadratic_task import QuadraticTask

OWNED: dict[str, Any] = {"data": "owned", "workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 30, "dtype": "float64"}
SPEEDS = (4.0, 4.0, 2.0, 1.0)


def decoupled(*choices: str, on: str = "quadratic", admission: dict[str, Any] | None = None, **keys: Any) -> Run:
    """Decoupled DiLoCo, with a full trace."""
    more = {} if admission is None else {"admission": admission}
    return simulate(experiment("method=decoupled_diloco", f"workload={on}", *choices, **keys, **more), trace="full")


@pytest.mark.parametrize("weighting", ["per_worker", "per_sample", "tokens"])
def test_one_fragment_a_whole_quorum_and_the_mean_on_equal_nodes_is_diloco(weighting: str):
    """P = 1, K = N, an instant exchange: the same ranges of each pool in every version, the same weights."""
    keys = {**OWNED, "cluster": cluster(node(1e-3, 2e-3, count=3)), "local_learning_rate": 0.01, "budget": {"updates": 6}}
    diloco = simulate(experiment("method=diloco", "workload=quadratic", "partition=even", **keys, coordination={"period": 3}))

    run = decoupled(
        "partition=even",
        f"weighting={weighting}",
        **keys,
        coordination={"period": 3, "fragments": 1, "merge": "mean"},
        admission={"size": 3},
    )

    assert [{(c.rank, c.batch) for c in group} for group in run.applied] == [{(c.rank, c.batch) for c in group} for group in diloco.applied]
    for mine, theirs in zip(run.states, diloco.states, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-13)
    assert run.states[-1].num_samples_discarded == 0


def test_two_orthogonal_changes_keep_their_length():
    """Of norm 2 each: radial-directional 2, the mean √2; both in the direction of the diagonal. The tail is the weighted mean."""
    one, other = torch.tensor([2.0, 0.0, 5.0]), torch.tensor([0.0, 2.0, 1.0])

    merged = radial_directional([one, other], lambda: [0.5, 0.5], 2)

    torch.testing.assert_close(merged, torch.tensor([2**0.5, 2**0.5, 3.0]))
    assert merged[:2].norm() == pytest.approx(2.0)
    assert ((one + other) / 2)[:2].norm() == pytest.approx(2**0.5)
    assert radial_directional([Phantom(8), Phantom(8)], lambda: [0.5, 0.5], 2) == Phantom(8)


def test_directions_that_cancel_out_and_changes_of_nothing_are_zero():
    """φ(0) = 0."""
    one = torch.tensor([3.0, 4.0])

    assert torch.equal(unit(torch.zeros(2)), torch.zeros(2))
    assert torch.equal(radial_directional([one, -one], lambda: [0.5, 0.5], 2), torch.zeros(2))
    torch.testing.assert_close(radial_directional([one, 0 * one], lambda: [0.5, 0.5], 2), one / 2)


def test_tokens_weigh_samples_by_samples_per_step():
    """w ∝ s²/n, with Σ w = c: 20 samples in 2 steps and 20 in 4 weigh 2 : 1."""
    group = [Contribution(rank, Batch(0, 20), 0, 1.0, 0.0, num_gradients=n) for rank, n in enumerate((2, 4))]

    assert Tokens().weights(group, 20.0) == pytest.approx((4 / 3, 2 / 3))


def test_the_grace_is_what_the_averages_leave_of_the_overlap():
    """γ (τ ξ_step − ξ_quorum − ξ_exchange), never below zero, zero before the first; averages keep `smoothing` of their old value."""
    rule = Quorum(size=2, overlap=3, grace=0.5, smoothing=0.75)
    first = rule.update_averages(QuorumState(), step=2.0, quorum=1.0, exchange=1.0)
    second = rule.update_averages(first, step=4.0, quorum=5.0, exchange=1.0)

    assert rule.grace_seconds(QuorumState()) == 0.0
    assert rule.grace_seconds(first) == 0.5 * (3 * 2.0 - 1.0 - 1.0)
    assert second == QuorumState(2.5, 2.0, 1.0)
    assert rule.grace_seconds(QuorumState(1.0, 4.0, 4.0)) == 0.0


def written_out(task: QuadraticTask, *, versions: int, fragments: int, merge: str) -> list[torch.Tensor]:
    """Workers of 4, 4, 2 and 1 s, who take 1, 1, 2 and 4 steps of two samples between two exchanges; h = 4, K = 1, nothing takes time."""
    size, taken = len(task.optimum), (1, 1, 2, 4)
    theta, velocity = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    own = [theta.clone() for _ in taken]
    memories: list[dict[str, Any]] = [{} for _ in taken]
    since = [[0] * fragments for _ in taken]
    made = []
    for version in range(versions):
        p = version % fragments
        part = slice(size * p // fragments, size * (p + 1) // fragments)
        for rank, count in enumerate(taken):
            ranges = [Batch(2 * (version * count + step), 2, rank) for step in range(count)]
            own[rank] = steps(task, own[rank], ranges, memories[rank], "adamw")
            since[rank] = [so_far + count for so_far in since[rank]]
        w = torch.tensor([its[p] for its in since], dtype=torch.float64)  # (2n) · (2n / n)
        changes = torch.stack([(theta - x)[part] for x in own])
        if merge == "mean":
            delta = (w[:, None] * changes).sum(0) / w.sum()
        else:
            norms = changes.norm(dim=1)
            direction = (w[:, None] * changes / norms[:, None]).sum(0) / w.sum()
            delta = (w * norms).sum() / w.sum() * direction / direction.norm()
        velocity[part] = 0.9 * velocity[part] + delta
        theta = theta.clone()
        theta[part] -= 0.7 * (delta + 0.9 * velocity[part])
        for rank, x in enumerate(own):
            own[rank] = x.clone()
            own[rank][part] = theta[part]
            since[rank][p] = 0
        made.append(theta)
    return made


@pytest.mark.parametrize("merge", ["mean", "radial_directional"])
@pytest.mark.parametrize("fragments", [1, 2, 4])
def test_it_is_the_algorithm_written_out(fragments: int, merge: str):
    """On speeds of 1 : 1 : 2 : 4, every version to 1e-12: own weights and counters by fragment, tokens, Nesterov's memory by fragment."""
    run = decoupled(
        "partition=even", **{**OWNED, "batch_size": 8, "workload": {"num_parameters": 8, "num_samples": 80, "noise": 1.0}},
        cluster=cluster(*(node(seconds) for seconds in SPEEDS)), local_learning_rate=0.02, budget={"updates": 9},
        coordination={"period": 4 * fragments, "fragments": fragments, "merge": merge},
    )  # fmt: skip

    assert isinstance(run.simulation.task, QuadraticTask)
    versions = written_out(run.simulation.task, versions=9, fragments=fragments, merge=merge)
    for state, version in zip(run.states, versions, strict=True):
        torch.testing.assert_close(state.weights, version, rtol=0, atol=1e-12)
    assert [[sum(c.rank == rank for c in group) for rank in range(4)] for group in run.applied] == [[1, 1, 2, 4]] * 9


SLOW_LINKS = {"latency_seconds": 0.02, "bytes_per_second": 1e6}


def busy(run: Run, rank: int) -> list[float]:
    """The pauses between a learner's gradients up to the last version."""
    rows = sorted((row.start, row.end) for row in run.rows("gradient") if row.rank == rank and row.end <= run.seconds[-1])
    return [start - end for (_, end), (start, _) in pairwise(rows)]


@pytest.mark.parametrize("size", [1, 3])
def test_learners_never_wait(size: int):
    """Neither for exchanges of eight steps' time, nor for slower learners, nor for one that has crashed; DiLoCo waits for all of these."""
    away = {"faults": {"schedule": [{"nodes": [0], "crash": 0.55, "repair": 1.0}], "detection_seconds": 0.1}}
    nodes = cluster(node(2e-3), node(1e-3, count=2), network=SLOW_LINKS)
    keys: dict[str, Any] = {"cluster": {**nodes, **away}, "batch_size": 30, "workload": {"num_parameters": 1000}}

    run = decoupled(on="phantom", **keys, budget={"updates": 20}, admission={"size": size})
    diloco = simulate(experiment("method=diloco", "workload=phantom", **keys, budget={"updates": 5}), trace="full")

    assert {row.rank for row in run.rows("down")} == {0}
    assert all(max(busy(run, rank)) < 1e-12 for rank in (1, 2))
    assert max(busy(diloco, 1)) > 0.05
    after = {c.rank for seconds, group in zip(run.seconds, run.applied, strict=True) for c in group if 0.7 < seconds < 1.0}
    assert after == {1, 2}
    assert size == 1 or {c.rank for c in run.applied[-1]} == {0, 1, 2}  # of a quorum of one the exchange is over before 0 answers


def test_whoever_is_late_is_dropped_and_holds_nobody_up():
    """A step of the third takes longer than five periods: with P = 1 all that it learns is overwritten; the learners do not wait for it,
    the syncer at most γτ steps at a time."""
    workers, link = [node(1e-3, count=2), node(0.05)], {"latency_seconds": 1e-3, "bytes_per_second": 1e300}
    keys: dict[str, Any] = {"on": "phantom", "coordination": {"period": 10, "fragments": 1}, "budget": {"updates": 12}}

    three = cluster(*workers, network=link)
    run, patient = (decoupled(cluster=three, batch_size=30, admission={"grace": grace}, **keys) for grace in (0.0, 0.9))
    without = decoupled(cluster=cluster(workers[0], network=link), batch_size=20, **keys)

    assert {c.rank for group in [*run.applied, *patient.applied] for c in group} == {0, 1}
    assert run.seconds == without.seconds
    assert run.states[-1].num_samples_discarded == without.states[-1].num_samples_discarded
    assert max(busy(patient, 0)) < 1e-12
    assert patient.seconds[-1] <= without.seconds[-1] + 11 * 0.9 * 2 * 0.01


def test_a_grace_window_lets_the_slower_answer():
    """The third takes 1½ times as long for a step; nothing else takes time. Without a grace it is in time only by chance."""
    keys: dict[str, Any] = {
        "on": "phantom", "cluster": cluster(node(1e-3, count=2), node(1.5e-3), network=NO_NETWORK), "batch_size": 30,
        "coordination": {"period": 5, "fragments": 1}, "budget": {"updates": 12},
    }  # fmt: skip

    with_it, without = (decoupled(admission={"grace": grace}, **keys) for grace in (0.9, 0.0))

    assert all({c.rank for c in group} == {0, 1, 2} for group in with_it.applied[1:])
    assert any({c.rank for c in group} == {0, 1} for group in without.applied)


def test_with_several_fragments_no_step_is_lost_that_any_answer_still_shows():
    """P = 2: what is learned between an answer and the new weights is in the other fragment's next answer."""
    keys: dict[str, Any] = {"on": "phantom", "cluster": cluster(node(1e-3, count=3), network=SLOW_LINKS), "batch_size": 30}
    one, two = (decoupled(**keys, coordination={"fragments": count, "period": 10}, budget={"epochs": 0.9}) for count in (1, 2))

    assert one.states[-1].num_samples_discarded > 0
    assert two.states[-1].num_samples_discarded == 0
    assert tiles([c.batch for group in two.applied for c in group], two.states[-1].num_samples)


@pytest.mark.parametrize("detection", [0.005, 1.0])
@pytest.mark.parametrize("crash", [0.05, 0.16, 0.205, 0.23, 0.255, 0.31])
def test_a_learner_that_is_back_before_anybody_notices_begins_anew(crash: float, detection: float):
    """It was asked, was about to answer, or held ranges: every position is applied or discarded once."""
    faults = {"schedule": [{"nodes": [1], "crash": crash, "repair": crash + 0.01}], "detection_seconds": detection}
    nodes = {**cluster(node(1e-3, count=3), network=SLOW_LINKS), "faults": faults}
    workload = {"num_parameters": 1000, "num_samples": 3000}

    run = decoupled(on="phantom", cluster=nodes, workload=workload, batch_size=30, admission={"size": 3}, budget={"epochs": 1})

    last = run.simulation.history.last
    assert (last.num_samples + last.num_samples_discarded, last.num_samples_in_flight) == (3000, 0)
    assert {c.rank for c in run.applied[-4]} == {0, 1, 2}


def test_a_resume_begins_with_the_ranges_that_were_not_settled():
    """From each version, every position is applied or discarded once in all."""
    made = experiment(
        "method=decoupled_diloco", "workload=phantom", workload={"num_samples": 400}, batch_size=30, coordination={"period": 4},
        cluster=cluster(node(2e-3), node(1e-3, count=2), network=SLOW_LINKS), budget={"epochs": 2},
    )  # fmt: skip
    whole = simulate(made, saved=True)

    for checkpoint in whole.checkpoints:
        last = simulate(made, checkpoint=checkpoint, saved=True).simulation.history.last
        assert (last.num_samples + last.num_samples_discarded, last.num_samples_in_flight) == (800, 0)


@pytest.mark.parametrize(
    ("choices", "keys", "sentence"),
    [
        (
            (),
            {"coordination": {"period": 10, "fragments": 3}},
            "coordination.period=10 steps cannot be divided among coordination.fragments=3",
        ),
        ((), {"coordination": {"merge": "median"}}, "coordination.merge must be radial_directional or mean, not 'median'"),
        ((), {"admission": {"size": 5}}, "admission.size=5 is more than the cluster's 4 workers: give at most 4"),
        ((), {"admission": {"grace": 1.0}}, "admission.grace must be at least 0 and below 1, not 1"),
        (("admission=barrier",), {}, "admission is Barrier, but a syncer asks learners for their weights once a quorum has reported"),
        (("compression=two_bit",), {}, "compression is TwoBit, but weights are asked for"),
        (("local_optimizer=none",), {}, "local_optimizer is none, but between two exchanges the learners take local steps"),
    ],
)
def test_what_does_not_fit_is_one_sentence(choices: tuple[str, ...], keys: dict[str, Any], sentence: str):
    """Before the run."""
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.")):
        experiment("method=decoupled_diloco", *choices, **keys)


def test_a_quorum_belongs_to_its_coordination():
    """A parameter server has no grace window."""
    with pytest.raises(
        ValueError, match=r"^admission is Quorum, whose grace window a parameter server does not keep: take coordination=decoup"
    ):
        experiment("method=asgd", "admission=quorum")
    with pytest.raises(ValueError, match=r"^epochs=aligned lets workers wait at the end of an epoch, but DecoupledSteps hands ranges out"):
        experiment("method=decoupled_diloco", "partition=even", data="owned", epochs="aligned")


def test_the_rule_can_be_replaced():
    """A quorum is a policy: its state is the averages, which a checkpoint keeps."""
    run = decoupled(on="phantom", budget={"updates": 3})
    state = run.states[-1].admission

    assert isinstance(state, QuorumState)
    assert None not in (state.step, state.quorum, state.exchange)
    assert replace(state, step=1.0) != state
