"""Sweeps: finished runs are skipped, a failed run is reported and stops no other, and the same command goes on with the rest."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pages
import pytest
from examples import examples
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from worlds import composed, exit_status

from hetsim.checkpoints import saver
from hetsim.cli.main import main
from hetsim.cli.search import main as search_main
from hetsim.cli.table import main as table_main
from hetsim.config.compositions import compositions
from hetsim.config.errors import sentence
from hetsim.config.resolved import resolved
from hetsim.files.identity import folder_name, identity_of, typed_overrides
from hetsim.runtime.checkpointing import STOPPED, Due
from hetsim.sweeps import sweep as sweeps

pytestmark = pytest.mark.slow

TINY = ("workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `hetsim` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["hetsim", *arguments])
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
    assert set(first) == {"ssgd-mixed4-s0-sim"}
    assert re.fullmatch(r"hetsim: warning: ssgd-mixed4-s1-sim-\w+: seed does nothing, because .*\n", again.err)
    assert again.out.endswith(f"2 runs (1 were there already) in {os.path.relpath(tmp_path)}\n")
    assert set(finished(tmp_path)) == {"ssgd-mixed4-s0-sim", "ssgd-mixed4-s1-sim"}
    assert finished(tmp_path)["ssgd-mixed4-s0-sim"] == first["ssgd-mixed4-s0-sim"]


def test_a_submitit_sweep_reports_what_its_jobs_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its jobs write to logs of their own, so only the closing lines are printed."""
    status = command(monkeypatch, "-m", *TINY, "batch_size=3,64", "hydra/launcher=submitit_local", f"hydra.sweep.dir={tmp_path}")

    told = capfd.readouterr()
    assert status == 1
    assert told.out == f"1 of 2 runs in {os.path.relpath(tmp_path)}\n"
    assert told.err.startswith("hetsim: 1 of 2 runs failed:\n  dbs_sgd-mixed4-s0-sim-")
    assert told.err.count("batch_size=3 is less than one sample") == 1
    assert set(finished(tmp_path)) == {"dbs_sgd-mixed4-s0-sim"}


SLURM = {
    "sbatch": (
        "for task in 0 1; do SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$task SLURM_JOB_ID=$((7 + task)) bash ${@: -1}; done"
        " > jobs.log 2>&1 < /dev/null &\necho Submitted batch job 7"
    ),
    "srun": (
        "while [[ $1 == --* ]]; do [[ $1 == --output || $1 == --error ]] && shift; shift; done\n"
        "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 exec $@"
    ),
    "sacct": "printf 'JobID|State|NodeList\\n7_0|COMPLETED|here\\n7_1|COMPLETED|here\\n'",
}
"""What stands in for a cluster's commands: the tasks of an array, one after the other."""


