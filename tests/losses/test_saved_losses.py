"""Runs that are saved or resumed go on without a worker, too, and save again."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty import Faults, applied_until, check_samples, survive
from running import family, started, wait_for
from running import hetsim as command
from test_losses import ONE_OF_EACH, SMALL, THREE, emulated, small
from worlds import cluster, experiment, node, tiles

import hetsim
from hetsim.checkpoints.file import read
from hetsim.checkpoints.folder import newest
from hetsim.checkpoints.resume import load
from hetsim.distributed.membership.faults import FaultSchedule, check_faults
from hetsim.errors import RunFailed, RunStopped
from hetsim.files.folder import FILES
from hetsim.runtime.checkpointing import STOPPED, Checkpointing

CRASHING = {**cluster(node(1e-3, count=4)), "faults": {"schedule": [{"nodes": [1], "crash": 0.5, "repair": 1.0}]}}
QUADRATIC = ("workload=quadratic", "workload.num_parameters=20", "budget.epochs=1e6", "pictures=false")
SAVED = ("-m", "hetsim", "backend=dist", *QUADRATIC, "checkpoint.every_updates=50")
NUM_RANKS = 5
STOPPED_AT = {"server": 100, "stopping_server": 100, "async_local_steps": 100, "dynamic_local_steps": 100, "local_servers": 40}
"""Where a version is made without waiting for all, there are many while a checkpoint is being collected; the others: 16."""


@pytest.mark.slow
@pytest.mark.parametrize("which", ONE_OF_EACH)
@pytest.mark.sampled(1)
def test_a_saved_run_goes_on_without_a_worker_and_so_does_what_is_resumed(which: str, tmp_path: Path) -> None:
    """It loses a worker, saves itself again, is stopped, goes on with all and loses another: no position is lost or applied twice."""
    described, emulate = small(which, epochs={"local_servers": 8, "all_reduce": 16}.get(which, 40)), emulated(which)
    saved = replace(described, checkpoint=Checkpointing(every_updates=5))
    first, second = tmp_path / "first", tmp_path / "second"

    faults = Faults().kill(rank=1, at_update=4).terminate(rank=2, at_update=STOPPED_AT.get(which, 16))

    with pytest.raises(RunStopped, match="stopped at version"):
        survive(saved, faults, first, emulate=emulate, lost_after=30)
    earlier, last = sorted(first.glob("run/checkpoints/*.safetensors"))
    version = int(last.name[:12])
    again = Faults().kill(rank=2, at_update=version + 2)
    rest = survive(replace(saved, resume=last), again, second, emulate=emulate, lost_after=30)

    assert version > int(earlier.name[:12]) >= 10
    assert rest.lost == [2]
    total = described.budget.num_positions(SMALL["num_samples"])
    before = applied_until(first, version)
    positions = [position for batch in before + rest.batches for position in range(batch.start, batch.stop)]
    assert len(positions) == len(set(positions)) == rest.summary["num_samples"]
    assert rest.summary["num_samples"] + rest.summary["num_samples_discarded"] == total
    if not rest.summary["num_samples_discarded"]:
        assert tiles(before + rest.batches, total)
    assert [at for at, _, _ in rest.applied] == list(range(version + 1, version + 1 + len(rest.applied)))
    assert {path.name for path in (second / "run").iterdir()} <= {*FILES, "checkpoints"}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["server", "local_servers"])
@pytest.mark.sampled(1)
def test_a_checkpoint_knows_what_each_worker_has_done(which: str, tmp_path: Path) -> None:
    """Also where workers answer a local server, and one of them is lost."""
    described = replace(small(which, epochs=8 if which == "local_servers" else 4), checkpoint=Checkpointing(every_updates=4, keep=1000))

    survive(described, Faults().kill(rank=0, at_update=2), tmp_path, emulate=emulated(which), lost_after=30)

    task, optimizers = described.load()
    *_, last_but_one, last = sorted(tmp_path.glob("run/checkpoints/*"))
    done = [[its["iterations"] for its in load(path, described, task, optimizers).progress["activity"]] for path in (last_but_one, last)]
    assert all(0 < before <= after for before, after in list(zip(*done, strict=True))[1:])


@pytest.mark.slow
def test_a_leader_that_is_killed_while_it_saves_leaves_whole_checkpoints(tmp_path: Path) -> None:
    """Without a server another rank goes on, and saves the run when that is due again."""
    described = replace(small("all_reduce", epochs=4), checkpoint=Checkpointing(every_updates=5, keep=1000))

    run = survive(described, Faults().kill_in_save(rank=0, at_update=20), tmp_path, lost_after=30)

    assert (run.happened, run.lost) == (["kill_in_save 0"], [0])
    check_samples(run, described)
    saved = sorted(tmp_path.glob("run/checkpoints/*"))
    assert {path.suffix for path in saved} == {".safetensors"}
    assert [int(path.name[:12]) for path in saved] == [5, 10, 15, *range(25, run.summary["num_updates"] + 1, 5)]
    assert all(read(path) for path in saved)


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """From which the run goes on; nothing else of it is left."""
    described = replace(small("server", epochs=4), checkpoint=Checkpointing(every_updates=20))
    folder = tmp_path / "first" / "run"

    with pytest.raises(RunFailed, match=r"^the process of rank 3, the server, ended by itself \(exit status -9\): the run is lost$"):
        survive(described, Faults().kill_in_save(rank=3, at_update=60), tmp_path / "first", lost_after=30)
    left = [path for path in folder.rglob("*") if path.is_file()]
    rest = survive(replace(described, resume=newest(folder)), Faults(), tmp_path / "second", lost_after=30)

    assert 1 <= len(left) <= 2
    assert all(read(path) and int(path.name[:12]) < 60 for path in left)
    assert rest.summary["num_samples"] == 4 * SMALL["num_samples"]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_run_that_is_asked_to_stop_while_its_last_gradient_is_computed_has_ended(num_workers: int, tmp_path: Path) -> None:
    """Nothing is left to go on with. Of two workers one is lost, and the other computes its gradient again, after all others."""
    slow = {**THREE, "nodes": [node(1e-4, 0.8, count=num_workers)]}
    described = replace(small("server", on=slow, epochs=0.1), checkpoint=Checkpointing(every_updates=5))
    num_updates = 2 * num_workers
    faults = Faults().terminate(rank=0, at_update=num_updates - 1)

    run = survive(described, faults.kill(rank=1, at_update=1) if num_workers == 2 else faults, tmp_path, emulate="pad", lost_after=30)

    assert sorted(run.happened) == ["kill 1", "terminate 0"][2 - num_workers :]
    assert run.summary["num_samples"] == 48
    assert run.summary["num_updates"] == num_updates


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("which", ["server", "all_reduce"])
def test_a_worker_that_hangs_holds_a_checkpoint_up_until_it_is_lost(which: str, tmp_path: Path) -> None:
    """Then the run is saved without it, and again."""
    described = replace(small(which, epochs=16), checkpoint=Checkpointing(every_updates=10, keep=1000))

    run = survive(described, Faults().stop(rank=1, at_update=15), tmp_path, lost_after=3.0)

    assert run.lost == [1]
    versions = [int(path.name[:12]) for path in tmp_path.glob("run/checkpoints/*.safetensors")]
    assert {version for version in versions if version > run.applied[-1][0] // 2}
    check_samples(run, described)


@pytest.mark.parametrize(
    ("began", "joins", "upcoming"),
    [
        (0.0, {0: 0.2}, [(0.5, 1, "kill", 1.5), (1.0, 2, "stop", 1.2), (1.2, 2, "continue", math.inf), (3.0, 1, "kill", math.inf)]),
        (0.7, {1: 1.5}, [(1.0, 2, "stop", 1.2), (1.2, 2, "continue", math.inf), (3.0, 1, "kill", math.inf)]),
        (1.1, {1: 1.5}, [(1.1, 2, "stop", 1.2), (1.2, 2, "continue", math.inf), (3.0, 1, "kill", math.inf)]),
        (2.0, {}, [(3.0, 1, "kill", math.inf)]),
        (4.0, {1: math.inf}, []),
    ],
)
def test_a_resumed_run_has_the_faults_that_it_has_not_had(began: float, joins: dict[int, float], upcoming: list[tuple[Any, ...]]) -> None:
    """And who was absent at the checkpoint is absent, since when it was, and comes back when it would have."""
    schedule = [
        {"nodes": [0], "join": 0.2}, {"nodes": [1], "crash": 0.5, "repair": 1.5}, {"nodes": [1], "crash": 3.0},
        {"nodes": [2], "stop": 1.0, "continue": 1.2},
    ]  # fmt: skip
    described = experiment("method=asgd", "workload=phantom", cluster={**cluster(node(1.0, count=3)), "faults": {"schedule": schedule}})

    its = FaultSchedule(described, began=began)

    assert its.joins == joins
    assert {rank: (0.0, 0.5, None, 3.0).index(since) for rank, since in its.absent.items()} == {
        rank: {0.2: 0, 1.5: 1, math.inf: 3}[until] for rank, until in joins.items()
    }
    assert [tuple(fault) for fault in its.due(10.0)] == upcoming


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize("which", ["server", pytest.param("all_reduce", marks=pytest.mark.long)])
@pytest.mark.sampled(1)
@pytest.mark.long
def test_who_is_absent_at_a_checkpoint_comes_back_when_it_would_have(which: str, tmp_path: Path) -> None:
    """Its absence counts once, and whole; the run's clock goes on."""
    faults = {"schedule": [{"nodes": [1], "crash": 0.15, "repair": 4.0}]}
    on = {**THREE, "nodes": [node(seconds, 5e-2) for seconds in (1e-4, 5e-5, 7e-5)], "faults": faults}
    described = replace(
        small(which, on=on, budget={"updates": 300 if which == "server" else 120}), checkpoint=Checkpointing(every_updates=2)
    )

    with pytest.raises(RunStopped):
        survive(described, Faults().terminate(rank=2, at_update=2, after_loss_of=1), tmp_path / "first", emulate="pad", lost_after=30)
    last = newest(tmp_path / "first" / "run")
    assert load(last, described, *described.load()).began < 4.0
    run = survive(replace(described, resume=last), Faults(), tmp_path / "second", emulate="pad", lost_after=30)

    assert run.joined == [1]
    assert run.lost == []
    down = [worker["down_seconds"] for worker in run.summary["per_worker"]]
    (joined,) = run.summary["emulation"]["losses"]["joined"]
    assert joined["seconds"] >= 4.0
    assert joined["seconds"] - down[1] == pytest.approx(0.15)
    assert down[0] == down[2] == 0


