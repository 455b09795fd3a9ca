"""Sweeps: finished runs are skipped, a failed run is reported and stops no other, and one table shows the results."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import shlex
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from worlds import composed, exit_status

from hetsim.cli import job
from hetsim.cli.errors import sentence
from hetsim.cli.launcher import SweepRecord, one_of_each_choice
from hetsim.cli.main import main
from hetsim.cli.objective import OBJECTIVES, objective_value
from hetsim.cli.outcomes import Outcome
from hetsim.cli.table import main as table_main
from hetsim.results import table
from hetsim.results.finished_runs import finished_runs
from hetsim.results.identity import config_header, folder_name, identity_of, typed_overrides
from hetsim.results.table_files import markdown

pytestmark = pytest.mark.slow

TINY = ("workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `hetsim` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["hetsim", *arguments])
    job.failures.clear()
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def finished(folder: Path) -> dict[str, int]:
    """When each run's summary was written, in nanoseconds, by the run's name without its identity."""
    return {path.parent.name.rpartition("-")[0]: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}


def test_a_joblib_sweep_reports_failures_of_other_processes_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failed run is listed with its sentence, which is in its folder too; with more seeds, the same command runs what is missing."""
    typed = ("-m", *TINY, "method=ssgd", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"hydra.sweep.dir={tmp_path}")

    assert command(monkeypatch, *typed, "batch_size=3,64", "seed=0") == 1
    told = capfd.readouterr()
    first = finished(tmp_path)
    (error,) = tmp_path.glob("*/error.txt")
    assert command(monkeypatch, *typed, "batch_size=64", "seed=0,1") == 0
    again = capfd.readouterr()

    sentence = "batch_size=3 is less than one sample for each of 4 workers: raise it"
    assert told.err.endswith(f"hetsim: 1 of 2 runs failed:\n  {error.parent.name}: {sentence}\n")
    assert "Traceback" not in told.err
    assert error.read_text() == f"{sentence}\n"
    assert set(first) == {"ssgd-mixed4-s0"}
    assert again.err == ""
    assert again.out.endswith(f"2 runs (1 were there already) in {os.path.relpath(tmp_path)}\n")
    assert set(finished(tmp_path)) == {"ssgd-mixed4-s0", "ssgd-mixed4-s1"}
    assert finished(tmp_path)["ssgd-mixed4-s0"] == first["ssgd-mixed4-s0"]


def test_a_submitit_sweep_reports_what_its_jobs_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its jobs write to logs of their own, so only the closing lines are printed."""
    status = command(monkeypatch, "-m", *TINY, "batch_size=3,64", "hydra/launcher=submitit_local", f"hydra.sweep.dir={tmp_path}")

    told = capfd.readouterr()
    assert status == 1
    assert told.out == f"1 of 2 runs in {os.path.relpath(tmp_path)}\n"
    assert told.err.startswith("hetsim: 1 of 2 runs failed:\n  dbs_sgd-mixed4-s0-")
    assert told.err.count("batch_size=3 is less than one sample") == 1
    assert set(finished(tmp_path)) == {"dbs_sgd-mixed4-s0"}


def test_one_job_after_the_other_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config that cannot be resolved fails alone; a mended one takes its error.txt away; the same run twice is run once."""
    typed = ("-m", *TINY, f"hydra.sweep.dir={tmp_path}")

    assert command(monkeypatch, *typed, "allocation=fixed,even", "seed=0,0") == 1
    told = capsys.readouterr()
    assert "2 of 4 runs (1 were there already) in" in told.out
    assert told.err.count("allocation.parts is missing: give it a value") == 4
    (error,) = tmp_path.glob("*/error.txt")

    assert not (error.parent / "summary.json").exists()
    assert typed_overrides(next(tmp_path.glob("*/summary.json")).parent)["allocation"] == "even"


