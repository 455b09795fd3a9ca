"""Accelerate and Lightning with a Team train as one process does, and the scripts of docs/ddp/ train."""

from __future__ import annotations

import contextlib
import difflib
import sys
from pathlib import Path
from typing import Any

import framework_laws
import pytest
from ranks import result, run_scripts, world

from hetsim.cli import ddp_check

SCRIPTS = Path(__file__).parents[2] / "docs" / "ddp"


def changed() -> tuple[list[str], list[str]]:
    """The lines that a Team adds to the plain script, and those that it removes, without the first line and empty ones."""
    plain, other = ((SCRIPTS / name).read_text(encoding="utf-8").splitlines()[1:] for name in ("plain.py", "with_team.py"))
    lines = [line for line in difflib.ndiff(plain, other) if line[2:].strip()]
    return [line[2:].strip() for line in lines if line[0] == "+"], [line[2:].strip() for line in lines if line[0] == "-"]


def test_a_team_is_five_lines():
    more, fewer = changed()

    assert len(more) == 5
    assert len(fewer) == 5
    assert "sampler.set_epoch(epoch)" in fewer


@pytest.mark.slow
def test_the_scripts_train(tmp_path: Path):
    names = ["plain", "with_team", *(f"with_{package}" for package in framework_laws.PRESENT if package != "torch")]
    said = run_scripts(2, [(SCRIPTS / f"{name}.py", [str(tmp_path / name)] if name in names[:2] else [], {}) for name in names])

    for name, text in zip(names, said, strict=True):
        assert "epoch 1: " in text, name
    losses = [float(text.split()[-1]) for name, text in zip(names, said, strict=True) if name != "with_lightning"]
    assert max(losses) < 0.5


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return world(2, framework_laws.run)


@pytest.mark.slow
@pytest.mark.parametrize("package", framework_laws.PRESENT)
def test_a_framework_trains_as_one_process(found: list[dict[str, Any]], package: str):
    of_package = [rank[package] for rank in found]
    differences = {name: result(of_package, name) for name in framework_laws.LAWS[package]}
    assert {name: difference for name, difference in differences.items() if not difference < 1e-12} == {}


@pytest.mark.long
@pytest.mark.parametrize("name", ["team", "accelerate", "lightning", "trainer"])
def test_the_check_finds_the_scripts_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip({"team": "torch", "trainer": "transformers"}.get(name, name))
    monkeypatch.setattr(sys, "argv", ["hetsim-ddp-check", "--processes", "2", str(SCRIPTS / f"with_{name}.py"), str(tmp_path / "run")])
    with contextlib.suppress(SystemExit):
        ddp_check.main()

    assert capsys.readouterr().out.endswith("the gradients are right\n")
