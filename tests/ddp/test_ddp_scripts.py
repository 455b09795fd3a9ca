"""The scripts under docs/ddp run, plain, with a Team and under frameworks."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

import pages
import pytest
import torch
from ranks import run_scripts

SCRIPTS = Path(__file__).parents[2] / "docs" / "ddp"
FRAMEWORKS = [name for name in ("accelerate", "lightning") if importlib.util.find_spec(name) is not None]
WITH_A_TEAM = ["with_team", *(f"with_{name}" for name in FRAMEWORKS)]
STEPS = """
import sys
import lightning
sys.path.insert(0, sys.argv[1])
from with_lightning import Classifier

class Counted(Classifier):
    steps = 0

    def training_step(self, batch, place):
        self.steps += 1
        return super().training_step(batch, place)

    def on_train_epoch_end(self):
        self.print(self.steps, self.team.epoch)

quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, use_distributed_sampler=False, **quiet).fit(Counted())
"""


def changed() -> tuple[list[str], list[str]]:
    """The lines that a Team brings to the plain script, and those that it takes away, but for the first line and empty ones."""
    plain, other = ((SCRIPTS / name).read_text(encoding="utf-8").splitlines()[1:] for name in ("plain.py", "with_team.py"))
    lines = [line for line in difflib.ndiff(plain, other) if line[2:].strip()]
    return [line[2:].strip() for line in lines if line[0] == "+"], [line[2:].strip() for line in lines if line[0] == "-"]


def test_a_team_is_five_lines() -> None:
    """And the call of set_epoch goes."""
    more, fewer = changed()

    assert len(more) == 5
    assert len(fewer) == 5
    assert fewer[3] == "sampler.set_epoch(epoch)"


def test_the_page_shows_these_lines() -> None:
    """In docs/guide/ddp.md."""
    shown = pages.text("ddp.md").split("```diff\n")[1].split("```")[0].splitlines()
    more, fewer = changed()

    assert [line[1:].strip() for line in shown if line[:1] == "+"] == more
    assert [line[1:].strip() for line in shown if line[:1] == "-"] == fewer


def test_the_page_shows_the_lines_of_the_trainers_script() -> None:
    """In docs/guide/ddp.md; test_ddp_trainer.py runs the script."""
    shown = pages.text("ddp.md").split("```diff\n")[2].split("```")[0].splitlines()
    script = [line.strip() for line in (SCRIPTS / "with_trainer.py").read_text(encoding="utf-8").splitlines()]

    assert {line[1:].strip() for line in shown if line[:1] == "+"} <= set(script)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")  # of an earlier test, which torch keeps a list of
def test_both_versions_of_the_script_learn_and_the_frameworks_scripts_too(tmp_path: Path) -> None:
    """In three processes. The checkpoint of the one with a Team has where it is, and is read with weights_only."""
    names = ["plain", *WITH_A_TEAM]
    said = run_scripts(
        3, [(SCRIPTS / f"{name}.py", [str(tmp_path / name)] if "team" in name or name == "plain" else [], {}) for name in names]
    )

    for name, text in zip(names, said, strict=True):
        assert "epoch 1: " in text, name
    losses = [float(text.split()[-1]) for name, text in zip(names, said, strict=True) if name != "with_lightning"]
    assert all(loss < 0.5 for loss in losses)
    saved = torch.load(tmp_path / "with_team", weights_only=True)
    assert (saved["team"]["epoch"], saved["team"]["position"]) == (2, 0)


@pytest.mark.slow
@pytest.mark.skipif("lightning" not in FRAMEWORKS, reason="Lightning is not installed")
def test_lightning_makes_every_step_of_every_epoch(tmp_path: Path) -> None:
    """It asks for as many batches as the loader has steps, and never for one more: ten steps in each of four epochs."""
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    (said,) = run_scripts(2, [(tmp_path / "steps.py", [str(SCRIPTS)], {})])

    assert said.split() == ["10", "1", "20", "2", "30", "3", "40", "4"]
