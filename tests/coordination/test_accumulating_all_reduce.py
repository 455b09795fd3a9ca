"""ACCO: workers accumulate micro-batches while sums are added up, and a tentative step is taken back with the optimizer's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from worlds import UNEVEN, Run, cluster, experiment, node, simulate

from hetsim.coordination.accumulating_all_reduce import Ahead
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution, Fragment, Update
from hetsim.runtime.rank import RankState
from hetsim.vector import Phantom
from hetsim.workloads.task import Optimizer, Task

SMALL: dict[str, Any] = {
    "workload": {"num_parameters": 8, "num_samples": 90},
    "batch_size": 30,
    "dtype": "float64",
    "learning_rate": 0.05,
    "momentum": 0.9,
    "budget": {"epochs": 20},
}
CHOICES = {"even": (), "by samples": ("allocation=fixed", "weighting=per_sample"), "measured": ("allocation=dbs", "weighting=per_sample")}


def accumulated(*choices: str, **keys: Any) -> Run:
    """ACCO on a quadratic."""
    return simulate(experiment("method=acco", *choices, "workload=quadratic", **{**SMALL, "cluster": UNEVEN, **keys}), trace="full")


def written_out(task: Task, groups: Sequence[Sequence[Contribution]], per_sample: bool) -> Iterator[torch.Tensor]:
    """θ after each version, in plain torch: a momentum buffer that the tentative step reads and leaves alone."""
    theta = tilde = task.initial()
    buffer = torch.zeros_like(theta)
    for t, group in enumerate(groups):
        first = [c for c in group if c.staleness == 1] if t else group[:3]
        sums, weight = torch.zeros_like(theta), 0.0
        for at, half in ((tilde, first), (theta, group[len(first) :])):
            for c in half:
                u = c.samples if per_sample else 1
                sums, weight = sums + u * task.gradient(at, c.batch)[0], weight + u
            if half is first:
                tilde = theta - 0.05 * (0.9 * buffer + sums / weight)
        buffer = 0.9 * buffer + sums / weight
        theta = theta - 0.05 * buffer
        yield theta


@pytest.mark.parametrize("name", CHOICES)
def test_each_version_is_a_step_along_all_sums_and_half_of_them_are_at_the_tentative_weights(name: str):
    """θ' = Opt(θ; Σ(g₁+g₂)/Σ(n₁+n₂)), g₁ at θ̃ = Opt(θ; Σg₁/Σn₁) of the version before, under noise, whatever was counted."""
    keys: dict[str, Any] = {"allocation": {"parts": [1, 3, 2]}} if name == "by samples" else {}

    run = accumulated(*CHOICES[name], **keys)

    assert {len(group) for group in run.applied[1:-2]} - {6, 7} != set()
    for state, theirs in zip(run.states, written_out(run.simulation.task, run.applied, bool(CHOICES[name])), strict=True):
        torch.testing.assert_close(state.weights, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fragment", [None, Fragment(0, 4)], ids=["whole", "fragment"])
def test_a_tentative_step_leaves_the_memory_of_the_optimizer(fragment: Fragment | None):
    """The weights are those of a step; the next step starts as if there had been none."""
    _, optimizers = experiment("workload=quadratic", **SMALL).load()
    optimizer: Optimizer = optimizers.main
    rank, gradient = RankState(rank=0, optimizer=optimizer.initial()), torch.arange(4.0 if fragment else 8.0, dtype=torch.float64)
    at = rank.update(optimizer, Update(torch.zeros(8, dtype=torch.float64), gradient, fragment))
    memory = rank.optimizer

    tentative = rank.update(optimizer, Update(at, gradient, fragment, tentative=True))

    assert rank.optimizer is memory
    assert torch.equal(tentative, rank.update(optimizer, Update(at, gradient, fragment)))
    assert rank.optimizer is not memory


def test_a_worker_of_four_times_the_speed_takes_four_micro_batches_and_nobody_waits():
    """T = (4, 1) s, an instant network, exact: once the counts have grown, each round has one micro-batch of the slow worker."""
    workers = cluster(node(4.0), node(1.0))
    run = simulate(experiment("method=acco", "workload=phantom", batch_size=2, cluster=workers, budget={"updates": 8}), trace="full")

    assert [[sum(c.rank == rank for c in group) for rank in (0, 1)] for group in run.applied] == [[2, 3], [2, 6], [2, 9], *[[2, 8]] * 5]
    for rank in (0, 1):
        steady = [row for row in run.rows("gradient") if row.rank == rank and row.start >= run.seconds[1]]
        assert all(one.end == other.start for one, other in pairwise(steady))
    assert [later - sooner for sooner, later in pairwise(run.seconds)] == [8.0] * 7


def test_a_slow_network_is_filled_with_micro_batches():
    """Gradients of 1 s, all-reduces of 10 s: counts double every second round up to ten, and the network is never idle then."""
    network = {"latency_seconds": 5.0, "bytes_per_second": 1e300, "sharing": "none"}
    workers = cluster(node(1.0, count=2), network=network)
    run = simulate(experiment("method=acco", "workload=phantom", batch_size=2, cluster=workers, budget={"updates": 8}), trace="full")

    assert [len(group) for group in run.applied] == [2 * (1 + 2), 2 * (2 + 4), 2 * (4 + 8), 2 * (8 + 10), *[2 * (10 + 10)] * 4]
    reductions = [row for row in run.rows("all_reduce") if row.rank == 0]
    assert all(one.end == other.start for one, other in pairwise(reductions[7:]))


def test_what_nobody_can_have_begun_is_assigned_again():
    """All ranks hold the same: twice the last known count of each for the next round, and what is left is divided evenly."""
    plan = Plan(num_workers=2, batch_size=4, num_positions=40)
    ahead = Ahead(plan, State(weights=Phantom(8)))
    ahead.assign((2, 2))
    assert list(ahead.held) == [Batch(0, 2), Batch(2, 2)]

    ahead.begin(None)
    ahead.assign((2, 2))
    assert ahead.next_ranges(0, 1) == [Batch(4, 2), Batch(8, 2)]

    assert ahead.settle((1.0, 1.0)) == {0: [Batch(0, 2)], 1: [Batch(2, 2)]}
    ahead.begin((1.0, 1.0))
    ahead.assign((2, 2))
    ahead.settle((1.0, 2.0))
    ahead.begin((1.0, 2.0))
    ahead.assign((2, 2))

    assert {rank: len(held) for rank, held in ahead.held.held.items()} == {0: 4, 1: 6}
    assert sorted((*(b.start for b in ahead.held), 0, 2, 4, 6, 10)) == list(range(0, 30, 2))
    assert ahead.next_ranges(1, 2) == list(ahead.held.held[1])[2:6]


@pytest.mark.parametrize(
    ("choices", "keys", "sentence"),
    [
        ((), {"coordination": {"exchanges": 0}}, "coordination.exchanges must be at least 1, not 0"),
        (
            ("weighting=per_worker_mean",),
            {},
            "weighting is PerWorkerMean, but each rank adds up its micro-batches by itself: take per_worker",
        ),
        (("admission=every_gradient",), {}, "admission is EveryGradient, but an all-reduce waits for all workers"),
        (("compression=two_bit",), {}, "compression is TwoBit, but only pushes to a server and changes by local steps are compressed"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(choices: tuple[str, ...], keys: dict[str, Any], sentence: str):
    """With one sentence."""
    with pytest.raises(ValueError, match=sentence):
        experiment("method=acco", *choices, **keys)
