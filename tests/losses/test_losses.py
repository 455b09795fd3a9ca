"""Real processes that are killed, stopped or cut off: what each coordination goes on with, and that no sample is lost or counted twice."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty import Faults, Survived, check_samples, survive
from pyarrow import parquet
from running import LONG, family, hetsim, started, wait_for
from worlds import cluster, experiment, node, simulate

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment

pytestmark = pytest.mark.slow

THREE = cluster(
    *(node(seconds, 1e-3) for seconds in (1e-4, 5e-5, 7e-5)),
    network={"latency_seconds": 1e-4, "bytes_per_second": 1e9, "sharing": "none"},
)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "all_reduce": ("method=ssgd", {}),
    "overlapped_all_reduce": ("method=ssgd coordination=overlapped_all_reduce", {"coordination": {"bucket_bytes": 24}}),
    "delayed_all_reduce": ("method=pipe_sgd", {"coordination": {"warm_up": 4}}),
    "accumulating_all_reduce": ("method=acco", {}),
    "local_steps": ("method=local_sgd", {"coordination": {"period": 2}}),
    "delayed_server": ("method=od_sgd", {"coordination": {"warm_up": 4}}),
    "server": ("method=asgd", {}),
    "async_local_steps": ("method=fedbuff", {"coordination": {"period": 2}}),
    "table_server": ("method=ringleader", {}),
    "stopping_server": ("method=ringmaster_stops", {}),
    "trials": ("method=mindflayer", {}),
    "dynamic_local_steps": ("method=async_local_sgd", {"coordination": {"period": 2}}),
    "streaming_steps": ("method=streaming_diloco", {"coordination": {"period": 4}}),
    "decoupled_steps": ("method=decoupled_diloco", {"coordination": {"period": 2}, "admission": {"size": 2}}),
    "local_servers": ("method=halos", {"coordination": {"period": 2, "merge_every": 2, "num_regions": 2}}),
}
IN_SHORT = ("all_reduce", "server", "delayed_server")
ONE_OF_EACH = [which if which in (*IN_SHORT, "local_servers") else pytest.param(which, marks=pytest.mark.long) for which in METHODS]
"""One of those in which a server goes on, or local ones do, all regroup without a server, and with one; the others in `make long`."""
SMALL = {"num_parameters": 8, "num_samples": 480}
TIMES = {"join": 0.2, "crash": 0.15, "repair": 0.6}


def small(which: str, *, on: dict[str, Any] = THREE, epochs: float = 4, budget: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """A quadratic on three nodes, of a method of this coordination."""
    method, more = METHODS[which]
    if which == "local_servers" and on is THREE:
        on = {**THREE, "nodes": [node(1e-4, 1e-2, count=3)]}
    budget = {"epochs": epochs} if budget is None else budget
    return experiment(
        *method.split(), "workload=quadratic", workload=SMALL, batch_size=24, cluster=on, dtype="float64", budget=budget, **{**more, **keys}
    )


def emulated(which: str) -> str:
    """How: around local servers gradients take 10 ms, as what is pushed while a merge is on its way makes no version.

    Workers that accumulate during an all-reduce make few versions, too, if it takes as long as many gradients.
    """
    return "pad" if which in ("local_servers", "accumulating_all_reduce") else "none"


@pytest.mark.parametrize("which", ONE_OF_EACH)
@pytest.mark.sampled(1)
def test_a_run_goes_on_when_a_worker_is_killed(which: str, tmp_path: Path) -> None:
    """Under every coordination, and well within the time after which a silent rank would be suspected."""
    described = small(which)

    run = survive(described, Faults().kill(rank=1, at_update=6), tmp_path, emulate=emulated(which), lost_after=60)

    assert run.lost == [1]
    assert run.summary["seconds"] < 50
    assert run.summary["emulation"]["losses"]["detection_seconds"] < 10
    check_samples(run, described)


NOTICED = {("all_reduce", "segfault"), ("server", "hold_gil"), *((which, "stop") for which in IN_SHORT)}
"""How a fault is noticed does not depend on the coordination, nor what follows on the fault: `make long` tries each with each."""


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("which", "fault"),
    [
        pytest.param(which, fault, marks=() if (which, fault) in NOTICED else pytest.mark.long)
        for which in (*IN_SHORT, "local_servers")
        for fault in ("stop", "hold_gil", "segfault")
    ],
)
@pytest.mark.sampled(2)
def test_a_run_goes_on_when_a_worker_hangs_or_breaks(which: str, fault: str, tmp_path: Path) -> None:
    """A process that says nothing any more is ended after `lost_after_seconds`, and is lost then."""
    described = small(which)
    faults = getattr(Faults(), fault)(rank=1, at_update=6)

    run = survive(
        described, faults, tmp_path, emulate=emulated(which), lost_after=60.0 if fault == "segfault" else 5.0
    )  # a process may get no processor for some seconds

    assert run.lost == [1]
    assert fault != "segfault" or run.summary["seconds"] < 50
    check_samples(run, described)


def test_a_run_goes_on_when_one_worker_after_another_is_killed(tmp_path: Path) -> None:
    """A group is formed twice."""
    described = small("all_reduce")
    faults = Faults().kill(rank=2, at_update=4).kill(rank=1, at_update=8)

    run = survive(described, faults, tmp_path, lost_after=60)

    assert run.lost == [fault.rank for fault in faults.of]
    assert run.summary["seconds"] < 50
    check_samples(run, described)


@pytest.mark.parametrize(
    ("which", "lost"),
    [
        ("all_reduce", []),
        ("delayed_server", []),
        ("server", [1]),
        pytest.param("local_servers", [1], marks=pytest.mark.long),
    ],
)
@pytest.mark.sampled(1)
def test_a_broken_connection_costs_a_new_group_or_a_worker(which: str, lost: list[int], tmp_path: Path) -> None:
    """Nobody is lost where all form a group; at a server that goes on, the worker ends, as it talks to the server alone."""
    described = small(which)
    drop = Faults().drop_link if which == "all_reduce" else Faults().drop_links  # workers do not use those between each other
    faults = drop(rank=1, at_update=6)

    run = survive(described, faults, tmp_path, emulate=emulated(which), lost_after=30)

    assert run.lost == lost
    assert bool(run.summary["emulation"]["losses"]["regroups"]) == (not lost)
    check_samples(run, described)


@pytest.mark.parametrize(
    "which", [which if which in ("server", "local_servers") else pytest.param(which, marks=pytest.mark.long) for which in METHODS]
)
@pytest.mark.sampled(1)
def test_faults_of_the_cluster_happen_to_real_processes(which: str, tmp_path: Path) -> None:
    """One node joins late; another crashes, and a new process of its rank comes back."""
    schedule = [{"nodes": [2], "join": TIMES["join"]}, {"nodes": [1], "crash": TIMES["crash"], "repair": TIMES["repair"]}]
    on = {**THREE, "nodes": [node(seconds, 1e-2) for seconds in (1e-4, 5e-5, 7e-5)], "faults": {"schedule": schedule}}
    described = small(which, on=on, epochs=16)

    run = survive(described, Faults(), tmp_path, emulate="pad", lost_after=30, num_processes=4)

    assert run.lost == [1]
    assert run.joined in ([2, 1], [1, 2])
    down = [worker["down_seconds"] for worker in run.summary["per_worker"]]
    assert down[0] == 0
    assert down[1] >= TIMES["repair"] - TIMES["crash"] - 0.05
    assert down[2] >= TIMES["join"]
    assert all(worker["iterations"] > 0 for worker in run.summary["per_worker"])
    check_samples(run, described)


@pytest.mark.realtime
@pytest.mark.long
@pytest.mark.realtime
@pytest.mark.parametrize("which", ["all_reduce", "overlapped_all_reduce", "delayed_all_reduce"])
@pytest.mark.sampled(1)
def test_a_held_all_reduce_does_not_end_if_a_member_dies_before_its_end(which: str, tmp_path: Path) -> None:
    """It takes 2 s among three, and one dies after 1 s. The step is repeated by two at once, as in the simulation."""
    slow = {**THREE, "nodes": [node(1e-4, 0.1, count=3)], "network": {**THREE["network"], "latency_seconds": 0.5}}
    crash = {"schedule": [{"nodes": [2], "crash": 1.0}]}
    described = small(which, on={**slow, "faults": crash}, budget={"updates": 3})

    run = survive(described, Faults(), tmp_path, emulate="pad", lost_after=30)

    losses = run.summary["emulation"]["losses"]
    measured = {key: losses[key] for key in ("detection_seconds", "regroup_seconds")}
    predicted = simulate(replace(described, cluster=parse_cluster({**slow, "faults": {**crash, **measured}})))
    assert run.lost == [2]
    assert all(c.rank != 2 for _, group, _ in run.applied for c in group)
    assert run.summary["seconds"] == pytest.approx(predicted.seconds[-1], abs=0.25)


@pytest.mark.parametrize("lost_after", [10.0, 2.0])
@pytest.mark.parametrize("which", ["all_reduce", "server"])
def test_a_process_that_is_stopped_goes_on_or_is_replaced(which: str, lost_after: float, tmp_path: Path) -> None:
    """For 3 s: too short a time to be lost in the one case, too long in the other."""
    faults = {"schedule": [{"nodes": [1], "stop": 0.15, "continue": 3.15}], "lost_after_seconds": lost_after}
    on = {**THREE, "nodes": [node(seconds, 1e-2) for seconds in (1e-4, 5e-5, 7e-5)], "faults": faults}
    described = small(which, on=on, epochs=24)

    run = survive(described, Faults(), tmp_path, emulate="pad", lost_after=lost_after)

    if lost_after > 3:
        assert "losses" not in run.summary["emulation"]
    else:
        assert run.lost == run.joined == [1]
        assert run.summary["emulation"]["losses"]["detection_seconds"] >= lost_after - 0.2
    check_samples(run, described)


@pytest.mark.parametrize("lost", [1, 0], ids=["worker", "leader"])
@pytest.mark.sampled(1)
def test_every_step_of_a_synchronous_run_is_along_the_gradients_of_the_ranges_that_it_names(lost: int, tmp_path: Path) -> None:
    """Written out in plain torch: W ← W − η mean g_i, from the ranges of each commit alone, through a loss and a return."""
    on = {**THREE, "faults": {"schedule": [{"nodes": [lost], "crash": 0.1, "repair": 1.2}]}}
    described = small("all_reduce", on={**on, "nodes": [node(seconds, 1e-2) for seconds in (1e-4, 5e-5, 7e-5)]}, epochs=16)

    run = survive(described, Faults(), tmp_path, emulate="pad", lost_after=30, num_processes=4)

    task, optimizers = described.load()
    weights, memory = task.initial(), optimizers.main.initial()
    for _, group, committed in run.applied:
        present = [c for c in group if c.batch.samples]
        gradient = sum(task.gradient(weights, c.batch)[0] for c in present) / len(present)
        memory, weights = optimizers.main.step(memory, weights, gradient, 0)
        torch.testing.assert_close(weights, torch.tensor(committed, dtype=torch.float64), rtol=0, atol=1e-12)
    assert run.lost == run.joined == [lost]
    assert {len([c for c in group if c.batch.samples]) for _, group, _ in run.applied} == {2, 3}


WITHOUT_SERVER = ("all_reduce", "delayed_all_reduce", "accumulating_all_reduce", "local_steps", "streaming_steps")


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("which", "fault"),
    [
        ("all_reduce", "kill"),
        ("local_steps", "stop"),
        *(
            pytest.param(which, fault, marks=pytest.mark.long)
            for which in WITHOUT_SERVER
            for fault in ("kill", "stop", "drop_links")
            if (which, fault) not in (("all_reduce", "kill"), ("local_steps", "stop"))
        ),
    ],
)
@pytest.mark.sampled(1)
def test_a_run_without_a_server_goes_on_when_its_leader_is_lost(which: str, fault: str, tmp_path: Path) -> None:
    """Another rank goes on with the record: every version is in the trace once, and what rank 0 had recorded is in the summary."""
    described = small(which, trace="full", evaluate_every_epochs=1)
    faults = getattr(Faults(), fault)(rank=0, at_update=6)

    run = survive(described, faults, tmp_path, emulate=emulated(which), lost_after=5.0 if fault == "stop" else 60.0)

    assert run.lost == ([] if fault == "drop_links" else [0])
    assert fault == "stop" or run.summary["seconds"] < 50
    check_samples(run, described)
    check_record(run, tmp_path / "run")


def check_record(run: Survived, folder: Path) -> None:
    """The versions of the trace, and what the summary counts, are those that were applied, each once."""
    rows = parquet.read_table(folder / "trace.parquet").to_pylist()
    commits = [row for row in rows if row["kind"] == "commit"]
    applied = sum(row["samples"] for row in rows if row["kind"] == "apply")
    assert sorted(row["version"] for row in commits) == [version for version, _, _ in run.applied]
    assert run.summary["num_updates"] == len(commits)
    assert applied == sum(row["samples"] for row in commits) == run.summary["num_samples"]
    _, *points = (folder / "curve.csv").read_text().splitlines()
    evaluated = [int(point.split(",")[1]) for point in points]
    assert evaluated == sorted({*evaluated})
    assert evaluated[0] == 0
    assert evaluated[-1] == run.summary["num_updates"]
    assert len(evaluated) >= run.summary["num_samples"] // SMALL["num_samples"]


@pytest.mark.parametrize("which", ["server", *(pytest.param(which, marks=pytest.mark.long) for which in ("all_reduce", "local_servers"))])
def test_a_worker_that_is_lost_before_it_has_handed_in_what_it_did_is_named(which: str, tmp_path: Path) -> None:
    """The run has its last version, and its files."""
    described = small(which)

    run = survive(described, Faults().kill_in_results(rank=1), tmp_path, lost_after=30)

    assert run.lost == [1]
    assert [text for text in run.summary["warnings"] if text.startswith("rank 1 was lost at the end, ")]
    assert [worker["iterations"] > 0 for worker in run.summary["per_worker"]] == [True, False, True]
    check_samples(run, described)


@pytest.mark.long
def test_a_run_ends_with_one_sentence_when_all_workers_are_lost(tmp_path: Path) -> None:
    """A server waits for nobody."""
    faults = Faults().kill(rank=0, at_update=4).kill(rank=1, at_update=5).kill(rank=2, at_update=6)

    with pytest.raises(RunFailed, match=r"^every node of the cluster is gone at \S+ s and none comes back: the run is lost$"):
        survive(small("server", epochs=2000), faults, tmp_path)


def test_the_command_ends_with_one_sentence_when_a_local_server_is_killed(tmp_path: Path) -> None:
    """Its workers know no other. No process is left, and nothing of the run in its folder."""
    command = hetsim(*LONG, "method=halos", "coordination.num_regions=2", "cluster.network.sharing=none", folder=tmp_path / "run")
    running = started(command, tmp_path / "run")

    os.kill(running[-1], signal.SIGKILL)
    _, told = command.communicate(timeout=120)

    wait_for(lambda: not family(command.pid))
    assert command.returncode == 1
    assert told == "hetsim: error: the process of rank 6, a local server, ended by itself (exit status -9): the run is lost\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.realtime
def test_the_command_outlives_a_worker_and_not_its_server(tmp_path: Path) -> None:
    """A killed one, and a stopped one: one sentence in the stated time, no process left, nothing of the run in its folder."""
    command = hetsim(*LONG, "method=asgd", "backend.heartbeat_seconds=0.2", "backend.lost_after_seconds=1.5", folder=tmp_path / "run")
    running = started(command, tmp_path / "run")
    worker, server = running[-2], running[-1]

    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: worker not in family(command.pid))
    time.sleep(0.5)
    assert command.poll() is None
    os.kill(server, signal.SIGSTOP)
    _, told = command.communicate(timeout=120)

    wait_for(lambda: not family(command.pid))
    assert command.returncode == 1
    assert told.startswith("hetsim: error: the process of rank 4, the server, gave no sign of life for 1.5 s after its effect ")
    assert told.endswith("the run is lost\n")
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
