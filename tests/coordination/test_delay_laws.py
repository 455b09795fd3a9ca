"""One-step delay under every allocation: each position once, new starts, and what it is identical to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from delays import BOTH, DELAYED, applied, delayed
from worlds import UNEVEN, experiment, simulate, tiles

from hetsim.runtime.experiment import Experiment

pytestmark = pytest.mark.slow

ALLOCATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "even": ("even", {}),
    "fixed": ("fixed", {"parts": [1, 3, 2]}),
    "dbs": ("dbs", {}),
    "dbs every 3": ("dbs", {"reallocate_every": 3}),
    "dbs every epoch": ("dbs", {"reallocate_every": "epoch"}),
}
BUDGETS: dict[str, dict[str, Any]] = {"epochs": {"epochs": 3.5}, "updates": {"updates": 9}, "seconds": {"seconds": 0.09}}
ONE = {**UNEVEN, "nodes": UNEVEN["nodes"][:1]}
ROWS = pytest.mark.parametrize(("where", "k"), [("server", 1), ("server", 3), ("all_reduce", 1)])
EVERY_ALLOCATION = pytest.mark.parametrize("allocation", ALLOCATIONS)
CELLS = [
    ("phantom", "epochs", 3),
    ("phantom", "updates", 3),
    ("phantom", "seconds", 3),
    ("phantom", "updates", 1),
    ("quadratic", "epochs", 1),
]


def uneven(where: str, k: int, allocation: str, workers: int, *, on: str = "quadratic", **keys: Any) -> Experiment:
    """On noisy unequal nodes, 90 samples an epoch in batches of 31."""
    name, options = ALLOCATIONS[allocation]
    if "parts" in options:
        options = {"parts": options["parts"][:workers]}
    keys = {"workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 31, "cluster": UNEVEN if workers == 3 else ONE, **keys}
    coordination = {"pull_every": k} if where == "server" else {}
    return delayed(where, f"workload={on}", f"allocation={name}", allocation=options, coordination=coordination, **keys)


@pytest.mark.parametrize(("on", "budget", "workers"), CELLS)
@EVERY_ALLOCATION
@ROWS
@pytest.mark.sampled(38)
def test_every_position_is_applied_once_and_nobody_is_left_waiting(where: str, k: int, allocation: str, workers: int, budget: str, on: str):
    """Positions in order, none computed twice, the budget met exactly, and every rank at its end."""
    run = simulate(uneven(where, k, allocation, workers, on=on, budget=BUDGETS[budget]))

    last = run.states[-1]
    assert all(process.done for process in run.simulation.processes)
    assert tiles(applied(run), last.num_samples)
    positions = [position for batch in run.computed for position in range(batch.start, batch.stop)]
    assert len(set(positions)) == len(positions)
    assert set(range(last.num_samples)) <= set(positions)
    assert [state.version for state in run.states] == list(range(1, len(run.states) + 1))
    if budget == "epochs":
        assert last.num_samples == last.next_sample == len(positions) == 315
    if budget == "updates":
        assert last.version == 9
    if budget == "seconds":
        assert run.seconds[-2] < 0.09 <= run.seconds[-1]


@pytest.mark.parametrize("workers", [1, 3])
@EVERY_ALLOCATION
@ROWS
@pytest.mark.sampled(8)
def test_a_new_start_applies_what_is_left_once(where: str, k: int, allocation: str, workers: int):
    """From the checkpoint of every version: what was under way is dealt again, and versions go on."""
    described = uneven(where, k, allocation, workers, budget={"epochs": 3.5})
    whole = simulate(described, saved=True)
    assert len(whole.states) == 11

    assert len(whole.checkpoints) == 11
    for stop, checkpoint in enumerate(whole.checkpoints):
        rest = simulate(described, checkpoint=checkpoint, saved=True)

        before = [c.batch for group in whole.applied[: stop + 1] for c in group]
        assert tiles(before + applied(rest), 315)
        assert [after.version for after in rest.states] == list(range(stop + 2, 12))
        assert all(process.done for process in rest.simulation.processes)


@ROWS
def test_a_new_start_within_warm_up_goes_on_as_if_it_had_never_stopped(where: str, k: int):
    """Bit by bit: there is no delay yet that a stop could lose."""
    described = uneven(where, k, "dbs", 3, warm_up=4, budget={"epochs": 3.5})
    whole = simulate(described, saved=True)

    rest = simulate(described, checkpoint=whole.checkpoints[1], saved=True)

    assert torch.equal(rest.weights, whole.weights)
    assert rest.applied[-1][0].batch == whole.applied[-1][0].batch


@BOTH
def test_a_warm_up_longer_than_the_run_is_synchronous_sgd(where: str):
    """Bit by bit the same parameters, at the same seconds."""
    keys: dict[str, Any] = {"cluster": UNEVEN, "budget": {"epochs": 2.5}, "learning_rate": 0.1, "momentum": 0.9}
    twin = "parameter_server" if where == "server" else "all_reduce"

    run = simulate(delayed(where, "workload=quadratic", warm_up=10**6, **keys))
    synchronous = simulate(experiment("method=ssgd", f"coordination={twin}", "workload=quadratic", **keys))

    assert torch.equal(run.weights, synchronous.weights)
    assert run.seconds == synchronous.seconds


@pytest.mark.parametrize("compensation", ["none", "dc"])
@pytest.mark.parametrize("allocation", ["even", "fixed"])
def test_the_server_and_the_ring_learn_the_same(allocation: str, compensation: str):
    """Bit by bit: the same sums in the same order, where shares do not move with times that a server knows earlier."""
    one, other = (
        simulate(
            delayed(
                where,
                "workload=quadratic",
                f"compensation={compensation}",
                f"allocation={allocation}",
                allocation=ALLOCATIONS[allocation][1],
                workload={"num_parameters": 8, "num_samples": 90},
                cluster=UNEVEN,
                batch_size=31,
                budget={"epochs": 3.5},
            )
        )
        for where in DELAYED
    )

    assert torch.equal(one.weights, other.weights)
    assert applied(one) == applied(other)
