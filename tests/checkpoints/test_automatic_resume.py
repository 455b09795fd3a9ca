"""`resume=auto`: one command for the first start of a run and each restart."""

from __future__ import annotations

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
