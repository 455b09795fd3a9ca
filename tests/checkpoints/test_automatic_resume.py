"""`resume=auto`: one command for the first start of a run and each restart."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.main import main

AUTO = ("resume=auto",)
WORDS = (
    "workload=phantom",
    "budget.epochs=null",
    "method=ssgd",
    "pictures=false",
    "trace=none",
    "checkpoint.every_updates=2",
    "resume=auto",
)


def test_it_starts_resumes_and_ends(tmp_path: Path) -> None:
    first, again = (hetsim.run(*WORDS, "budget.updates=4", folder=tmp_path / "run") for _ in range(2))
    longer, again_longer = (hetsim.run(*WORDS, "budget.updates=8", folder=tmp_path / "run") for _ in range(2))

    runs = (first, again, longer, again_longer)

    assert [run.summary["seconds"] / first.summary["seconds"] for run in runs] == pytest.approx([1, 1, 2, 2])


def test_the_command_says_that_nothing_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*WORDS, "budget.updates=4")

    assert exit_status(monkeypatch, "hetsim", main, *words, "hydra.run.dir=run") == 0
    capsys.readouterr()
    assert exit_status(monkeypatch, "hetsim", main, *words, "hydra.run.dir=run") == 0
    assert capsys.readouterr().out == "run holds this run, finished: nothing is left to do\n"

    assert exit_status(monkeypatch, "hetsim", main, *words) == 1
    assert "type hydra.run.dir=FOLDER" in capsys.readouterr().err


def test_a_word_that_differs_is_refused(tmp_path: Path) -> None:
    hetsim.run(*WORDS, "budget.updates=4", folder=tmp_path / "run")

    with pytest.raises(ValueError, match=r"learning_rate=0.5 is not 0.1"):
        hetsim.run(*WORDS, "budget.updates=8", "learning_rate=0.5", folder=tmp_path / "run")


def test_a_run_that_is_to_resume_and_writes_no_checkpoints_warns_once(tmp_path: Path) -> None:
    """Also with resume=FOLDER; the warning names the keys to type."""
    unsaved = [word for word in WORDS if not word.startswith("checkpoint.")]
    its = r"^resume=auto cannot continue this run after a kill, .*: add checkpoint\.every_seconds=600 or checkpoint\.every_updates=100$"

    with pytest.warns(UserWarning, match=its) as told:
        hetsim.run(*unsaved, "budget.updates=4", folder=tmp_path / "run")
    assert len(told) == 1
    hetsim.run(*WORDS, "budget.updates=4", folder=tmp_path / "saved")
    longer = [*unsaved[:-1], f"resume={tmp_path / 'saved'}", "budget.updates=8", "checkpoint.every_updates=null"]
    with pytest.warns(UserWarning, match="cannot continue this run after a kill"):
        hetsim.run(*longer, folder=tmp_path / "longer")


def test_a_run_that_does_not_resume_or_is_finished_or_saves_itself_does_not_warn(tmp_path: Path) -> None:
    unsaved = [word for word in WORDS if not word.startswith("checkpoint.")]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hetsim.run(*unsaved[:-1], "budget.updates=4", folder=tmp_path / "run")
        hetsim.run(*unsaved, "budget.updates=4", folder=tmp_path / "run")
        hetsim.run(*WORDS[:-2], "checkpoint.every_seconds=60", "resume=auto", "budget.updates=4", folder=tmp_path / "saved")
