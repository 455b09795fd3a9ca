"""What the processes of a run import: nothing from the current folder, unless this process does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import submitit
from hetsim.sweeps.submitit_launcher import Local, Slurm
from submitit import SlurmExecutor

import hetsim
from hetsim.api.calls import one_at_a_time
from hetsim.sweeps import submitit_launcher

pytestmark = [pytest.mark.slow, pytest.mark.real_start, pytest.mark.usefixtures("elsewhere")]

QUICK = ("workload=quadratic", "budget.updates=2", "budget.epochs=null", "pictures=false")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder from which Python itself does not import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return tmp_path


def test_a_run_that_changes_the_folder_changes_no_place_of_imports(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook imports from the current folder, which a typed hydra.job.chdir would make a run's, perhaps a stranger's."""
    (elsewhere / "theirs").mkdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def asked() -> list[str]:
        os.chdir("theirs")
        return list(sys.path)

    assert one_at_a_time(asked)()[0] == str(elsewhere)
    assert sys.path[0] == ""


@pytest.mark.parametrize(("entry", "options"), [("/elsewhere", "-P -u"), ("", "-u")])
@pytest.mark.parametrize("launcher", [Local, Slurm])
def test_the_command_of_a_job_has_the_options_of_this_python(
    launcher: Any, entry: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM may give a job's steps no variables, so that they are on the command line."""
    monkeypatch.setattr(sys, "path", [entry, *sys.path])
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda _: 2))
    monkeypatch.setattr(submitit_launcher, "digests", lambda *_: {})
    commands: list[str] = []

    def map_array(executor: Any, *_: Any) -> list[Any]:
        commands.append(executor._executor._submitit_command_str)
        return []

    monkeypatch.setattr(submitit.AutoExecutor, "map_array", map_array)
    made = launcher(submitit_folder="jobs", timeout_min=1, max_num_timeout=0) if launcher is Slurm else launcher(submitit_folder="jobs")
    made.config = SimpleNamespace(hydra=SimpleNamespace(sweep=SimpleNamespace(dir="sweep")))
    made.hydra_context = SimpleNamespace(config_loader=None)

    made.launch([["seed=1"]], 0)

    assert commands[0].startswith(f"{shlex.quote(sys.executable)} {options} -m submitit.core._submit ")


OF_MY_OWN = """
import torch, hetsim

@hetsim.workload
def build():
    samples = [(torch.ones(1), torch.ones(1))] * 8
    return hetsim.Training(model=torch.nn.Linear(1, 1), train=samples, loss=torch.nn.functional.mse_loss)
"""
SHADOWS = ("json", "joblib", "multiprocessing", "pickle", "random", "numpy", "hetsim", "sitecustomize")


@pytest.mark.parametrize("backend", [pytest.param("sim", marks=pytest.mark.long), "dist"])
def test_loader_workers_import_what_their_rank_imports(
    backend: str, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's module from where Python found it, and nothing from the current folder."""
    mine = tmp_path_factory.mktemp("mine")
    (mine / "my_loaded.py").write_text(OF_MY_OWN)
    monkeypatch.syspath_prepend(mine)
    for name in SHADOWS:
        (elsewhere / f"{name}.py").write_text("open('mark', 'w').close()\n")
    words = ("workload=own", "workload.module=my_loaded:build", "workload.loader_workers=1", "batch_size=8", f"backend={backend}")
    words += ("method=ssgd", "cluster.nodes=[{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0}]")

    ended = hetsim.run(*words, *QUICK[1:], folder="one", trust=["my_loaded"])

    assert ended.summary["num_updates"] == 2
    assert not (elsewhere / "mark").exists()


@pytest.mark.parametrize(
    "typed", [("backend=dist",), ("-m", "seed=1,2", "hydra/launcher=joblib"), ("-m", "seed=1,2", "hydra/launcher=submitit_local")], ids=str
)
def test_a_commands_processes_import_nothing_from_the_current_folder(typed: tuple[str, ...], elsewhere: Path) -> None:
    """A study of a stranger's is run within its folder."""
    for name in SHADOWS:
        (elsewhere / f"{name}.py").write_text(f"open({str(elsewhere / 'mark')!r}, 'w')\n")
    command = [Path(sys.executable).with_name("hetsim"), *typed, *QUICK, "hydra.run.dir=run", "hydra.sweep.dir=sweep"]

    ended = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert not (elsewhere / "mark").exists()


def test_python_writes_through_no_link_either() -> None:
    """As the command does not."""
    Path("mine").mkdir()
    Path("results").symlink_to("mine")

    for words, folder in ((QUICK, "results"), ((*QUICK, "hydra.run.dir=results"), None)):
        with pytest.raises(ValueError, match="results is a link, and would be written through"):
            hetsim.run(*words, folder=folder)
    assert not list(Path("mine").iterdir())
