"""Runs that end with their first loss: those that are saved or resumed, and those with local servers."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import family, started, wait_for
from running import hetsim as command
from worlds import cluster, experiment, node

import hetsim
from hetsim.checkpoints.folder import newest
from hetsim.dist import Processes
from hetsim.runtime.checkpointing import STOPPED, Checkpointing

CRASHING = {**cluster(node(1e-3, count=4)), "faults": {"schedule": [{"nodes": [1], "crash": 0.5, "repair": 1.0}]}}
QUADRATIC = ("workload=quadratic", "workload.num_parameters=20", "budget.epochs=1e6", "pictures=false")
SAVED = ("-m", "hetsim", "backend=dist", *QUADRATIC, "checkpoint.every_updates=50")
NUM_RANKS = 5


@pytest.mark.parametrize(
    ("method", "keys", "sentence"),
    [
        (
            "method=ssgd",
            {"checkpoint": Checkpointing(every_updates=5)},
            "a run that is saved ends with its first loss: leave out checkpoint.",
        ),
        ("method=ssgd", {"resume": Path("runs/a")}, "a run that goes on from a checkpoint ends with its first loss: leave out resume, "),
        ("method=halos", {}, "the local servers of method=halos do not go on without a worker: take another method, take backend=sim"),
    ],
    ids=["saved", "resumed", "local servers"],
)
def test_faults_are_refused_where_a_run_would_not_survive_them(method: str, keys: dict[str, Any], sentence: str) -> None:
    """With what to leave out."""
    more = ("coordination.num_regions=2",) if method == "method=halos" else ()
    described = replace(experiment(method, *more, "workload=quadratic", cluster=CRASHING), **keys)

    with pytest.raises(ValueError, match=r"^cluster\.faults are injected into runs that survive them, and ") as refused:
        Processes().check(described)

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["asgd", "ssgd"])
def test_a_saved_run_ends_with_its_first_loss_and_goes_on_by_resume(method: str, tmp_path: Path) -> None:
    """One sentence, no process left, the checkpoints alone in the folder; and nothing is missing in what goes on."""
    folder = tmp_path / "run"
    running = command(*SAVED, f"method={method}", folder=folder)
    processes = started(running, folder)
    wait_for(lambda: list(folder.glob("checkpoints/*.safetensors")))

    os.kill(processes[-2], signal.SIGKILL)
    _, told = running.communicate(timeout=15)

    wait_for(lambda: not family(running.pid), 10)
    assert running.returncode == 1
    assert told.startswith("hetsim: error: the process of rank ")
    assert told.endswith(" ended by itself (exit status -9): the run is lost\n")
    assert told.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]
    version = int(newest(folder).name[:12])
    run = hetsim.run(f"resume={folder}", "backend=sim", f"budget.updates={version + 20}", folder=tmp_path / "rest")
    assert run.summary["num_updates"] == version + 20


@pytest.mark.slow
def test_a_signal_to_the_process_that_keeps_the_store_stops_a_saved_run_as_to_any_other(tmp_path: Path) -> None:
    """It is the first of them."""
    folder = tmp_path / "run"
    running = command(*SAVED, "method=asgd", folder=folder)
    processes = started(running, folder)
    wait_for(lambda: list(folder.glob("checkpoints/*.safetensors")))

    os.kill(processes[-NUM_RANKS - 1], signal.SIGTERM)
    _, told = running.communicate(timeout=15)

    assert running.returncode == STOPPED, told
    assert "stopped at version" in told
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]
