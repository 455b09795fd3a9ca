"""A sweep names the folders of its runs as Hydra does, and starts only what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

from hetsim.cli import main
from hetsim.config.compose import Composed
from hetsim.sweeps import launchers

pytestmark = pytest.mark.slow

TINY = ("-m", "workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false")


def sweep(monkeypatch: pytest.MonkeyPatch, folder: Path, *typed: str) -> int:
    """Exit status of a sweep into this folder."""
    return exit_status(monkeypatch, "hetsim", main.main, *TINY, f"hydra.sweep.dir={folder}", *typed)


NAMED = "hydra.sweep.subdir=${method}/${hydra:job.num}-${seed}-${hydra.job.override_dirname}"


def test_a_finished_run_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By its config, whatever its folder is called."""
    typed = ("method=ssgd,asgd", "seed=0,1", "learning_rate=0.1,0.2")
    assert sweep(monkeypatch, tmp_path / "a", *typed) == 0
    assert sweep(monkeypatch, tmp_path / "b", *typed, NAMED) == 0
    words = sorted([*TINY[1:-1], "pictures=False", "method=asgd", "seed=1", "learning_rate=0.1"])
    assert (tmp_path / "b" / "asgd" / f"6-1-{','.join(words)}").is_dir()
    started: list[str] = []
    execute = launchers.execute

    def counted(config: Composed, *settings: Any) -> Any:
        started.append(" ".join(config.words))
        return execute(config, *settings)

    monkeypatch.setattr(launchers, "execute", counted)
    capsys.readouterr()
    assert sweep(monkeypatch, tmp_path / "a", *typed[:1], "seed=0,1,2", *typed[2:]) == 0
    assert [word.split("seed=")[1] for word in started] == [f"2 learning_rate={rate}" for rate in (0.1, 0.2)] * 2
    assert "12 runs (8 were there already)" in capsys.readouterr().out
    started.clear()
    assert sweep(monkeypatch, tmp_path / "b", *typed, NAMED) == 0
    assert started == []
    assert "8 runs (8 were there already)" in capsys.readouterr().out


def test_a_finished_run_behind_a_link_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not a run of this sweep, whatever the link leads to."""
    assert sweep(monkeypatch, tmp_path / "a", "seed=0") == 0
    (run,) = (tmp_path / "a").glob("dbs_sgd-*")
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    capsys.readouterr()

    assert sweep(monkeypatch, tmp_path / "a", "seed=0") == 1
    assert "is a link or a pipe, and would be written through: remove it" in capsys.readouterr().err


def test_a_choice_that_cannot_be_composed_is_said_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Hydra checks a batch before it launches it."""
    assert sweep(monkeypatch, tmp_path / "a", "seed=0,1", "method=ssgd,sgd") == 1
    told = capsys.readouterr()

    assert told.err.startswith("hetsim: error: method=sgd is not a choice: take abs_sgd, ")
    assert told.out == ""
    assert not list(tmp_path.rglob("summary.json"))