def test_a_sweep_is_an_array_of_slurms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With what was typed for it in its script."""
    monkeypatch.chdir(tmp_path)
    for name, script in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    words = ("seed=0,1", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=cpu", "hydra.launcher.array_parallelism=2")

    assert command(monkeypatch, "-m", *TINY, *words, "hydra.sweep.dir=sweep") == 0, (tmp_path / "jobs.log").read_text()
    assert capfd.readouterr().out == "2 runs in sweep\n"
    assert set(finished(tmp_path / "sweep")) == {"dbs_sgd-mixed4-s0-sim", "dbs_sgd-mixed4-s1-sim"}
    scripts = [path.read_text().splitlines() for path in tmp_path.glob("sweep/.submitit/**/*.sh")]
    assert any({"#SBATCH --array=0-1%2", "#SBATCH --partition=cpu"} <= {*lines} for lines in scripts)


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


@pytest.mark.parametrize("seeds", ["6", "6,7", "-1"])
def test_a_folder_of_ones_own_keeps_the_run_that_it_holds(
    seeds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbered folders hold other runs as soon as another sweep is typed: they are refused, and leave no error.txt there."""
    typed = ("-m", *TINY, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=${hydra:job.num}")

    assert command(monkeypatch, *typed, "seed=5") == 0
    assert command(monkeypatch, *typed, f"seed={seeds}") == 1
    told = capsys.readouterr()
    assert command(monkeypatch, *typed, "seed=5") == 0

    assert ("holds another finished run: choose another folder by" in told.err) == (seeds != "-1")
    assert "0: is there already" in capsys.readouterr().out
    assert not (tmp_path / "0" / "error.txt").exists()
    assert json.loads((tmp_path / "0" / "summary.json").read_text())["seed"] == 5


def test_two_runs_of_a_sweep_never_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "-m", *TINY, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=same", "seed=5,6") == 1

    assert "1 of 2 runs in" in capsys.readouterr().out
    assert json.loads((tmp_path / "same" / "summary.json").read_text())["seed"] == 5


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand."""
    page = pages.text("sweeps.md")
    commands = [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)

    for program, *typed in commands:
        other = {"hetsim-table": table_main, "hetsim-search": search_main}.get(program)
        assert (command(monkeypatch, *typed) if other is None else exit_status(monkeypatch, program, other, *typed)) == 0
    assert [program for program, *_ in commands] == ["hetsim", "hetsim-table", "hetsim", "hetsim-search", "hetsim-search", "hetsim-table"]
    assert (tmp_path / "runs" / "sweep" / "table.png").is_file()


def test_a_joblib_sweep_runs_in_the_current_folder_of_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sweep, too, which is started in another folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        words = ("-m", *TINY, "method=ssgd", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep")

        assert exit_status(monkeypatch, "hetsim", main, *words) == 0
        assert len(list((tmp_path / name).glob("sweep/*/summary.json"))) == 2


DIES = """
import os, torch, hetsim

@hetsim.workload
def build():
    if os.path.exists("dies"):
        os.unlink("dies")
        os.kill(os.getpid(), 9)
    samples = [(torch.ones(1), torch.ones(1))] * 64
    return hetsim.Training(model=torch.nn.Linear(1, 1), train=samples, loss=torch.nn.functional.mse_loss)
"""


def test_a_run_whose_process_is_killed_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process takes the place of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_dying.py").write_text(DIES)
    (tmp_path / "dies").touch()
    words = ("workload=own", "workload.module=my_dying:build", "trust=[my_dying]", "batch_size=8", "budget.epochs=1", "method=ssgd")
    typed = ("-m", *words, "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "hydra.sweep.dir=sweep")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1
    assert "a process of the sweep was killed, perhaps for lack of memory" in capsys.readouterr().err
    assert len(list(tmp_path.glob("sweep/*/summary.json"))) == 1


@pytest.mark.parametrize(
    ("typed", "told"), [("n_jobs=0", "n_jobs must be at least 1, or -1 for all cores"), ("timeout=3", "timeout does nothing")]
)
def test_a_setting_of_joblibs_without_effect_is_refused(
    typed: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-m", *TINY, "seed=1,2", "hydra/launcher=joblib", f"hydra.launcher.{typed}", f"hydra.sweep.dir={tmp_path}")

    assert exit_status(monkeypatch, "hetsim", main, *words) == 1
    assert f"hydra.launcher.{told}" in capsys.readouterr().err


@pytest.mark.parametrize(("choice", "extra"), [("hydra/launcher=joblib", "parallel"), ("hydra/launcher=submitit_slurm", "slurm")])
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(choice: str, extra: str) -> None:
    """Hydra's own sentence lists what there is instead."""
    group, _, name = choice.partition("=")
    error = ValueError(
        f"In 'config': Could not find '{group}/{name}'\n\nAvailable options in '{group}':\n\tbasic\nConfig search path:\n\tx"
    )

    assert sentence(error) == f"{choice} is not installed: install hetsim[{extra}], as in pip install 'hetsim[{extra}]'"


def test_a_sweep_composes_each_choice_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its check; its runs differ in values, which are put in. Hydra's own sweep would compose every run twice."""
    composed: list[str] = []
    load = ConfigLoaderImpl._load_configuration_impl

    def counted(loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], *more: Any, **options: Any) -> DictConfig:
        composed.append(" ".join(override for override in overrides if override.startswith(("method", "seed"))))
        return load(loader, config_name, overrides, *more, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
    compositions.cache_clear()  # of what single runs of this process have composed

    assert command(monkeypatch, "-m", *TINY, "method=ssgd,asgd", "seed=0,1", f"hydra.sweep.dir={tmp_path}") == 0
    assert composed == ["method=ssgd,asgd seed=0,1", "method=ssgd", "method=asgd"], composed


BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
LostJob = type("FailedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LostJob("Job 7 failed\nmore"), "a job was lost (Job 7 failed): see the logs in the sweep's .submitit; the same command with"),
        (KeyError("x"), "the sweep broke off (KeyError: 'x'): the same command with the same hydra.sweep.dir runs what is missing"),
        (
            OSError(28, "No space left on device", "/x"),
            "/x cannot be written (No space left on device): free some space, or set hydra.run.dir",
        ),
    ],
    ids=["lost", "unknown", "disk full"],
)
def test_a_sweep_that_breaks_off_is_one_sentence(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a launcher raises: the sentence says how to go on."""

    def launch(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setitem(sweeps.LAUNCHERS, BASIC, launch)

    assert command(monkeypatch, "-m", *TINY, f"hydra.sweep.dir={tmp_path}") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hetsim: error: {told}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_an_interrupted_sweep_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 130, as a shell expects after Ctrl-C."""

    def launch(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(sweeps.LAUNCHERS, BASIC, launch)

    assert command(monkeypatch, "-m", *TINY, f"hydra.sweep.dir={tmp_path}") == 130
    assert capsys.readouterr().err == f"hetsim: interrupted: add hydra.sweep.dir={os.path.relpath(tmp_path)} to resume\n"


LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.text("01[]", max_size=2)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2))


