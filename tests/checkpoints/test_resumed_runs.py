"""A run that goes on from its files is the run that was never stopped."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from methods import METHODS
from pyarrow import parquet
from saved import CONFIG, applied, loaded, run
from test_every_method import short
from worlds import NO_NETWORK, UNEVEN, cluster, experiment, node, tiles

from hetsim.checkpoints import saver
from hetsim.checkpoints.file import FORMAT
from hetsim.checkpoints.folder import newest
from hetsim.checkpoints.resume import APPLIED, PROGRESS
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution
from hetsim.errors import RunStopped
from hetsim.runtime.checkpointing import Due
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.preparation import OF_POLICIES, change_num_workers
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.metrics import Applied
from hetsim.trust.shipped import configs

SAVED: dict[str, Any] = {"checkpoint": {"every_updates": 4}, "trace": "full"}
HALF, WHOLE = {"updates": 7}, {"updates": 15}


def made(name: str, budget: dict[str, Any], *choices: str, **keys: Any) -> Experiment:
    """A method that is saved."""
    return short(name, "workload=quadratic", *choices, budget=budget, **{**SAVED, **METHODS[name].keys, **keys})


def is_synchronous(name: str) -> bool:
    """Whether all ranks wait for one another at each version, without a server."""
    coordination = made(name, HALF).coordination
    return isinstance(coordination, SynchronousAllReduce | LocalSteps) and not isinstance(coordination, DelayedAllReduce)


CHOICES = re.compile(r"coordination: (all_reduce|overlapped_all_reduce|local_steps|streaming_steps)$", re.MULTILINE)
SYNCHRONOUS = [name for name in METHODS if CHOICES.search((configs() / "method" / f"{name}.yaml").read_text(encoding="utf-8"))]
"""By their files: every test process would take seconds to compose all methods before its first test."""
OTHERS = [name for name in METHODS if name not in SYNCHRONOUS]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(8)
def test_the_methods_without_a_server_are_found(name: str) -> None:
    """By what they are made of."""
    assert is_synchronous(name) == (name in SYNCHRONOUS)


def curve(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's learning curve."""
    return list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of a run's trace in an order of their own."""
    return sorted(tuple(row.values()) for row in parquet.read_table(folder / "trace.parquet").to_pylist())


