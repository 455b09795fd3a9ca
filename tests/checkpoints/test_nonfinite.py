"""Gradients that are not finite are counted, and go into no average."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from methods import METHODS
from test_every_method import short
from threads import run_in_threads
from worlds import UNEVEN

from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.nonfinite import NonfiniteGradients, is_finite
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.sim.backend import Simulator, world_of
from hetsim.workloads.tasks.quadratic_task import QuadraticTask

BROKEN = 12
"""A position whose gradient is not finite."""


@pytest.fixture(params=[math.nan, -math.inf])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """While this lasts, the gradient of a range that holds a position has such a number."""
    gradient = QuadraticTask.gradient

    def breaking(task: QuadraticTask, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        found, loss = gradient(task, at, batch)
        return (found.index_fill(0, torch.tensor([1]), request.param), loss) if batch.start <= BROKEN < batch.stop else (found, loss)

    monkeypatch.setattr(QuadraticTask, "gradient", breaking)
    return float(request.param)


def made(name: str, **keys: Any) -> Experiment:
    """A short run of a method."""
    return short(name, "workload=quadratic", budget={"epochs": 3}, **{**METHODS[name].keys, **keys})


@pytest.mark.slow
@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(12)
def test_it_is_counted_once_and_reaches_no_weights(name: str) -> None:
    """In every method: not by residuals, tables, momentum, corrections or averages."""
    described = made(name)
    world = world_of(described, *described.load(), [])

    world.run()

    assert is_finite(world.history.last.weights)
    assert sum(its.num_nonfinite for its in world.metrics.activity) >= 1
    assert world.history.last.num_samples + world.history.last.num_samples_discarded == 300


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", ["ssgd", "asgd"])
def test_the_real_world_leaves_it_out_too(name: str) -> None:
    """In threads: the same count, and finite weights."""
    described = made(name, trace="none")

    ends = run_in_threads(described, detail="none")

    runs = [end for end in ends if isinstance(end, RankRun)]
    assert len(runs) == described.num_ranks
    assert sum(run.metrics.activity[run.rank].num_nonfinite for run in runs[: described.num_workers]) == 1
    assert is_finite(runs[described.leader].last.weights)


@pytest.mark.usefixtures("broken")
def test_a_run_may_end_at_the_first(tmp_path: Path) -> None:
    """One sentence that says which gradient it was."""
    with pytest.raises(RunFailed, match=r"the gradient of rank \d at version 0, over the samples at positions \d+ to \d+, is not finite"):
        Simulator().run(made("ssgd", nonfinite="fail"), tmp_path, "seed: 0\n")


@pytest.mark.usefixtures("broken")
def test_the_summary_says_how_many(tmp_path: Path) -> None:
    """A number and a warning."""
    summary = Simulator().run(made("ssgd"), tmp_path, "seed: 0\n")

    assert summary["num_nonfinite_gradients"] == 1
    assert any("1 of the gradients, of 1 of the workers, had a NaN or an infinity" in warning for warning in summary["warnings"])


def test_a_sum_that_overflows_is_no_reason() -> None:
    """Large numbers are finite, though their sum is not."""
    large = torch.full((4,), 3e38)

    kept = NonfiniteGradients("fail", [RankActivity()]).check(large, rank=0, version=0, batch=Batch(0, 1))

    assert kept is large
    assert not large.sum().isfinite()


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", ["asgd", "rennala_stops"])
def test_it_is_counted_where_processes_share_cores(name: str) -> None:
    """Also of a gradient that could be given up."""
    rows = [{"count": 3, "seconds_per_sample": 1e-3, "overhead_seconds": 0, "host": "one"}]
    shared = {**UNEVEN, "nodes": rows, "hosts": {"one": {"cores": 2}}}
    described = made(name, cluster=shared)
    world = world_of(described, *described.load(), [])

    world.run()

    assert is_finite(world.history.last.weights)
    assert sum(its.num_nonfinite for its in world.metrics.activity) >= 1
