"""What the processes of a run import: nothing from the current folder, however Python was started."""

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
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
from omegaconf import OmegaConf
from submitit import AutoExecutor, SlurmExecutor

import hetsim
from hetsim.api.calls import one_at_a_time
from hetsim.sweeps import submitit_launcher
from hetsim.sweeps.record import SweepRecord
from hetsim.sweeps.submitit_launcher import Local, Slurm
from hetsim.trust import libraries

pytestmark = [pytest.mark.slow, pytest.mark.real_start, pytest.mark.usefixtures("elsewhere")]

QUICK = ("workload=quadratic", "budget.updates=2", "budget.epochs=null", "pictures=false")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder from which Python itself does not import; what is set of the environment is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    return tmp_path


def test_whoever_imports_hetsim_imports_pytorch_from_another_folder() -> None:
    """A process of a run too, which knows no command."""
    script = "import sys, hetsim; print(type(sys.meta_path[0]).__name__, 'torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "ImportedElsewhere False\n"


@pytest.mark.parametrize("called", ["run", "sweep", "search"])
def test_processes_that_python_starts_for_the_api_stay_out(called: str) -> None:
    """As those of the command: it is what they inherit."""
    {
        "run": lambda: hetsim.run(*QUICK, folder="one"),
        "sweep": lambda: hetsim.sweep({"workload": "quadratic", "budget.epochs": 1, "pictures": False}, folder="one"),
        "search": lambda: hetsim.search(*QUICK, "batch_size=32,64", objective="seconds", trials=1, folder="one"),
    }[called]()

    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_a_program_that_imports_from_the_current_folder_goes_on_doing_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook, or `python -m hetsim`."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    libraries.keep_processes_out()

    assert os.environ["PYTHONSAFEPATH"] == ""


def test_a_run_that_changes_the_folder_changes_no_place_of_imports(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook imports from the current folder, which a typed hydra.job.chdir would make a run's, perhaps a stranger's."""
    (elsewhere / "theirs").mkdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def asked() -> list[str]:
        os.chdir("theirs")
        return list(sys.path)

    assert one_at_a_time(asked)()[0] == str(elsewhere)
    assert sys.path[0] == ""


def test_python_that_ignores_its_variables_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes would, too; with -P they do not need one."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(ignore_environment=1, safe_path=False, verbose=0))
    with pytest.raises(ValueError, match=r"started with -E.*add -P"):
        libraries.keep_processes_out()
    monkeypatch.setattr(sys, "flags", SimpleNamespace(ignore_environment=1, safe_path=True, verbose=0))
    libraries.keep_processes_out()


@pytest.mark.parametrize("own", [None, ["module load python"]])
def test_the_script_of_a_slurm_job_says_it_by_itself(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may give its jobs none of the command's variables."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    launcher = {"submitit_folder": "x", "setup": own}
    hydra = {"sweep": {"dir": "sweep"}, "sweeper": {}, "launcher": launcher, "overrides": {"task": []}, "job": {"num": 0}}
    hydra |= {"verbose": False, "job_logging": None, "output_subdir": None, "callbacks": {}}
    hydra["job"] |= {"chdir": None, "env_set": {}}
    config = OmegaConf.create({"hydra": hydra})
    record = SweepRecord()
    try:
        record.on_multirun_start(config)
        assert config.hydra.launcher.setup == ["export PYTHONSAFEPATH=1", *(own or [])]
    finally:
        record.close()


@pytest.mark.parametrize(("safe", "options"), [("1", "-P -u"), ("", "-u")])
@pytest.mark.parametrize("launcher", [Local, Slurm])
def test_the_command_of_a_job_says_it_by_itself(launcher: Any, safe: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM gives a job's steps no variables of its script where SBATCH_EXPORT is NONE: an option of Python is none."""
    monkeypatch.setenv("PYTHONSAFEPATH", safe)
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda _: 2))
    monkeypatch.setattr(submitit_launcher, "digests", lambda *_: {})

    def launch(its: Any, *_: Any) -> list[str]:
        return [submitit.AutoExecutor("jobs", cluster=its._EXECUTOR)._executor._submitit_command_str]

    monkeypatch.setattr(BaseSubmititLauncher, "launch", launch)
    made = launcher()
    made.config = made.hydra_context = SimpleNamespace(config_loader=None)

    (command,) = made.launch([[]], 0)

    assert command.startswith(f"{shlex.quote(sys.executable)} {options} -m submitit.core._submit ")
    assert submitit.AutoExecutor is AutoExecutor


OF_MY_OWN = """
import torch, hetsim

@hetsim.workload
def build():
    samples = [(torch.ones(1), torch.ones(1))] * 8
    return hetsim.Training(model=torch.nn.Linear(1, 1), train=samples, loss=torch.nn.functional.mse_loss)
"""


@pytest.mark.parametrize("backend", [pytest.param("sim", marks=pytest.mark.long), "dist"])
def test_loader_workers_import_what_their_rank_imports(
    backend: str, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's module from where Python found it, and nothing from the current folder."""
    mine = tmp_path_factory.mktemp("mine")
    (mine / "my_loaded.py").write_text(OF_MY_OWN)
    monkeypatch.syspath_prepend(mine)
    for name in ("json", "pickle", "random", "numpy", "hetsim", "sitecustomize"):
        (elsewhere / f"{name}.py").write_text("open('mark', 'w').close()\n")
    words = ("workload=own", "workload.module=my_loaded:build", "workload.loader_workers=1", "batch_size=8", f"backend={backend}")
    words += ("method=ssgd", "cluster.nodes=[{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0}]")

    ended = hetsim.run(*words, *QUICK[1:], folder="one", trust=["my_loaded"])

    assert ended.summary["num_updates"] == 2
    assert not (elsewhere / "mark").exists()


def test_python_writes_through_no_link_either() -> None:
    """As the command does not."""
    Path("mine").mkdir()
    Path("results").symlink_to("mine")

    for words, folder in ((QUICK, "results"), ((*QUICK, "hydra.run.dir=results"), None)):
        with pytest.raises(ValueError, match="results is a link, and would be written through"):
            hetsim.run(*words, folder=folder)
    assert not list(Path("mine").iterdir())


@pytest.mark.parametrize("way", ["hetsim", "hetsim.run"])
def test_hydra_imports_installed_plugins_only(way: str, elsewhere: Path) -> None:
    """A stranger's folder may be called hydra_plugins, where PYTHONPATH names the folder that it lies in."""
    (elsewhere / "hydra_plugins").mkdir()
    (elsewhere / "hydra_plugins" / "evil.py").write_text("open('mark', 'w').close()\n")
    code = {"hetsim": "from hetsim.cli.main import main; main()", "hetsim.run": "import hetsim; hetsim.run('workload=phantom')"}[way]
    environment = {**os.environ, "PYTHONPATH": f"{elsewhere}:{Path(__file__).parents[2]}"}

    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert f"Hydra would import what is in {elsewhere}/hydra_plugins, which is not an installed package" in ended.stderr
    assert not (elsewhere / "mark").exists()
