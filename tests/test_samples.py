"""Each position of the one sample sequence is handed out once, to the end of an epoch budget; and budgets stop where they should."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from worlds import ALLOCATIONS, COORDINATIONS, SYNCHRONOUS, UNEVEN, cluster, experiment, method, node, simulate, tiles

from hetsim.policies.allocation.base import Even

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"workload": {"num_parameters": 4, "num_samples": 100}, "batch_size": 31, "cluster": UNEVEN}
EVERY_METHOD = [(coordination, allocation) for coordination in COORDINATIONS for allocation in ALLOCATIONS]


@pytest.mark.parametrize("epochs", [1, 2.35, 0.02])
@pytest.mark.parametrize(("coordination", "allocation"), EVERY_METHOD)
def test_every_position_is_computed_and_applied_once(coordination: str, allocation: str, epochs: float):
    """epochs × n positions, not one twice and none left out, also where fewer are left than there are workers."""
    run = simulate(method(coordination, allocation, "workload=phantom", **SMALL, budget={"epochs": epochs}))

    positions = round(100 * epochs)
    assert tiles(run.computed, positions)
    assert tiles([c.batch for group in run.applied for c in group], positions)
    assert (run.states[-1].num_samples, run.states[-1].next_sample, run.states[-1].outstanding) == (positions, positions, ())


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_every_global_batch_is_full_but_the_last(coordination: str, allocation: str):
    """Σ b_i = B, contiguous in rank order; 235 positions are seven batches of 31 and one of 18."""
    run = simulate(method(coordination, allocation, "workload=phantom", **SMALL, budget={"epochs": 2.35}))

    assert [sum(c.samples for c in group) for group in run.applied] == [31] * 7 + [18]
    assert all(before.batch.stop == after.batch.start for before, after in pairwise(c for group in run.applied for c in group))
    assert all([c.rank for c in group] == sorted(c.rank for c in group) for group in run.applied)


@pytest.mark.parametrize(("coordination", "allocation"), EVERY_METHOD)
def test_shares_always_sum_to_the_batch(coordination: str, allocation: str):
    """In every committed state the next shares sum to B, and nobody's is empty."""
    run = simulate(method(coordination, allocation, "workload=phantom", **SMALL, budget={"updates": 40}))

    shares = [run.simulation.experiment.coordination.allocation.shares(state.allocation) for state in run.states]
    assert {sum(share) for share in shares} == {31}
    assert min(min(share) for share in shares) >= 1
    assert (len(set(shares)) > 1) == (allocation == "dbs")


@pytest.mark.parametrize(("coordination", "allocation"), EVERY_METHOD)
def test_an_update_budget_is_met_exactly(coordination: str, allocation: str):
    """The run ends at that commit, whatever is still computing."""
    run = simulate(method(coordination, allocation, "workload=phantom", **SMALL, budget={"updates": 7}))

    assert [state.version for state in run.states] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("limit", [1e-9, 0.01, 0.0345, 0.2])
@pytest.mark.parametrize(("coordination", "allocation"), EVERY_METHOD)
def test_a_budget_of_seconds_ends_at_the_first_commit_behind_it(coordination: str, allocation: str, limit: float):
    """Every version but the last one was committed before the limit."""
    run = simulate(method(coordination, allocation, "workload=phantom", **SMALL, budget={"seconds": limit}))

    assert run.seconds[-1] >= limit
    assert all(seconds < limit for seconds in run.seconds[:-1])


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_all_ranks_stop_at_the_same_version(slow: int):
    """Each rank's own update ends at another time, on both sides of the limit, and yet nobody is left waiting in a collective."""
    updates = [0.0, 0.5, 1.0][slow:] + [0.0, 0.5, 1.0][:slow]
    workers = cluster(*(node(1.0, seconds_per_update=seconds) for seconds in updates))
    for limit in (0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.25):
        run = simulate(
            experiment("method=ssgd", "workload=phantom", **{**SMALL, "batch_size": 3, "cluster": workers}, budget={"seconds": limit})
        )

        assert len(run.computed) == 3 * run.states[-1].version
        assert [worker.iterations for worker in run.simulation.metrics.activity] == [run.states[-1].version] * 3


@pytest.mark.parametrize(
    ("budget", "end"),
    [
        ({"epochs": 1, "updates": 2, "seconds": 100.0}, (2.0, 2, 20)),
        ({"epochs": 1, "updates": 200, "seconds": 4.5}, (5.0, 5, 50)),
        ({"epochs": 1, "updates": 200, "seconds": 5.0}, (5.0, 5, 50)),
        ({"epochs": 0.7, "updates": 200, "seconds": 100.0}, (7.0, 7, 70)),
    ],
)
def test_the_budget_that_is_used_up_first_ends_the_run(budget: dict[str, Any], end: tuple[float, int, int]):
    """(seconds, version, samples) at the end of rounds of one second and ten samples."""
    keys = {**SMALL, "batch_size": 10, "cluster": cluster(node(0.2, count=2))}

    run = simulate(experiment("method=ssgd", "workload=phantom", **keys, budget=budget))

    assert (run.seconds[-1], run.states[-1].version, run.states[-1].num_samples) == end


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_what_is_in_flight_is_counted_and_not_applied(allocation: str):
    """At each commit of an asynchronous run the others' ranges are out; at the last one they are left where they are."""
    run = simulate(method("server", allocation, "workload=phantom", **SMALL, budget={"updates": 12}))

    last = run.states[-1]
    assert [state.num_samples_in_flight for state in run.states] == [
        sum(batch.samples for batch in state.outstanding) for state in run.states
    ]
    assert len(last.outstanding) == 2
    assert tiles([c.batch for group in run.applied for c in group] + list(last.outstanding), last.next_sample)
    assert sorted(run.computed, key=lambda batch: batch.start)[-1].stop == last.next_sample


def test_a_worker_with_an_empty_range_computes_nothing():
    """Of two positions behind full batches the third worker has none: no gradient, no iteration, weight zero."""
    run = simulate(experiment("method=ssgd", "workload=phantom", **{**SMALL, "batch_size": 3}, budget={"epochs": 0.05}))

    assert [[c.rank for c in group] for group in run.applied] == [[0, 1, 2], [0, 1]]
    assert [worker.iterations for worker in run.simulation.metrics.activity] == [2, 2, 1]


@pytest.mark.parametrize(("coordination", "told"), [("all_reduce", "gave shares"), ("server", "gave a worker 0 samples")])
def test_shares_that_are_none_are_one_sentence(coordination: str, told: str):
    """A user's own allocation may be wrong; nobody computes nothing for ever."""
    made = method(coordination, "even", "workload=phantom", **SMALL, budget={"updates": 7})
    wrong = replace(made, coordination=replace(made.coordination, allocation=Nothing()))

    with pytest.raises(ValueError, match=f"^the allocation {told}"):
        simulate(wrong)


class Nothing(Even):
    """An allocation that gives nobody anything."""

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return (0, 0, 0)