def test_faults_are_refused_where_gpus_would_regroup() -> None:
    """With what to do."""
    described = replace(experiment("method=ssgd", "workload=quadratic", cluster=CRASHING), device="cuda")

    with pytest.raises(ValueError, match=r"^cluster\.faults are injected into runs that survive them, and ") as refused:
        check_faults(described, lost_after=10.0)

    assert "with GPUs only a server continues without a worker, because NCCL cannot: take device=cpu, backend=sim or " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.long
def test_a_saved_run_that_loses_its_server_ends_and_goes_on_by_resume(tmp_path: Path) -> None:
    """One sentence, no process left, the checkpoints alone in the folder; and nothing is missing in what goes on."""
    folder = tmp_path / "run"
    running = command(*SAVED, "method=asgd", folder=folder)
    processes = started(running, folder)
    wait_for(lambda: list(folder.glob("checkpoints/*.safetensors")))

    os.kill(processes[-1], signal.SIGKILL)
    _, told = running.communicate(timeout=120)

    wait_for(lambda: not family(running.pid))
    assert running.returncode == 1
    assert told == "hetsim: error: the process of rank 4, the server, ended by itself (exit status -9): the run is lost\n"
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]
    version = int(newest(folder).name[:12])
    run = hetsim.run(f"resume={folder}", "backend=sim", f"budget.updates={version + 20}", folder=tmp_path / "rest")
    assert run.summary["num_updates"] == version + 20


@pytest.mark.slow
@pytest.mark.long
def test_a_signal_to_the_process_that_keeps_the_store_stops_a_saved_run_as_to_any_other(tmp_path: Path) -> None:
    """It is the first of them."""
    folder = tmp_path / "run"
    running = command(*SAVED, "method=asgd", folder=folder)
    processes = started(running, folder)
    wait_for(lambda: list(folder.glob("checkpoints/*.safetensors")))

    os.kill(processes[-NUM_RANKS - 1], signal.SIGTERM)
    _, told = running.communicate(timeout=120)

    assert running.returncode == STOPPED, told
    assert "stopped at version" in told
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]
