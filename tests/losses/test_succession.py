"""The leader of a run without a server is lost: another rank goes on with the record, whoever it is, and saves the run from then on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faulty import Faults, applied_until, check_samples, survive
from pyarrow import parquet
from running import wait_for
from test_keeper import RUN, Kept
from test_losses import SMALL, THREE, WITHOUT_SERVER, check_record, small
from worlds import cluster, node, simulate, tiles

from hetsim.checkpoints.folder import newest
from hetsim.distributed import Processes
from hetsim.distributed.membership.keeper import OVER, STOP
from hetsim.distributed.membership.keeper_client import Ledger
from hetsim.distributed.rank.checkpointing import StopWatch
from hetsim.distributed.rank.regrouping import LAG, RecordedCommit, Succession, VersionRows
from hetsim.errors import RunStopped
from hetsim.files.folder import FILES
from hetsim.runtime.checkpointing import Checkpointing, StopRequest
from hetsim.runtime.rank import Checkpoint


def on_schedule(schedule: list[dict[str, Any]]) -> dict[str, Any]:
    """Three nodes that take 10 ms for a batch, with these faults."""
    return {**THREE, "nodes": [node(seconds, 1e-2) for seconds in (1e-4, 5e-5, 7e-5)], "faults": {"schedule": schedule}}


@pytest.mark.slow
def test_one_leader_after_another_is_lost(tmp_path: Path) -> None:
    """The last one has the whole record."""
    described = small("all_reduce", trace="full", evaluate_every_epochs=1)

    run = survive(described, Faults().kill(rank=0, at_update=4).kill(rank=1, at_update=11), tmp_path, lost_after=30)

    assert run.lost == [0, 1]
    check_samples(run, described)
    check_record(run, tmp_path / "run")


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize(
    "which", [which if which == "all_reduce" else pytest.param(which, marks=pytest.mark.long) for which in WITHOUT_SERVER]
)
def test_a_leader_that_comes_back_leads_again_when_all_others_are_lost(which: str, tmp_path: Path) -> None:
    """It has got the weights and what is counted; the rows of versions before are lost with the others."""
    on = on_schedule([{"nodes": [0], "crash": 0.2, "repair": 0.4}])
    described = small(which, on=on, budget={"updates": 200}, trace="full", evaluate_every_epochs=1)
    faults = Faults().kill(rank=1, at_update=40, after_return_of=0).kill(rank=2, at_update=50, after_return_of=0)

    run = survive(described, faults, tmp_path, emulate="pad", lost_after=30)

    summary = run.summary
    assert (run.lost, run.joined) == ([0, 1, 2], [0])
    losses = summary["emulation"]["losses"]
    began, ends = [loss["seconds"] for loss in losses["lost"]], [losses["joined"][0]["seconds"], *[summary["seconds"]] * 2]
    down = [worker["down_seconds"] for worker in summary["per_worker"]]
    assert down == pytest.approx([end - at for at, end in zip(began, ends, strict=True)], abs=1e-3)
    assert began[0] >= 0.2
    assert ends[0] >= 0.4
    assert summary["num_updates"] == len(run.applied)
    assert summary["num_samples"] == sum(batch.samples for batch in run.batches)
    assert tiles(run.batches, summary["num_samples"])
    assert {path.name for path in (tmp_path / "run").iterdir()} <= set(FILES)
    commits = [row for row in parquet.read_table(tmp_path / "run" / "trace.parquet").to_pylist() if row["kind"] == "commit"]
    assert [row["version"] for row in commits] == list(range(commits[0]["version"], summary["num_updates"] + 1))
    *_, second = sorted([json.loads(line)[1] for line in path.read_text().splitlines()] for path in tmp_path.glob("computed-0-*"))
    returned = min(version for version, group, _ in run.applied for c in group if c.rank == 0 and c.batch.start in second)
    assert returned - 2 * LAG <= commits[0]["version"] <= returned


@pytest.mark.slow
def test_a_run_that_begins_without_any_rank_begins_with_the_first_one(tmp_path: Path) -> None:
    """Which leads it to the end, though rank 0 joins later."""
    schedule = [{"nodes": [rank], "join": seconds} for rank, seconds in ((0, 0.5), (1, 0.4), (2, 0.2))]
    described = small("all_reduce", on=on_schedule(schedule), epochs=8, trace="full", evaluate_every_epochs=1)

    run = survive(described, Faults(), tmp_path, emulate="pad", lost_after=30, num_processes=3)

    assert run.joined == [2, 1, 0]
    check_samples(run, described)
    check_record(run, tmp_path / "run")


SAVED = {"every": 0.4, "seconds": 0.1, "restart_seconds": 0.3}


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "saved"),
    [
        ("all_reduce", SAVED),
        *(pytest.param(which, SAVED, marks=pytest.mark.long) for which in WITHOUT_SERVER if which != "all_reduce"),
        pytest.param("all_reduce", None, marks=pytest.mark.long),
    ],
)
def test_a_run_that_has_lost_all_ranks_restarts_as_its_simulation_does(which: str, saved: dict[str, Any] | None, tmp_path: Path) -> None:
    """Two workers that die once each and return: from the same version, after the same time, with the same counts."""
    schedule = [{"nodes": [0], "crash": 1.2, "repair": 3.0}, {"nodes": [1], "crash": 1.33, "repair": 2.5}]
    network = {"latency_seconds": 5e-3, "bytes_per_second": 1e9, "sharing": "none"}  # which real messages keep up with
    on = {
        **cluster(node(1e-3, 2e-2, seconds_per_update=1e-3, count=2), network=network),
        "faults": {"schedule": schedule, "checkpoint": saved},
    }
    described = small(which, on=on, budget={"updates": 60}, trace="full", evaluate_every_epochs=1)

    summary = Processes(emulate="pad", lost_after_seconds=30).run(described, tmp_path, "")
    simulated = simulate(described)

    assert summary is not None
    outcome, emulation = simulated.simulation.outcome, summary["emulation"]
    late = 0.3 + sum(kind.get("late_seconds", 0.0) for kind in emulation.values() if isinstance(kind, dict))
    assert [sorted(each["rank"] for each in emulation["losses"][kind]) for kind in ("lost", "joined")] == [[0, 1], [0, 1]]
    assert summary["num_restarts"] == outcome.num_restarts == 1
    assert summary["num_updates"] == 60
    assert summary["num_samples"] == pytest.approx(outcome.last.num_samples, rel=0.02)
    assert summary["seconds"] == pytest.approx(simulated.seconds[-1], abs=late)
    down = [worker["down_seconds"] for worker in summary["per_worker"]]
    assert down == pytest.approx([worker.down_seconds for worker in outcome.activity], abs=0.2)
    rows = parquet.read_table(tmp_path / "trace.parquet").to_pylist()
    commits = sorted((row["end"], row["version"]) for row in rows if row["kind"] == "commit")
    versions = zip(simulated.seconds, [state.version for state in simulated.states], strict=True)
    (end, version), of_simulation = (min(commit for commit in made if commit[0] > 2.5) for made in (commits, versions))
    assert end == pytest.approx(of_simulation[0], abs=late)
    assert bool(saved) < version <= of_simulation[1] + 1
    assert [version for _, version in commits] == list(range(1, 61))


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, 1000])
@pytest.mark.sampled(1)
@pytest.mark.long
def test_a_saved_run_is_saved_by_its_next_leader_and_goes_on(every: int, tmp_path: Path) -> None:
    """Also one that had not been saved before; nothing is missing in the trace, or there twice."""
    described = replace(small("all_reduce", epochs=40, trace="full"), checkpoint=Checkpointing(every_updates=every))
    first, second = tmp_path / "first", tmp_path / "second"

    with pytest.raises(RunStopped, match="stopped at version"):
        survive(described, Faults().kill(rank=0, at_update=11).terminate(rank=2, at_update=20), first, lost_after=30)
    last = newest(first / "run")
    version = int(last.name[:12])
    rest = survive(replace(described, resume=last), Faults().kill(rank=0, at_update=version + 5), second, lost_after=30)

    assert rest.lost == [0]
    positions = [position for batch in applied_until(first, version) + rest.batches for position in range(batch.start, batch.stop)]
    assert len(positions) == len(set(positions)) == rest.summary["num_samples"] == 40 * SMALL["num_samples"]
    rows = parquet.read_table(second / "run" / "trace.parquet").to_pylist()
    assert sorted(row["version"] for row in rows if row["kind"] == "commit") == list(range(1, rest.summary["num_updates"] + 1))
    assert rest.summary["num_updates"] == version + len(rest.applied)
    assert {path.name for path in first.glob("run/*")} == {"checkpoints"}
    assert not list(tmp_path.glob("*/run/**/.*"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill_in_commit", "kill_at_end"])
def test_a_run_has_as_many_versions_as_it_was_to_have_though_its_leader_is_lost_at_the_end(fault: str, tmp_path: Path) -> None:
    """Before it has told the others that the run ends, and after that."""
    described = replace(small("all_reduce", budget={"updates": 20}, trace="full"), checkpoint=Checkpointing(every_updates=6))
    faults = Faults().kill_in_commit(rank=0, at_update=20) if fault == "kill_in_commit" else Faults().kill_at_end(rank=0)

    run = survive(described, faults, tmp_path, lost_after=30)

    assert run.happened == [f"{fault} 0"]
    assert run.lost == [0]
    assert run.summary["num_updates"] == 20
    assert [worker["iterations"] for worker in run.summary["per_worker"][1:]] == [20, 20]
    check_record(run, tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_its_leader_has_stopped_before_it_was_lost_goes_on_later(tmp_path: Path) -> None:
    """The next leader says so, as the script that started the run asks for its status."""
    described = replace(small("all_reduce", epochs=1e6), checkpoint=Checkpointing(every_updates=50))

    with pytest.raises(RunStopped, match="stopped at version"):
        survive(described, Faults().terminate(rank=1, at_update=10).kill_at_end(rank=0), tmp_path, lost_after=30)

    assert (tmp_path / "happened").read_text().split("\n")[:2] == ["terminate 1", "kill_at_end 0"]
    assert {path.name for path in tmp_path.glob("run/*")} == {"checkpoints"}


def test_a_stop_that_the_leader_is_asked_for_is_known_to_the_next_one() -> None:
    """By the store, though the leader is lost before its next version."""
    store, first, next_one = Kept().store, StopRequest(), StopRequest()
    first.ask()

    with StopWatch(store, first, leads=True):
        wait_for(lambda: store.check([STOP]))
    with StopWatch(store, next_one, leads=True):
        wait_for(lambda: next_one.asked)


class Copied:
    """A rank's copy of a record that begins at version 0, and what it has recorded: versions, and their times."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, float]] = []
        self.last = SimpleNamespace(version=0)
        run = SimpleNamespace(
            experiment=SimpleNamespace(num_workers=2, coordination=SimpleNamespace(num_ahead=1)), rank=1, trace=None,
            parts=SimpleNamespace(leader=0), saving=SimpleNamespace(saver=SimpleNamespace(newest=None)),
            record=SimpleNamespace(leads=False, history=self), prepared=SimpleNamespace(checkpoint=Checkpoint(state=cast(Any, None))),
        )  # fmt: skip
        self.its = Succession(cast(Any, run), VersionRows("none"), ledger=Ledger([0, 1]), take_over=lambda *_: None)

    def commit(self, seconds: float, _: int, state: Any, __: Any) -> bool:
        self.last = state
        self.recorded.append((state.version, seconds))
        return True

    def __enter__(self) -> Copied:
        return self

    def __exit__(self, *_: object) -> None:
        self.its.rows.part.__exit__()

    def commits(self, version: int, seconds: float) -> None:
        self.its.commits(RecordedCommit(seconds, cast(Any, SimpleNamespace(version=version)), ()))


