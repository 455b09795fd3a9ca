"""What all commands of pyproject.toml have in common."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

import hetsim

SCRIPTS: dict[str, str] = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def status(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> object:
    """The exit status of a command."""
    module, _, function = SCRIPTS[command].partition(":")
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), function)()
    return ended.value.code


@pytest.mark.parametrize("command", SCRIPTS)
def test_every_command_prints_the_version_of_hetsim(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hetsim's own version, and not that of Hydra."""
    assert status(monkeypatch, command, "--version") == 0
    assert capsys.readouterr().out == f"{command} {hetsim.__version__}\n"