def test_a_folder_of_ones_own_is_skipped_only_for_the_run_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbered folders hold other runs as soon as another sweep is typed; error.txt is removed when a run succeeds there."""
    typed = ("-m", *TINY, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=${hydra:job.num}")

    assert command(monkeypatch, *typed, "seed=5") == 0
    assert command(monkeypatch, *typed, "seed=-1") == 1
    assert json.loads((tmp_path / "0" / "summary.json").read_text())["seed"] == 5
    assert (tmp_path / "0" / "error.txt").exists()
    assert command(monkeypatch, *typed, "seed=6,5") == 0
    assert "already" not in capsys.readouterr().out

    assert json.loads((tmp_path / "0" / "summary.json").read_text())["seed"] == 6
    assert not (tmp_path / "0" / "error.txt").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_search_finds_the_better_value_and_outlives_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The objective is a number of the summary; a run that fails counts as worst, whichever way the search goes."""
    typed = ("-m", *TINY, "batch_size=3,64,128", "hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", f"hydra.sweep.dir={tmp_path}")

    assert command(monkeypatch, *typed, "hydra.sweeper.direction=maximize") == 1
    assert capsys.readouterr().err == "hetsim: error: " + (
        "objective is missing: name the number that the search is after, such as objective=seconds_to_0.9\n"
    )
    assert command(monkeypatch, *typed, "objective=samples_per_second", "hydra.sweeper.direction=maximize") == 1
    best = OmegaConf.load(tmp_path / "optimization_results.yaml")
    told = capsys.readouterr()

    assert best.best_params.batch_size == 128
    assert "best samples_per_second of these runs: " in told.out
    assert "hetsim: 1 of 3 runs failed:" in told.err


@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand."""
    page = (Path(__file__).parents[1] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)

    for program, *typed in commands:
        assert (tabulate if program == "hetsim-table" else command)(monkeypatch, *typed) == 0
    assert [program for program, *_ in commands] == ["hetsim", "hetsim-table", "hetsim", "hetsim"]
    assert (tmp_path / "runs" / "sweep" / "table.png").is_file()


def test_an_objective_that_no_run_has_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names those there are, and nothing is run."""
    assert command(monkeypatch, "-m", *TINY, "objective=final.accuracy", "seed=0,1", f"hydra.sweep.dir={tmp_path / 'sweep'}") == 1

    told = capsys.readouterr().err
    assert told.startswith("hetsim: error: objective=final.accuracy is no number of a run: take one of seconds, ")
    assert told.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_every_objective_is_a_number_of_a_run(tmp_path: Path) -> None:
    """Of the summary, or the time to an accuracy; a run without it counts as worst."""
    summary = {key: 1.0 for key in OBJECTIVES if "." not in key} | {"final": {"train_loss": 2.0, "test_accuracy": None}}
    (tmp_path / "curve.csv").write_text(
        "seconds,version,samples,train_loss,test_accuracy\n0.0,0,0,2.0,0.1\n3.5,1,4,1.0,0.8\n4.0,2,8,1.0,\n"
    )

    def found(key: str) -> float:
        return objective_value(key, summary, tmp_path, worst=math.inf)

    assert found("idle_share") == 1.0
    assert found("final.train_loss") == 2.0
    assert found("final.test_accuracy") == math.inf
    assert found("seconds_to_0.8") == 3.5
    assert found("seconds_to_0.81") == math.inf


@pytest.mark.parametrize(("choice", "extra"), [("hydra/launcher=joblib", "parallel"), ("hydra/sweeper=optuna", "search")])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(choice: str, extra: str) -> None:
    """Hydra's own sentence lists what there is instead."""
    group, _, name = choice.partition("=")
    error = ValueError(
        f"In 'config': Could not find '{group}/{name}'\n\nAvailable options in '{group}':\n\tbasic\nConfig search path:\n\tx"
    )

    assert sentence(error) == f"{choice} is not installed: install hetsim[{extra}], as in pip install 'hetsim[{extra}]'"