@examples(30)
@given(VALUES, VALUES, st.text(max_size=3))
def test_the_identity_of_a_run_changes_exactly_with_its_config(one: Any, other: Any, objective: str) -> None:
    """The order of keys, and keys that change nothing, do not count; any value does, at any depth, and so does its type."""
    first, second = ({"method": "ssgd", "cluster": {"nodes": [value]}} for value in (one, other))

    assert (identity_of(first) == identity_of(second)) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    assert identity_of(dict(reversed(first.items())) | {"objective": objective}) == identity_of(first)


@given(st.text(), st.text(), LEAVES)
def test_the_name_of_a_run_is_a_legal_file_name(method: str, cluster: str, seed: Any) -> None:
    """Whatever method and cluster are called."""
    entries = {"method": method, "cluster": {"name": cluster}, "seed": seed, "backend": {"_target_": f"hetsim.{cluster}.X"}}
    name = folder_name(entries, "0123456789ab")

    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-")
    assert len(name) <= 130
    assert name[0] not in "-."


@pytest.mark.parametrize(("target", "backend"), [("hetsim.distributed.Processes", "dist"), ("hetsim.sim.Simulator", "sim")])
def test_the_folder_of_a_run_names_its_backend(target: str, backend: str) -> None:
    """So both worlds can share a sweep."""
    entries = {"method": "ssgd", "cluster": {"name": "mixed4"}, "seed": 0, "backend": {"_target_": target}}

    assert folder_name(entries, "0123456789ab") == f"ssgd-mixed4-s0-{backend}-0123456789ab"


def test_the_identity_of_a_deep_config_takes_no_time() -> None:
    """Each value still counts."""
    first, second = ({"a": value} for value in (1, 2))
    for _ in range(45):
        first, second = {"a": first, "b": []}, {"b": [], "a": second}

    assert identity_of(first) != identity_of(second)
    assert identity_of(first) == identity_of(json.loads(json.dumps(first)))


KNOWN = {
    ("method=ssgd",): "99c3c6587594",
    ("method=optperf", "cluster=two_racks"): "2c8bf270dac0",
    ("method=od_sgd", "workload=mnist"): "1576a3be945d",
    ("method=pipe_sgd", "workload=phantom", "seed=3"): "ffafbc3d7b59",
    ("method=diloco", "workload=quadratic", "backend=dist", "device=cpu"): "ff17375fc2ec",
}


@pytest.mark.parametrize("choices", KNOWN, ids=" ".join)
def test_the_identity_of_a_run_stays(choices: tuple[str, ...]) -> None:
    """So a sweep that was begun continues where it stopped. Whoever adds a key or a default begins all sweeps anew."""
    assert identity_of(resolved(OmegaConf.to_container(composed(*choices), resolve=True))) == KNOWN[choices]


def test_a_saved_run_of_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the run that was never stopped; one whose words are others begins anew."""
    words = ("workload=quadratic", "workload.num_parameters=4", "method=ssgd", "budget.epochs=null", "pictures=false", "seed=0,1")
    typed = ("-m", *words, "checkpoint.every_updates=4", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    begun: list[int] = []

    class Asked(Due):
        def __call__(self, version: int) -> bool:
            begun.append(version)
            if version == 6 and asking:
                self.stop.ask()
            return super().__call__(version)

    monkeypatch.setattr(saver, "Due", Asked)
    asking = True
    assert command(monkeypatch, *typed, "budget.updates=9") == STOPPED
    asking, begun = False, []
    assert command(monkeypatch, *typed, "budget.updates=9") == 0

    assert (min(begun), begun.count(1), begun.count(7)) == (1, begun.count(9) // 2, begun.count(9))
    assert command(monkeypatch, "-m", *words, f"hydra.sweep.dir={tmp_path / 'whole'}", "budget.updates=9") == 0
    curves = [sorted(path.read_text() for path in (tmp_path / name).glob("*/curve.csv")) for name in ("sweep", "whole")]
    assert len(curves[0]) == 2
    assert curves[0] == curves[1]
