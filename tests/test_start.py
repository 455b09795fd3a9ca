"""What a command does before its work: it imports, reads and looks for nothing twice, and nothing that nobody needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "method=ssgd", "budget.epochs=null", "budget.updates=20", "pictures=false", "hydra.run.dir=run")
STARTED = """
import atexit, gc, json, sys
from collections import Counter

def tell():
    told = {"modules": [*sys.modules], "read": read, "collections": looked, "kept": gc.get_freeze_count()}
    with open("told.json", "w") as file:
        json.dump(told, file)

def watch(event, given):
    if event == "open" and str(given[0]).endswith(".yaml") and given[1] == "r":
        read[given[0]] += 1

read, looked = Counter(), []
atexit.register(tell)
from hetsim.cli import scripts
sys.addaudithook(watch)
gc.callbacks.append(lambda phase, _: looked.append("hetsim.sweeps.single" in sys.modules))
sys.argv[0] = "hetsim"
scripts.hetsim()
"""
OWN = """
from hetsim.policies.admission import Barrier


class Logged(Barrier):
    pass


class Log:
    def __init__(self):
        self.file, self.itself = open("log.txt", "w"), self
        self.file.write("whole")


LOG = Log()
"""


def started(folder: Path, *typed: str, own: str = "") -> dict[str, Any]:
    """What a command imported and read, whether all was imported when it looked for garbage, and how much it kept in the end."""
    (folder / "lately.py").write_text(own, encoding="utf-8")
    path = {"PYTHONPATH": f"{folder}:{Path(__file__).parents[1]}"}
    subprocess.run([sys.executable, "-P", "-c", STARTED, *typed], cwd=folder, env=path, check=True, capture_output=True)
    told: dict[str, Any] = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    return told


def test_a_timing_only_run_starts_without_detours(tmp_path: Path) -> None:
    """Each config is read once, and the cluster's once more: its name in results depends on whether it was changed.

    Python looks for garbage neither during imports nor at the end.
    """
    told = started(tmp_path, *QUICK)

    assert {"hetsim.sim.lockstep.world", "pyarrow"} <= {*told["modules"]}
    assert {"torch", "simpy", "email", "joblib", "numpy.ma", "hetsim.catalogue", "hetsim.sweeps.sweep"} & {*told["modules"]} == set()
    assert {Path(file).name: times for file, times in told["read"].items() if times > 1} == {"mixed4.yaml": 2}
    assert set(told["collections"]) == {True}
    assert told["kept"] > 50_000


def test_what_a_module_of_the_users_leaves_is_finalised(tmp_path: Path) -> None:
    """As Python does: a file that is not closed is written, even if a cycle of references holds it."""
    told = started(tmp_path, *QUICK, "trust=[lately]", "admission._target_=lately.Logged", own=OWN)

    assert told["kept"] == 0
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "whole"


def test_help_imports_no_run(tmp_path: Path) -> None:
    """Nor what only a run needs."""
    told = started(tmp_path, "--help")

    assert {"numpy", "pyarrow", "torch", "hetsim.config.build", "hetsim.sim.backend"} & {*told["modules"]} == set()