def test_a_thousand_seeds_are_checked_by_composing_one() -> None:
    """What is typed for a key changes no composition, what is chosen of a group does; each choice is composed."""
    batch = [[f"method={method}", f"seed={seed}"] for method in ("ssgd", "asgd") for seed in range(1000)]
    asked: list[str] = []

    def is_group(name: str) -> bool:
        asked.append(name)
        return name in ("method", "hydra/launcher")

    assert one_of_each_choice(batch, is_group=is_group) == [["method=ssgd", "seed=0"], ["method=asgd", "seed=0"]]
    assert asked == ["method", "seed"]
    assert one_of_each_choice([["+method@x=a"], ["+method@x=b"], ["~seed"], ["~seed"]], is_group=is_group) == [
        ["+method@x=a"],
        ["+method@x=b"],
        ["~seed"],
    ]


def test_a_sweep_composes_each_choice_once_for_its_check_and_each_run_once_to_launch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra's own check would compose every run twice."""
    composed: list[str] = []
    load = ConfigLoaderImpl.load_sweep_config

    def counted(loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        composed.append(" ".join(override for override in sweep_overrides if override.startswith(("method", "seed"))))
        return load(loader, master_config, sweep_overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)

    assert command(monkeypatch, "-m", *TINY, "method=ssgd,asgd", "seed=0,1", f"hydra.sweep.dir={tmp_path}") == 0
    runs = ["method=ssgd seed=0", "method=ssgd seed=1", "method=asgd seed=0", "method=asgd seed=1"]
    assert composed == [runs[0], runs[2], *runs]


def basic_launcher() -> type:
    """The class that Hydra instantiates: its plugin scan imports a module of its own."""
    return Plugins.instance().class_name_to_class["hydra._internal.core_plugins.basic_launcher.BasicLauncher"]


class TerminatedWorker(BrokenProcessPool):
    """What joblib raises is a subclass too."""


LostJob = type("FailedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TerminatedWorker("a\nlong\nstory"), "a worker process was killed, perhaps for lack of memory: the same command with"),
        (LostJob("Job 7 failed\nmore"), "a job was lost (Job 7 failed): see the logs in the sweep's .submitit; the same command with"),
        (KeyError("x"), "the sweep broke off (KeyError: 'x'): the same command with the same hydra.sweep.dir goes on with what is missing"),
        (
            OSError(28, "No space left on device", "/x"),
            "/x cannot be written (No space left on device): free some space, or set hydra.run.dir",
        ),
    ],
    ids=["killed", "lost", "unknown", "disk full"],
)
def test_a_sweep_that_breaks_off_is_one_sentence(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a launcher raises: the sentence says how to go on."""

    def launch(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(basic_launcher(), "launch", launch)

    assert command(monkeypatch, "-m", *TINY, f"hydra.sweep.dir={tmp_path}") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hetsim: error: {told}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert SweepRecord.current is None


def test_an_interrupted_sweep_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 130, as a shell expects after Ctrl-C."""

    def launch(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(basic_launcher(), "launch", launch)

    assert command(monkeypatch, "-m", *TINY, f"hydra.sweep.dir={tmp_path}") == 130
    assert capsys.readouterr().err == f"hetsim: interrupted: add hydra.sweep.dir={os.path.relpath(tmp_path)} to go on\n"


def test_an_outcome_that_cannot_be_written_fails_the_sweep(tmp_path: Path) -> None:
    """A run in another process must not look as if it had succeeded; its outcome comes back instead as the error."""
    hydra = {"sweep": {"dir": str(tmp_path)}, "sweeper": {}, "launcher": {}, "overrides": {"task": []}, "job": {"num": 3}}
    config = OmegaConf.create({"objective": None, "hydra": hydra})
    record = SweepRecord()
    try:
        record.on_multirun_start(config)
        copy = pickle.loads(pickle.dumps(record))
        (written, lost) = (JobReturn(status=JobStatus.COMPLETED, _return_value=Outcome("a", ("seed=0",), math.inf)) for _ in range(2))
        copy.on_job_end(config, written)
        (file,) = tmp_path.glob(".outcomes-*/*.json")
        assert Outcome.from_json(file.read_text()) == written.return_value
        file.unlink()
        file.parent.rmdir()
        file.parent.touch()
        copy.on_job_end(config, lost)
    finally:
        record.close()

    assert written.status == JobStatus.COMPLETED
    assert lost.status == JobStatus.FAILED
    assert isinstance(lost._return_value, OSError)
    assert record.outcomes == []


def test_a_sweep_without_its_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody would count the runs that failed."""
    assert command(monkeypatch, "-m", *TINY, "~hydra.callbacks.sweep_record", f"hydra.sweep.dir={tmp_path}") == 1
    assert "hydra.callbacks lacks hetsim.cli.launcher.SweepRecord" in capsys.readouterr().err


LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.text("01[]", max_size=2)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2))


@given(VALUES, VALUES, st.text(max_size=3))
@settings(max_examples=60)
def test_the_identity_of_a_run_changes_exactly_with_its_config(one: Any, other: Any, objective: str) -> None:
    """The order of keys, and keys that change nothing, do not count; any value does, at any depth, and so does its type."""
    first, second = ({"method": "ssgd", "cluster": {"nodes": [value]}} for value in (one, other))

    assert (identity_of(first) == identity_of(second)) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    assert identity_of(dict(reversed(first.items())) | {"objective": objective}) == identity_of(first)


@given(st.text(), st.text(), LEAVES)
def test_the_name_of_a_run_is_a_legal_file_name(method: str, cluster: str, seed: Any) -> None:
    """Whatever method and cluster are called."""
    name = folder_name({"method": method, "cluster": {"name": cluster}, "seed": seed}, "0123456789ab")

    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-")
    assert len(name) <= 120
    assert name[0] not in "-."


def made(
    folder: Path, seed: int, *, accuracies: tuple[float, ...] = (), seconds: float = 1.0, typed: tuple[str, ...] = (), **keys: Any
) -> None:
    """A finished run by hand: one second between the points of its curve."""
    folder.mkdir(parents=True)
    numbers = dict.fromkeys(("updates_per_second", "samples_per_second", "staleness_mean", "staleness_max", "idle_share"), 1.0)
    final = {"train_loss": None, "test_accuracy": accuracies[-1] if accuracies else None}
    summary = {"method": "ssgd", "backend": "sim", "seed": seed, "seconds": seconds, **numbers, "final": final}
    points = [f"{second}.0,{second},0,,{accuracy}" for second, accuracy in enumerate(accuracies)]
    (folder / "curve.csv").write_text("\n".join(["seconds,version,samples,train_loss,test_accuracy", *points]) + "\n")
    config = {"method": "ssgd", "seed": seed, **keys}
    (folder / "config.yaml").write_text(config_header("-", typed) + OmegaConf.to_yaml(OmegaConf.create(config)))
    (folder / "summary.json").write_text(json.dumps(summary))


def tabulate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim-table`."""
    return exit_status(monkeypatch, "hetsim-table", table_main, *arguments)


def test_the_table_has_means_and_intervals_over_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Student's t; one seed has no interval, and what not every seed reaches has no mean; the same in every file."""
    from pyarrow import csv, parquet

    for seed, seconds in enumerate((1.0, 2.0, 3.0)):
        made(tmp_path / "a" / str(seed), seed, seconds=seconds, accuracies=(0.1, 0.9), batch_size=8, typed=(f"seed={seed}", "batch_size=8"))
    made(tmp_path / "b", 0, seconds=0.5, accuracies=(0.1, 0.5, 0.95), batch_size=16, typed=("batch_size=16",))
    made(tmp_path / "c", 0, accuracies=(0.1, 0.5), batch_size=32)
    made(tmp_path / "d", 1, accuracies=(0.1, 0.9), batch_size=32)

    assert tabulate(monkeypatch, tmp_path, "--to", tmp_path / "told") == 0

    told = capsys.readouterr()
    half = 4.302652729911275 / math.sqrt(3)  # t of 97.5 % at two degrees of freedom, a standard deviation of 1
    columns = parquet.read_table(tmp_path / "told" / "table.parquet").to_pydict()
    assert told.err == ""
    assert [line.split(" | ")[:4] for line in told.out.splitlines()[2:]] == [
        ["| `8`", "3", "1 ± 0", "2 ± 2.5"],
        ["| `16`", "1", "2", "0.5"],
        ["| `32`", "2", "reached by 1 of 2", "1 ± 0"],
    ]
    assert columns["label"] == ["batch_size=8", "batch_size=16", "batch_size=32"]
    assert columns["seconds_mean"] == [2.0, 0.5, 1.0]
    assert columns["seconds_interval"] == [pytest.approx(half, rel=1e-9), None, 0.0]
    assert columns["seconds_to_accuracy_mean"] == [1.0, 2.0, None]
    assert columns["seconds_to_accuracy_runs"] == [3, 1, 1]
    assert csv.read_csv(tmp_path / "told" / "table.csv").column_names == list(columns)
    assert (tmp_path / "told" / "table.md").read_text() == told.out
    assert {path.name for path in (tmp_path / "told").iterdir()} == {"table.parquet", "table.csv", "table.md", "table.png"}
    assert tabulate(monkeypatch, tmp_path, "--metric", "seconds", "--accuracy", "0.95") == 0
    assert [line.split(" | ")[:3] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["| `16`", "1", "2"],
        ["| `32`", "2", "never reached"],
        ["| `8`", "3", "never reached"],
    ]


def test_a_row_is_labelled_by_what_was_typed(tmp_path: Path) -> None:
    """Of the many keys that a method sets the method is enough; what was not typed is named only where nothing else tells rows apart."""
    made(tmp_path / "0", 0, method="ssgd", momentum=0.9, allocation={"_target_": "a.Even"}, typed=("method=ssgd",))
    made(tmp_path / "1", 0, method="asgd", momentum=0.0, allocation={"_target_": "a.Even"}, typed=("method=asgd", "pictures=false"))
    made(tmp_path / "2", 0, method="asgd", momentum=0.0, allocation={"_target_": "a.Dbs"}, typed=("method=asgd", "allocation=dbs"))
    made(tmp_path / "3", 0, method="asgd", momentum=0.1, allocation={"_target_": "a.Dbs"}, typed=("method=asgd", "allocation=dbs"))

    rows, remarks = table.rows(finished_runs(tmp_path), accuracy=0.9)

    assert not remarks
    assert [row.label for row in rows] == [
        "ssgd, allocation=Even, momentum=0.9",
        "asgd, allocation=Even, momentum=0.0",
        "asgd, allocation=dbs, momentum=0.0",
        "asgd, allocation=dbs, momentum=0.1",
    ]


def test_the_same_simulated_run_counts_once(tmp_path: Path) -> None:
    """A copy would make an interval too narrow; it is reported."""
    made(tmp_path / "0", 0, pictures=True)
    made(tmp_path / "1", 0, pictures=False)

    (row,), (remark,) = table.rows(finished_runs(tmp_path), accuracy=0.9)

    assert row.num_runs == 1
    assert "are the same run: one of them is counted" in remark


def test_a_table_of_nothing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No folder, no run, no number, a run that is none."""

    def told(*arguments: object) -> str:
        assert tabulate(monkeypatch, *arguments) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line.removeprefix("hetsim-table: error: ")

    assert told(tmp_path / "x").startswith(f"{tmp_path / 'x'} is no folder: give the folder of a sweep")
    assert told(tmp_path).startswith(f"{tmp_path} holds no finished run: give")
    made(tmp_path / "0", 0)
    assert told(tmp_path, "--metric", "final_accuracy").startswith("no run has a number for final_accuracy: take --metric seconds or ")
    assert told(tmp_path, "--metric", "second").endswith("; did you mean 'seconds'?\n")
    assert told(tmp_path, "--accuracy", "90").startswith("--accuracy must be above 0 and at most 1, not 90")
    (tmp_path / "0" / "summary.json").write_text("{}")
    assert "lacks updates/s" in told(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"0"}


def test_long_values_that_would_look_the_same_are_shown_in_full(tmp_path: Path) -> None:
    """Two clusters that differ in the middle of their nodes; a short one beside them, and a long one that is like no other."""
    begin, end = "count: 2, seconds_per_sample: ", ", overhead_seconds: 0.001, noise: null, rack: null"
    nodes = [f"[{begin}{seconds}{end}]" for seconds in ("0.001", "0.002")] + ["[one]", f"[some other beginning, {begin}1{end}]"]
    for place, value in enumerate(nodes):
        made(tmp_path / str(place), 0, nodes=value, typed=(f"nodes={value}",))

    told = markdown(table.rows(finished_runs(tmp_path), accuracy=0.9)[0], accuracy=0.9)

    assert [f"`{value}`" in told for value in nodes] == [True, True, True, False]


def test_a_cell_is_nothing_but_its_text(tmp_path: Path) -> None:
    """A value may be a stranger's: it ends no cell, no code and no line, and is no tag of HTML."""
    for place, value in enumerate(("a | b", "`c` <img src=x>", "d\x1b[2J")):
        made(tmp_path / str(place), 0, nodes=value, typed=(f"nodes={value}",))

    told = markdown(table.rows(finished_runs(tmp_path), accuracy=0.9)[0], accuracy=0.9)

    assert all(line.replace("\\|", "").count("|") == told.split("\n")[0].count("|") for line in told.strip().split("\n"))
    assert {"`a \\| b`", "`'c' ‹img src=x›`", "`d\\x1b[2J`"} <= {cell.strip() for cell in re.split(r"(?<!\\)\|", told)}


def test_a_table_is_neither_a_picture_nor_a_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Markdown and in a spreadsheet; numbers stay as they are."""
    key = "![x](http://evil.example/t.png)"
    for place, value in enumerate(("=cmd|calc", "-0.5", "+1e-3")):
        made(tmp_path / str(place), 0, **{key: value}, typed=(f"{key}={value}",))

    assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path) == 0

    assert capsys.readouterr().out.startswith(f"| `{key}` |")
    written = (tmp_path / "table.csv").read_text()
    assert all(text in written for text in ('"\'=cmd|calc"', '"-0.5"', '"+1e-3"'))
    assert '"=cmd' not in written


def test_folders_that_are_nested_too_deeply_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An archive can hold thousands of levels."""
    made(tmp_path / "sweep" / "0", 0)
    monkeypatch.chdir(tmp_path / "sweep")
    for _ in range(1500):
        os.mkdir("a")
        os.chdir("a")
    os.chdir(tmp_path)

    try:
        assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path / "sweep") in (0, 1)
        told = capsys.readouterr().err
        assert told in ("", f"hetsim-table: error: {tmp_path}/sweep has folders that are nested hundreds deep: move them elsewhere\n")
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "sweep"], check=True)


