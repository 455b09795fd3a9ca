"""What hetsim's processes import: nothing from the current folder, unless this process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

import hetsim
from hetsim.api.calls import one_at_a_time
from hetsim.pool.interpreter import python

pytestmark = [pytest.mark.slow, pytest.mark.real_start]

QUICK = ("workload=quadratic", "budget.updates=2", "budget.epochs=null")
OF_MY_OWN = """
import torch, hetsim

@hetsim.workload
def build():
    samples = [(torch.ones(1), torch.ones(1))] * 8
    return hetsim.Training(model=torch.nn.Linear(1, 1), train=samples, loss=torch.nn.functional.mse_loss)
"""
SHADOWS = ("json", "joblib", "multiprocessing", "pickle", "random", "numpy", "hetsim", "sitecustomize", "hydra_plugins/theirs")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder from which Python itself does not import, with modules of a stranger's."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
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


@pytest.mark.usefixtures("elsewhere")
def test_a_process_imports_from_the_current_folder_where_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an option, because a scheduler may give a job's steps no variables."""
    assert "-P" in python()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert "-P" not in python()


@pytest.mark.parametrize("backend", [pytest.param("sim", marks=pytest.mark.long), "dist"])
def test_loader_workers_import_what_their_rank_imports(
    backend: str, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's module from where Python found it, and nothing from the current folder."""
    mine = tmp_path_factory.mktemp("mine")
    (mine / "my_loaded.py").write_text(OF_MY_OWN)
    monkeypatch.syspath_prepend(mine)
    own = ("workload=own", "workload.module=my_loaded:build", "workload.loader_workers=1", "batch_size=8", f"backend={backend}")
    node = "cluster.nodes=[{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0}]"

    ended = hetsim.run(*own, "method=ssgd", "pictures=false", node, *QUICK[1:], folder="one", trust=["my_loaded"])

    assert ended.summary["num_updates"] == 2
    assert not (elsewhere / "mark").exists()


SWEEP = "-m seed=1 workload=phantom trace=full hydra/launcher="


@pytest.mark.parametrize("typed", ["backend=dist workload=quadratic", f"{SWEEP}joblib", f"{SWEEP}submitit_local"])
def test_a_commands_processes_read_nothing_in_the_current_folder(typed: str, elsewhere: Path) -> None:
    """No module, and no matplotlibrc, in which Matplotlib up to version 3.10 evaluates Python: it would complain about this one."""
    (elsewhere / "matplotlibrc").write_text("axes.prop_cycle: nothing\n")
    folder = "hydra.sweep.dir=run" if "-m" in typed else "hydra.run.dir=run"
    command = Path(sys.executable).with_name("hetsim")

    ended = subprocess.run([command, *typed.split(), *QUICK[1:], folder], cwd=elsewhere, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "matplotlibrc" not in ended.stderr
    assert list(elsewhere.rglob("*.png"))
    assert not (elsewhere / "mark").exists()


@pytest.mark.usefixtures("elsewhere")
def test_a_setting_of_matplotlibs_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could have TeX called, with a preamble of its own."""
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setitem(matplotlib.rcParams, "text.latex.preamble", "nothing that TeX knows")

    hetsim.run(*QUICK, folder="run")

    assert Path("run/curve.png").exists()
    assert matplotlib.rcParams["text.usetex"]
