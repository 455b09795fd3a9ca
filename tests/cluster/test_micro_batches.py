"""Gradients that are computed in passes, as memory has no room for all of their samples: gradient accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_runs import timed, times, world
from test_lockstep import reported
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

from hetsim.cluster.compute_times import share_ready
from hetsim.effects import Batch
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.sim.world import EventWorld
from hetsim.workloads.task import divide_batch, in_passes

AT_A_TIME = {"micro_batch": 4}


@pytest.mark.parametrize(("samples", "seconds"), [(3, 5.0), (4, 6.0), (8, 12.0), (9, 15.0), (10, 16.0)])
def test_each_pass_has_its_overhead(samples: int, seconds: float) -> None:
    """2 s a pass of at most four samples, and 1 s a sample; a table is asked for each pass."""
    table = {"count": 1, "table": [[1, 3.0], [4, 6.0]], **AT_A_TIME}

    assert times(node(1.0, 2.0, **AT_A_TIME)).seconds(samples) == seconds
    assert times(table).seconds(samples) == seconds


def test_memory_bounds_a_pass_and_not_the_share_of_a_worker() -> None:
    """With max_samples the other workers would take the rest, or there would be no room."""
    passes = timed("ssgd", workers=world(node(1.0, count=2, **AT_A_TIME)), updates=1, batch_size=32)

    assert passes.seconds == [16.0]
    with pytest.raises(ValueError, match="batch_size=32"):
        timed("ssgd", workers=world(node(1.0, count=2, max_samples=4)), updates=1, batch_size=32)


def test_the_gradient_is_that_of_all_samples() -> None:
    """But for the last bits: the mean over passes, by their samples."""
    made = experiment("method=ssgd", "workload=quadratic", dtype="float64")
    task, _ = made.load()
    batch = Batch(3, 10)
    whole, loss = task.gradient(task.initial(), batch)
    summed, mean_loss = in_passes(task, task.initial(), batch, 4)

    assert [(part.start, part.samples) for part in divide_batch(batch, 4)] == [(3, 4), (7, 4), (11, 2)]
    assert (whole - summed).abs().max() < 1e-12
    assert mean_loss == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("method", ["ssgd", "asgd"])
def test_training_in_passes_is_training(method: str) -> None:
    """On each rank as its own node says."""
    rows = [node(1e-3, micro_batch=3), node(1e-3)]
    plain = [node(1e-3), node(1e-3)]
    runs = [
        simulate(
            experiment(
                f"method={method}", "workload=quadratic", cluster=world(*these), batch_size=16, budget={"updates": 10}, dtype="float64"
            )
        )
        for these in (rows, plain)
    ]
    passes, whole = (run.weights for run in runs)

    assert passes.tolist() == pytest.approx(whole.tolist(), rel=1e-9)
    assert passes.tolist() != whole.tolist()


@pytest.mark.slow
def test_real_processes_compute_the_same_passes(tmp_path: Path) -> None:
    """Synchronous training gives the same bits, and padding holds each pass."""
    import hetsim

    words = [
        *("method=ssgd", "workload=quadratic", "batch_size=16", "budget.epochs=null", "budget.updates=6", "pictures=false"),
        "cluster.nodes=[{count: 1, seconds_per_sample: 2 ms, overhead_seconds: 5 ms, micro_batch: 3}, "
        "{count: 1, seconds_per_sample: 2 ms, overhead_seconds: 5 ms}]",
    ]
    simulated, real = (hetsim.run(*words, f"backend={backend}", folder=tmp_path / backend) for backend in ("sim", "dist"))

    assert real.summary["final"] == simulated.summary["final"]
    assert real.summary["seconds"] >= simulated.summary["seconds"]


@pytest.mark.parametrize("value", [0, 1.5, "half"])
def test_a_micro_batch_is_a_number_of_samples(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^cluster\.nodes\.0\.micro_batch must be"):
        times(node(1.0, micro_batch=value))


def test_the_last_pass_completes_the_buckets() -> None:
    """Of 16 samples in passes of 4, 6 s each: buckets are ready in the last 6 s, in which the shares of a single pass hold."""
    twelve = {"count": 1, "seconds_per_sample": 1.0, "overhead_seconds": 2.0, **AT_A_TIME}
    one = times(twelve).node

    assert [share_ready(one, 16, ready) * 24 for ready in (0.5, 1.0)] == [21.0, 24.0]
    assert [share_ready(one, samples, 0.5) for samples in (3, 4)] == [0.5, 0.5]
    assert share_ready(one, 6, 0.5) * 10 == pytest.approx(6 + 0.5 * 4)


def test_ddp_in_passes_is_the_same_event_by_event_and_in_lockstep() -> None:
    """The reductions begin with the last pass of the slowest, so passes of a quarter hide less of them."""
    slow = {"latency_seconds": 0.5, "bytes_per_second": 1e3, "sharing": "none"}
    runs = {}
    for passes in ({}, AT_A_TIME):
        made = experiment(
            *("method=ddp", "workload=phantom"),
            workload={"num_parameters": 500},
            coordination={"bucket_bytes": 500},
            cluster=cluster(node(1.0, count=2, **passes), node(0.5), network=slow),
            batch_size=48,
            budget={"updates": 3},
        )
        runs[bool(passes)] = simulate(made).seconds
        assert reported(LockstepWorld, made) == reported(EventWorld, made)
    assert runs[True][-1] > runs[False][-1]


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["quadratic", "digits", "tiny_lm"])
def test_real_ranks_add_up_passes_bucket_by_bucket(workload: str) -> None:
    """With the bits of the simulation."""
    made = experiment(
        *("method=ddp", f"workload={workload}"),
        coordination={"bucket_bytes": 2000},
        cluster=cluster(node(1e-4, micro_batch=3), node(1e-4)),
        batch_size=16,
        budget={"updates": 4},
        dtype="float64",
    )

    ranks: list[Any] = run_in_threads(made)

    assert torch.equal(ranks[0].last.weights, simulate(made).weights)