def test_the_identity_of_a_deep_config_takes_no_time() -> None:
    """Each value still counts."""
    first, second = ({"a": value} for value in (1, 2))
    for _ in range(45):
        first, second = {"a": first, "b": []}, {"b": [], "a": second}

    assert identity_of(first) != identity_of(second)
    assert identity_of(first) == identity_of(json.loads(json.dumps(first)))


KNOWN = {  # recorded with hetsim 0.1
    ("method=ssgd",): "7aafde09bf09",
    ("method=optperf", "cluster=two_racks"): "ffc6819f461c",
    ("method=od_sgd", "workload=mnist"): "b37326428828",
    ("method=pipe_sgd", "workload=phantom", "seed=3"): "8a3804a4fcae",
    ("method=diloco", "workload=quadratic", "backend=dist"): "f6a0932e52d6",
}


@pytest.mark.parametrize("choices", KNOWN, ids=" ".join)
def test_a_run_is_the_one_that_it_was_before_classes_moved(choices: tuple[str, ...]) -> None:
    """So a sweep that was begun with an earlier version goes on where it stopped."""
    entries = OmegaConf.to_container(composed(*choices), resolve=True)
    assert isinstance(entries, dict)

    assert identity_of({str(key): value for key, value in entries.items()}) == KNOWN[choices]
