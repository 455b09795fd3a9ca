"""transformers' Trainer with a Team trains as one process does, resumes, and refuses what it could not weight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ranks import run_scripts, world

from hetsim.cli import ddp_check
from hetsim.ddp.check import VARIABLE

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="Accelerate is not installed")

import trainer_laws

SCRIPT = Path(__file__).parents[2] / "docs" / "ddp" / "with_trainer.py"
pytestmark = pytest.mark.slow


@pytest.mark.long
def test_every_kind_of_loss_trains_as_in_one_process(tmp_path: Path) -> None:
    """Shares of 1:2 on two ranks against a plain Trainer of the whole batch; the weights after two epochs, in double precision."""
    (serial,) = world(1, trainer_laws.trained, tmp_path / "serial")
    several = world(2, trainer_laws.trained, tmp_path / "several")

    for name in trainer_laws.CASES:
        for found in several:
            assert abs(found[name] - serial[name]).max() < 1e-12, name


def test_a_run_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """With the samples that are left, in their order, and to the weights and logged epochs of a run without a pause."""
    for difference, (whole, later), (epochs, logged) in world(2, trainer_laws.resumed, tmp_path):
        assert difference == 0
        assert logged == epochs
        assert later == whole[-len(later) :]
        assert 0 < len(later) < len(whole)


@pytest.mark.long
def test_a_gradient_that_would_be_wrong_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Each sentence names the remedy."""
    for found in world(2, trainer_laws.refused, tmp_path):
        for name, (_, sentence) in trainer_laws.REFUSED.items():
            assert sentence in found[name], name
        assert "the checkpoint has no state of a Team" in found["resume"]
        assert "steps of 12 samples, and here they have 2 times 12" in found["other steps"]


def test_the_script_of_the_page_learns_and_evaluates(tmp_path: Path) -> None:
    """In two processes; its checkpoint contains the Team's position."""
    (said,) = run_scripts(2, [(SCRIPT, [str(tmp_path)], {})])
    losses = [float(line.split("'")[3]) for line in said.splitlines() if "eval_loss" in line]

    assert losses[1] < losses[0] < 2
    saved = json.loads((tmp_path / "checkpoint-30" / "trainer_state.json").read_text(encoding="utf-8"))
    assert saved["stateful_callbacks"]["hetsim.ddp.Team"]["epoch"] == 2


def test_the_check_finds_the_script_of_the_page_right(tmp_path: Path) -> None:
    """Although its batch size grows with the number of processes, and plain averages are right too."""
    for size in (2, 1):
        run_scripts(size, [(SCRIPT, [str(tmp_path / "run")], {VARIABLE: str(tmp_path)})])
    said, right = ddp_check.verdict(tmp_path)

    assert right, said
    assert "133, 67 samples at first, and of one with all 200" in said