def test_a_copy_holds_no_version_that_others_go_back_behind() -> None:
    """Such a version is made again, by others and later; the first one of it never was."""
    with Copied() as rank:
        for version in (1, 2, 3, 4):
            rank.commits(version, 1.0 * version)
        assert rank.recorded == [(1, 1.0), (2, 2.0)]
        assert rank.its.last_versions == (2.0, 4.0, -1.0)

        rank.its.go_on_from(2, -1.0)
        assert rank.its.last_versions == (2.0, 2.0, -1.0)
        for version in (3, 4, 5):
            rank.commits(version, 10.0 * version)

        assert rank.recorded == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_who_lacks_the_last_versions_is_told_them_and_who_lacks_more_gets_a_copy() -> None:
    """A leader has the last three at hand."""
    with Copied() as leader:
        for version in (1, 2, 3, 4, 5):
            leader.commits(version, 1.0 * version)

        kind, versions = leader.its.record_for((2.0, 3.0))

        assert (kind, [one.state.version for one in versions]) == ("commits", [4, 5])
        with pytest.raises(AttributeError, match="progress"):  # which a copy begins with
            leader.its.record_for((0.0, 1.0))


def test_the_senior_member_leads_and_whoever_joins_comes_last() -> None:
    """As the store has it: a rank that comes back does not lead before those that stayed."""
    run = Kept()
    run.keeper.succession = True

    run.keeper.hear("lost", 0, 0, 1.0)
    assert run.view().senior == 1
    run.keeper.hear("started", 0, 1, 1.0)
    run.store.set("join/0/1", "")
    run.look(1.0, beating=(1,))

    assert run.view().members == {1: 0, 0: 1}
    assert run.view().senior == 1


def test_the_loss_of_the_last_member_and_of_who_has_the_record_of_a_run_that_is_over_are_told() -> None:
    """The first only if nobody is to return; the second though the end had not been seen."""
    alone, over = Kept(), Kept()
    alone.keeper.run = over.keeper.run = replace(RUN, succession=True)

    alone.keeper.hear("lost", 1, 0, 1.0)
    alone.keeper.hear("started", 1, 1)
    alone.keeper.hear("lost", 0, 0, 2.0)
    assert (alone.told, alone.view().waits, alone.view().ended) == ([], True, False)
    alone.keeper.hear("lost", 1, 1, 3.0)
    over.store.set(OVER, "")
    over.keeper.hear("lost", 0, 0, 3.0, "was killed")

    assert alone.told == [("failed", 2, "every node of the cluster is gone at 3 s and none comes back: the run is lost")]
    assert over.told == [("failed", 1, "the process of rank 0, which keeps the record of the run, was killed: the run is lost")]