def compared(summary: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a summary that a wall clock has no part in."""
    weights = summary["weight_shares"]
    return {**summary, "wall_seconds": 0, "weight_shares": [round(share, 12) for share in weights]}


def stop_at(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, ask a run to stop when it is at this version."""

    class Asked(Due):
        def __call__(self, at: int) -> bool:
            if at == version:
                self.stop.ask()
            return super().__call__(at)

    monkeypatch.setattr(saver, "Due", Asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.sampled(7)
def test_a_synchronous_run_goes_on_bit_equal(name: str, tmp_path: Path) -> None:
    """Weights, learning curve, summary and trace, to the last bit, with noise, momentum and shares that move."""
    whole = run(made(name, WHOLE), tmp_path / "whole")
    run(made(name, HALF), tmp_path / "half")

    rest = run(made(name, WHOLE), tmp_path / "rest", resume=tmp_path / "half")

    weights = [loaded(made(name, WHOLE), tmp_path / part).state.weights for part in ("whole", "rest")]
    assert torch.equal(*weights)
    assert curve(tmp_path / "rest") == curve(tmp_path / "whole")
    assert rows(tmp_path / "rest") == rows(tmp_path / "whole")
    assert compared(rest) == compared(whole)


@pytest.mark.parametrize("name", ["ssgd", "asgd"])
def test_a_run_that_is_asked_to_stop_at_its_last_version_has_ended(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version before, it stops, and can go on."""

    stop_at(6, monkeypatch)
    with pytest.raises(RunStopped, match="stopped at version 6"):
        run(made(name, HALF), tmp_path / "stopped")
    stop_at(7, monkeypatch)

    assert run(made(name, HALF), tmp_path / "ended")["num_updates"] == 7


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sampled(7)
def test_another_run_loses_and_repeats_no_sample(name: str, tmp_path: Path) -> None:
    """What was under way is computed again; versions, samples and the clock go on."""
    half, whole = made(name, HALF), made(name, {"epochs": 20})
    run(half, tmp_path)
    checkpoint = loaded(whole, tmp_path)

    before, after = applied(half), applied(whole, checkpoint)

    dropped = after.states[-1].num_samples_discarded
    batches = before.batches + after.batches
    assert checkpoint.state.version == 7 < after.states[-1].version
    assert dropped or tiles(batches, 2000)
    assert sum(batch.samples for batch in batches) + dropped == 2000
    assert len({position for batch in batches for position in range(batch.start, batch.stop)}) + dropped == 2000


@pytest.mark.parametrize("choices", [("compression=two_bit",), ("compression=two_bit", "local_optimizer=none")], ids=str)
def test_a_compressed_push_goes_on_bit_equal(choices: tuple[str, ...], tmp_path: Path) -> None:
    """Residuals are in the file."""

    def described(updates: int) -> Experiment:
        keys = {**SAVED, "workload": {"num_parameters": 6, "num_samples": 90}, "batch_size": 31, "compression": {"threshold": 0.05}}
        chosen = ("method=ssgd", "coordination=parameter_server", "workload=quadratic", *choices)
        return experiment(*chosen, cluster=UNEVEN, budget={"updates": updates}, **keys)

    run(described(12), tmp_path / "whole")
    run(described(5), tmp_path / "half")
    run(described(12), tmp_path / "rest", resume=tmp_path / "half")

    one, other = (loaded(described(12), tmp_path / part) for part in ("whole", "rest"))
    assert torch.equal(one.state.weights, other.state.weights)
    losses = [[(row["version"], row["train_loss"]) for row in curve(tmp_path / part)] for part in ("whole", "rest")]
    assert losses[0] == losses[1]
    assert all(torch.equal(a.own["compression"].after.residual, b.own["compression"].after.residual)
               for a, b in zip(one.ranks[:3], other.ranks[:3], strict=True))  # fmt: skip


def test_a_phantom_goes_on_in_lockstep(tmp_path: Path) -> None:
    """The same summary and trace, where nothing is computed and PyTorch may not even be there."""
    keys: dict[str, Any] = {**SAVED, "batch_size": 64, "cluster": UNEVEN}
    described = {n: experiment("method=ssgd", "allocation=dbs", "workload=phantom", budget={"updates": n}, **keys) for n in (9, 20)}
    whole = run(described[20], tmp_path / "whole")
    run(described[9], tmp_path / "half")

    rest = run(described[20], tmp_path / "rest", resume=tmp_path / "half")

    assert compared(rest) == compared(whole)
    assert rows(tmp_path / "rest") == rows(tmp_path / "whole")


def test_the_newest_are_kept_and_a_run_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    """Two checkpoints and the rows that they name: no others, and nothing unfinished; also after going on three times."""
    whole = run(made("ssgd", {"updates": 20}), tmp_path / "whole")
    for updates in (6, 11, 20):
        last = run(made("ssgd", {"updates": updates}), tmp_path / "own", resume=tmp_path / "own" if updates > 6 else None)

    names = sorted(path.name for path in (tmp_path / "own" / "checkpoints").iterdir())
    assert [name for name in names if name.endswith(".safetensors")] == ["000000000016.safetensors", "000000000020.safetensors"]
    assert not [name for name in names if "unfinished" in name]
    assert compared(last) == compared(whole)
    assert rows(tmp_path / "own") == rows(tmp_path / "whole")


FAULTS = {"schedule": [{"nodes": [1], "crash": 0.02, "repair": 0.05}, {"nodes": [2], "crash": 0.021, "repair": 0.08}]}


@pytest.mark.parametrize("name", ["ssgd", "asgd", "local_sgd"])
def test_faults_do_not_replay(name: str, tmp_path: Path) -> None:
    """A node that was absent at the checkpoint is absent after it, comes back when it would have, and crashes once."""
    keys = {"cluster": {**UNEVEN, "faults": FAULTS}, "checkpoint": {"every_updates": 1000}}
    whole = run(made(name, {"epochs": 20}, **keys), tmp_path / "whole")
    for updates in (2, 8, 16):
        folder = tmp_path / f"{updates}"
        run(made(name, {"updates": updates}, **keys), folder)

        rest = run(made(name, {"epochs": 20}, **keys), tmp_path / f"{updates} on", resume=folder)

        down = [[worker["down_seconds"] for worker in its["per_worker"]] for its in (rest, whole)]
        assert down[0] == pytest.approx(down[1])
        assert rest["num_samples"] == whole["num_samples"] == 2000
        times = [row[:3] for row in rows(tmp_path / f"{updates} on") if row[3] == "down"]
        assert times == [row[:3] for row in rows(tmp_path / "whole") if row[3] == "down"]


def test_a_slow_spell_does_not_replay(tmp_path: Path) -> None:
    """The run's clock goes on, by which a node is slow: the parts take the time that the whole run takes."""
    (tmp_path / "load.csv").write_text("seconds,factor\n0,1\n0.03,5\n0.06,1\n")
    slow = node(4e-4, 1e-3, slowdown=str(tmp_path / "load.csv"))
    keys = {"cluster": cluster(slow, node(1e-4, 1e-3), node(2e-4), network=NO_NETWORK)}
    whole = run(made("ssgd", WHOLE, **keys), tmp_path / "whole")
    run(made("ssgd", HALF, **keys), tmp_path / "half")

    assert run(made("ssgd", WHOLE, **keys), tmp_path / "rest", resume=tmp_path / "half")["seconds"] == whole["seconds"]


@pytest.mark.parametrize("name", ["ssgd", "asgd", "dbs_sgd", "pipe_sgd", "od_sgd", "ringleader", "diloco"])
@pytest.mark.parametrize("num_workers", [2, 5])
@pytest.mark.sampled(3)
def test_more_or_fewer_workers_hand_out_each_position_once(name: str, num_workers: int, tmp_path: Path) -> None:
    """The sequence of samples is global: on another number of nodes the rest of it is handed out, and no position twice."""
    half = made(name, HALF)
    run(half, tmp_path)
    others = cluster(node(3e-4, 1e-3, count=num_workers), network=NO_NETWORK)
    whole = made(name, {"epochs": 20}, cluster=others)
    checkpoint = loaded(whole, tmp_path)

    before, after = applied(half), applied(whole, checkpoint)

    assert len(checkpoint.ranks) == half.num_ranks
    summary = run(whole, tmp_path / "rest", resume=tmp_path)
    assert (summary["num_samples"], len(summary["per_worker"])) == (2000, num_workers)
    assert tiles(before.batches + after.batches, 2000)


def test_a_checkpoint_that_stays_keeps_its_part_of_the_trace(tmp_path: Path) -> None:
    """Also where the run goes on in the same folder with another number of workers, whose trace begins anew."""

    def described(count: int, updates: int) -> Experiment:
        keys = {**SAVED, "workload": {"num_parameters": 6, "num_samples": 90}, "batch_size": 30}
        return experiment(
            "method=ssgd", "workload=quadratic", cluster=cluster(node(1e-3, count=count)), budget={"updates": updates}, **keys
        )

    run(described(3, 12), tmp_path / "run")
    run(described(2, 14), tmp_path / "run", resume=tmp_path / "run")
    newest(tmp_path / "run").unlink()
    run(described(3, 16), tmp_path / "run", resume=tmp_path / "run")

    commits = [row["version"] for row in parquet.read_table(tmp_path / "run" / "trace.parquet").to_pylist() if row["kind"] == "commit"]
    assert sorted(set(commits)) == list(range(1, 17))


@pytest.mark.parametrize(("keep", "kept"), [(9, [2, 4, 6, 8, 10]), (3, [6, 8, 10])])
def test_a_resumed_run_keeps_the_checkpoints_before(keep: int, kept: list[int], tmp_path: Path) -> None:
    """Untouched, also those older than the one from which it has resumed; of all, `checkpoint.keep`."""
    saved = {"checkpoint": {"every_updates": 2, "keep": keep}}
    run(made("ssgd", {"updates": 6}, **saved), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoints/*.safetensors")}

    run(made("ssgd", {"updates": 10}, **saved), tmp_path, resume=tmp_path)

    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("checkpoints/*.safetensors")}
    assert sorted(int(path.name[:12]) for path in after) == kept
    assert all(after[path] == time for path, time in before.items() if path in after)


def test_the_checkpoints_of_a_run_that_has_not_ended_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run that begins in its folder, or goes on there from elsewhere; those of one that has ended are, as all of its files."""
    run(made("ssgd", HALF), tmp_path / "ended")
    run(made("ssgd", HALF), tmp_path / "ended")
    stop_at(5, monkeypatch)
    with pytest.raises(RunStopped):
        run(made("ssgd", HALF), tmp_path / "stopped")
    before = newest(tmp_path / "stopped").read_bytes()

    for resume in (None, tmp_path / "ended"):
        with pytest.raises(ValueError, match=r"has the checkpoints of a run that has not ended, .* resume that run with 'hetsim resume="):
            run(made("ssgd", WHOLE), tmp_path / "stopped", resume=resume)

    assert newest(tmp_path / "stopped").read_bytes() == before
    shutil.copytree(tmp_path / "ended", tmp_path / "again")
    stop_at(11, monkeypatch)
    with pytest.raises(RunStopped):
        run(made("ssgd", WHOLE), tmp_path / "again", resume=tmp_path / "again", config=f"{CONFIG}resume: again\n")
    with pytest.raises(ValueError, match=r"has the checkpoints of a run that has not ended"):  # beside the results of the one before
        run(made("ssgd", HALF), tmp_path / "again")

    assert run(made("ssgd", HALF), tmp_path / "stopped", resume=tmp_path / "stopped")["num_updates"] == 7


def test_among_other_workers_all_but_the_policies_continues() -> None:
    """A new field of a State or a Checkpoint continues, too, if nobody says that it begins anew."""
    before, now = made("ssgd", HALF, cluster=UNEVEN), made("ssgd", HALF, cluster=cluster(*[node(1.0)] * 2))
    own = {"next_sample": 0, "outstanding": ()}
    marks = {its.name: object() for its in fields(State) if its.name not in own}
    progress = {"applied": object()}
    saved = Checkpoint(state=State(**own, **cast(Any, marks)), progress=progress)

    task, optimizers = now.load()
    resumed = change_num_workers(saved, now, now.plan(task), optimizers, before.num_workers)

    kept = {name for name, mark in marks.items() if getattr(resumed.state, name) is mark}
    assert kept == marks.keys() - set(OF_POLICIES)
    assert resumed == replace(saved, state=resumed.state)
    assert resumed.progress is progress


def test_the_fields_of_format_2() -> None:
    """A file with other fields is refused. Raise FORMAT with them if a released version wrote this one, so that the refusal says why."""
    names = {kind.__name__: " ".join(its.name for its in fields(kind) if its.init) for kind in (Checkpoint, State, RankState)}

    assert (FORMAT, names) == (
        2,
        {
            "Checkpoint": "state ranks seconds progress",
            "State": (
                "version weights next_sample num_samples num_samples_discarded allocation compensation admission measured outstanding"
            ),
            "RankState": "rank version epoch optimizer local_optimizer own num_gradients num_updates num_messages",
        },
    )
    assert " ".join(PROGRESS) == "applied curve divergence profile_seconds first_sample activity trace"


def test_what_is_counted_of_contributions_survives_a_checkpoint() -> None:
    """Every counter of `Applied`, as a resumed run would otherwise report less than the whole run."""
    counted = Applied(2, lambda group: ((one.rank, 0.5) for one in group))
    for rank, staleness in ((0, 2), (1, 3)):
        counted.commit(1.0 + rank, [Contribution(rank, Batch(0, 1), 0, 1.0, 1.0, staleness, num_gradients=3)])
    resumed = Applied(2, counted.weights)
    resumed.restore(counted.saved())

    assert vars(resumed) == vars(counted)
    assert counted.saved().keys() == APPLIED.keys()
    assert all(value not in (0, [0, 0], {}) for name, value in vars(counted).items() if name not in ("_rounds", "_alike"))
