"""`| head` is no error: a command whose output nobody reads any more ends as it would have ended. A full disk is one sentence."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from hetsim.files.summary_and_curve import read_summary

WORDS = ("workload=phantom", "budget.epochs=null", "budget.updates=5", "pictures=false")
RUN, SWEEP = (*WORDS, "method=ssgd", "hydra.run.dir=run"), ("-m", *WORDS, "method=ssgd,asgd", "hydra.sweep.dir=sweep")
PREPARED = {"hetsim-compare": RUN, "hetsim-report": RUN, "hetsim-stragglers": RUN, "hetsim-table": SWEEP}
"""What hetsim runs before a command."""
COMMANDS = {
    # what is typed after it; hetsim-calibrate and hetsim-ddp-check measure and train, so of theirs it is the help
    "hetsim": SWEEP,
    "hetsim-advise": ("workload=phantom", "timing", "method=ssgd,asgd", "--processes=1"),
    "hetsim-calibrate": ("--help",),
    "hetsim-catalogue": (),
    "hetsim-compare": ("run", "run"),
    "hetsim-ddp-check": ("--help",),
    "hetsim-launch": ("--", *RUN, "backend=dist", "cluster.nodes=[{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0}]"),
    "hetsim-methods": (),
    "hetsim-report": ("run", "--html", "run.html"),
    "hetsim-search": (*WORDS, "method=ssgd", "learning_rate=0.1,0.2", "--objective=seconds", "--trials=2", "--folder=search"),
    "hetsim-stragglers": ("run",),
    "hetsim-table": ("sweep",),
}


def _ended(folder: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command whose standard output is a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run([sys.executable, "-m", module, *words], cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)


def _module(command: str) -> str:
    """What `python -m` takes in place of the command."""
    return "hetsim" if command == "hetsim" else command.replace("hetsim-", "hetsim.cli.").replace("-", "_")


def test_each_command_is_in_the_table_and_can_be_run_as_a_module() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

    assert COMMANDS.keys() == project["scripts"].keys()
    for command in COMMANDS:
        spec = find_spec("hetsim.__main__" if command == "hetsim" else _module(command))
        assert spec is not None
        assert spec.origin is not None
        assert 'if __name__ == "__main__":' in Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.sampled(6)
def test_no_command_minds_that_nobody_reads_its_output(command: str, tmp_path: Path) -> None:
    if command in PREPARED:
        _ended(tmp_path, "hetsim", *PREPARED[command])

    ended = _ended(tmp_path, _module(command), *COMMANDS[command])

    assert "Broken" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
    if command == "hetsim":
        assert len([*(tmp_path / "sweep").glob("*/summary.json")]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.sampled(3)
def test_output_that_cannot_be_written_is_one_sentence(command: str, tmp_path: Path) -> None:
    """The work is done all the same."""
    if command in PREPARED:
        _ended(tmp_path, "hetsim", *PREPARED[command])

    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-m", _module(command), *COMMANDS[command]]
        ended = subprocess.run(line, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)

    told = [line for line in ended.stderr.splitlines() if "error" in line]
    assert told == [f"{command}: error: standard output cannot be written (No space left on device): send it elsewhere"], ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 1
    assert len([*(tmp_path / "sweep").glob("*/summary.json")]) == 2 * (command in ("hetsim", "hetsim-table"))


@pytest.mark.slow
@pytest.mark.real_start
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.sampled(1)
def test_a_closed_stream_is_no_error(closed: str, tmp_path: Path) -> None:
    """No file of the run takes its place."""
    line = shlex.join([sys.executable, "-m", "hetsim", *RUN])

    assert subprocess.run(["sh", "-c", f"{line} {closed}"], cwd=tmp_path, capture_output=True).returncode == 0
    assert read_summary(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.real_start
@pytest.mark.long
def test_no_process_of_a_sweep_minds_it(tmp_path: Path) -> None:
    ended = _ended(tmp_path, "hetsim", *SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
