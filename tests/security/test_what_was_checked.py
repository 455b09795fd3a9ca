"""What runs is what was checked: in a job that composes its config again, and where a reference is evaluated."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hetsim.config.guard import provenance, references
from hetsim.config.guard.compositions import CHANGED, digests
from hetsim.config.guard.resolvers import restrict
from hetsim.config.written_config import without_hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import UnsupportedInterpolationType
from worlds import exit_status

import hetsim
from hetsim.cli.main import main
from hetsim.sweeps import job, submitit_launcher

METHOD = "# @package _global_\ndefaults: [{override /method: ssgd}]\nbudget: {epochs: null, updates: UPDATES}\npictures: false\n"
QUICK = {"workload": "phantom", "cluster": "two_gpus"}


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configs, beside which the current folder is."""
    for name, updates in {"one": "2", "two": "3"}.items():
        (tmp_path / "conf" / "experiment").mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(METHOD.replace("UPDATES", updates))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conf"


def change(theirs: Path) -> None:
    """What a run might do that writes into the folder of configs."""
    (theirs / "experiment" / "two.yaml").write_text(METHOD.replace("UPDATES", "5"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_composes_everything_before_its_first_run(launcher: str, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config that the first run has written is in no other run."""
    run = job.job

    def changing(config: DictConfig) -> Any:
        change(theirs)
        return run(config)

    monkeypatch.setattr(job, "job", changing)
    varied = {"experiment": ["one", "two"], **QUICK, "hydra/launcher": launcher, "hydra.sweeper.max_batch_size": 1}
    if launcher == "joblib":
        varied["hydra.launcher.n_jobs"] = 1  # in this process, where the function is replaced

    hetsim.sweep(varied, folder="sweep", config_dir=theirs)

    done = [json.loads(path.read_text()) for path in Path("sweep").glob("*/summary.json")]
    assert sorted(summary["num_updates"] for summary in done) == [2, 3]


@pytest.mark.slow
def test_a_job_that_composes_its_config_again_composes_what_was_checked(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job of a cluster begins hours later."""

    def changing(*arguments: Any) -> Any:
        checked = digests(*arguments)
        change(theirs)
        return checked

    monkeypatch.setattr(submitit_launcher, "digests", changing)
    words = [f"{key}={value}" for key, value in {**QUICK, "hydra/launcher": "submitit_local", "hydra.sweep.dir": "sweep"}.items()]

    assert exit_status(monkeypatch, "hetsim", main, "-m", "--config-dir", "conf", "experiment=two", *words) == 1

    assert CHANGED in capsys.readouterr().err
    assert not list(Path("sweep").glob("*/summary.json"))


@pytest.mark.parametrize("word", ["hydra.job.name=a,b", "+hydra.job.env_set.X=a,b"])
def test_beside_files_a_sweep_varies_nothing_of_hydras(
    word: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra would compose each of its runs from the beginning."""
    assert exit_status(monkeypatch, "hetsim", main, "-m", "--config-dir", theirs, "experiment=one", word, "hydra.sweep.dir=sweep") == 1
    assert "Traceback" not in capsys.readouterr().err
    assert not list(Path().glob("sweep/*/summary.json"))


def test_a_restricted_config_calls_no_other_resolver() -> None:
    """Nor does a copy of it, or its part without Hydra's."""
    config = OmegaConf.create({"hydra": {}, "a": "${oc.create:{e: 5}}", "b": "${now:b}", "c": "${oc.env:HOME}", "d": "${oc.decode:'2'}"})
    assert (config.a.e, config.b, config.d) == (5, "b", 2)
    restrict(config)
    for same in (config, copy.deepcopy(config), config.copy(), pickle.loads(pickle.dumps(config)), without_hydra(config)):
        assert same.b == "b"
        for key, name in {"a": "create", "c": "env", "d": "decode"}.items():
            with pytest.raises(UnsupportedInterpolationType, match=rf"does not call oc\.{name}"):
                _ = same[key]
    assert OmegaConf.create({"a": "${oc.create:{e: 5}}"}).a.e == 5


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hetsim", "hetsim -m", "hetsim.run"])
def test_a_reference_that_passed_the_check_of_its_file_is_not_evaluated(
    way: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second wall holds alone."""
    for module in (references, provenance):
        monkeypatch.setattr(module, "check_references", lambda *_: None)
    (theirs / "experiment" / "two.yaml").write_text(METHOD.replace("UPDATES", "'${oc.select:nothing,3}'"))
    words = ["experiment=two", *(f"{key}={value}" for key, value in QUICK.items())]

    if way == "hetsim.run":
        with pytest.raises(ValueError, match=r"does not call oc\.select"):
            hetsim.run(*words, folder="run", config_dir=theirs)
        return
    typed = (*way.split()[1:], "--config-dir", theirs, *words, "hydra.sweep.dir=sweep" if "-m" in way else "hydra.run.dir=run")
    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1
    assert "does not call oc.select" in capsys.readouterr().err
