"""hetsim changes nothing in the process of its user: no variable, no import hook, no current folder, no signal handler, no function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import process_state
import pytest

import hetsim
from hetsim.pool.interpreter import python

pytestmark = pytest.mark.slow

CALLED = {"import_hetsim", "simulation", "team", *(name for name in hetsim.__all__ if name.islower() and not name.startswith("_"))}


@pytest.fixture(scope="module")
def changes() -> dict[str, Any]:
    """What each row has changed."""
    command = [sys.executable, "-W", "ignore", process_state.__file__]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(line) for line in ended.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", process_state.CALLS)
def test_a_call_leaves_the_process_as_it_was(name: str, changes: dict[str, Any]) -> None:
    assert changes[name] == {}


def test_every_public_function_is_called() -> None:
    assert {name for name in CALLED if not any(f"{row}_".startswith(f"{name}_") for row in process_state.CALLS)} == set()


def test_a_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the law would hold of nothing."""
    before = process_state.state()
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    monkeypatch.setattr(subprocess, "run", print)

    assert {"environment", "imports", "functions"} <= process_state.changes(before, process_state.state()).keys()


def test_a_script_starts_its_own_modules_after_a_run(tmp_path: Path) -> None:
    """Python imports them from the current folder, in this process and in those that it starts."""
    (tmp_path / "mine.py").write_text("print('mine')\n")
    (tmp_path / "script.py").write_text(
        "import hetsim, subprocess, sys\nhetsim.run('workload=phantom', 'budget.updates=2', 'budget.epochs=null')\n"
        "subprocess.run([sys.executable, '-m', 'mine'], check=True)\n"
    )

    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (0, "mine\n"), ended.stderr


@pytest.mark.parametrize("entry", ["", "here", "elsewhere"])
def test_hetsims_processes_import_from_the_current_folder_if_this_one_does(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [{"": "", "here": os.getcwd(), "elsewhere": "/elsewhere"}[entry]])

    assert ("-P" in python()) is (entry == "elsewhere")
