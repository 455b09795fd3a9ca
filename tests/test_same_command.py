"""Each command that resumes does so by the same words: after `kill -9`, with other spellings, and when nothing is left to do."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import family, wait_for

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "pictures=false", "trace=none", "cluster=uniform4", "budget.epochs=null", "learning_rate=1e-3", "method=asgd")
SAVED = ("checkpoint.keep=1000", "hydra.run.dir=run")
NODES = "cluster.nodes=[{count: 2, seconds_per_sample: 1 ms, overhead_seconds: 0}]"
RUN = (*QUICK, NODES, *SAVED, "budget.updates=2e4", "checkpoint.every_updates=1000")
REAL = ("backend=dist", "workload=quadratic", *QUICK[1:], *SAVED, "method=ssgd", "budget.updates=1e3", "checkpoint.every_updates=100")
SWEEP = ("-m", *QUICK, "budget.updates=1e4", "seed=0,1,2", "hydra.sweep.dir=sweep")
SEARCH = (*QUICK[:-2], "method=asgd", "budget.updates=1e4", "learning_rate=1e-3,0.2,0.3", "--trials=3", "--objective=seconds", "--folder=s")
LATENCY = "cluster.network.latency_seconds=1 ms"
ADVICE = (
    "cluster=uniform4",
    "workload=phantom",
    "timing",
    "method=ssgd,asgd",
    "batch_size=64",
    LATENCY,
    "--processes=1",
    "--folder=advice",
)

RUN_DIFFERS = "learning_rate=0.5 is not 0.001, as of the run in resume="


@dataclass(frozen=True)
class Case:
    """A command that resumes."""

    module: str
    words: tuple[str, ...]
    done: str
    """The files that a restart does not make again: a pattern of paths, or a file of lines."""
    total: int | None
    """How many of them there are at the end; None: at least one."""
    spelled: dict[str, str]
    """Words, and others that mean the same."""
    again: tuple[str, ...] = ()
    """Words that only a restart has."""
    other: str = "learning_rate=0.5"
    """What is typed instead of the learning rate."""
    refused: str | None = RUN_DIFFERS
    """What is said of it: both values. None: it makes further runs, or is no key of the command."""


RATE = {"learning_rate=1e-3": "learning_rate=0.001"}
CASES = {
    "hetsim, resume=auto": Case(
        "hetsim",
        (*RUN, "resume=auto"),
        "run/checkpoints/*.safetensors",
        20,
        {
            **RATE,
            "budget.updates=2e4": "budget.updates=20000",
            NODES: "cluster.nodes=[{count:2.0,seconds_per_sample:1e-3,overhead_seconds:0.0}]",
        },
    ),
    "hetsim, resume=FOLDER": Case(
        "hetsim", RUN, "run/checkpoints/*.safetensors", 20, {**RATE, "resume=run": "resume=./run/"}, again=("resume=run",)
    ),
    "hetsim backend=dist": Case("hetsim", (*REAL, "resume=auto"), "run/checkpoints/*.safetensors", 10, RATE),
    "hetsim-launch": Case("hetsim.cli.launch", ("--processes=4", "--", *REAL, "resume=auto"), "run/checkpoints/*.safetensors", 10, RATE),
    "hetsim -m": Case("hetsim", SWEEP, "sweep/*/summary.json", 3, {**RATE, "seed=0,1,2": "seed=0.0,1,2"}, refused=None),
    "hetsim -m, joblib": Case(
        "hetsim", (*SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"), "sweep/*/summary.json", 3, RATE, refused=None
    ),
    "hetsim-search": Case(
        "hetsim.cli.search",
        SEARCH,
        "s/*/summary.json",
        None,
        {"budget.updates=1e4": "budget.updates=10 k", "learning_rate=1e-3,0.2,0.3": "learning_rate=0.001,.2,0.30"},
        other="learning_rate=0.2,0.3",
        refused="s holds another search (words: 'learning_rate=1e-3,0.2,0.3', not 'learning_rate=0.2,0.3')",
    ),
    "hetsim-advise": Case(
        "hetsim.cli.advise",
        ADVICE,
        "advice/answers.jsonl",
        None,
        {"batch_size=64": "batch_size=64.0", LATENCY: "cluster.network.latency_seconds=1e-3"},
        refused=None,
    ),
}
CHEAP = ("hetsim, resume=auto", "hetsim -m")
"""The rows that are in every `make test`."""


def line(case: Case, *words: str) -> list[str]:
    """The command, as it is started."""
    return [sys.executable, "-m", case.module, *words]


def ended(case: Case, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command to its end."""
    return subprocess.run(line(case, *words), cwd=folder, capture_output=True, text=True)


def done(case: Case, folder: Path) -> dict[str, int]:
    """What has been made: when each file was written, or the whole lines of one."""
    found = [*folder.glob(case.done)]
    if case.done.endswith(".jsonl"):
        lines = [text for path in found for text in path.read_bytes().decode().splitlines(keepends=True)]
        return {json.loads(text)["question"]: hash(text) for text in lines if text.endswith("\n")}
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found}


def contents(folder: Path) -> dict[str, bytes]:
    """Each file, but those that note the words of each start."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("multirun.yaml", "search.log"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def killed(case: Case, folder: Path) -> bool:
    """Start the command, and kill it once it has made something; whether that was before its end."""
    command = subprocess.Popen(
        line(case, *case.words), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_for(lambda: done(case, folder) or command.poll() is not None)
    command.kill()
    command.wait()
    wait_for(lambda: not family(command.pid))
    return command.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name not in CHEAP)) for name in CASES])
def test_the_same_command_goes_on_and_makes_nothing_twice(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    words = (*case.words, *case.again)
    while not killed(case, tmp_path):  # on a busy machine it may be too late
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
    before = done(case, tmp_path)

    first = ended(case, tmp_path, *words)
    made, whole = done(case, tmp_path), contents(tmp_path)

    assert first.returncode == 0, first.stderr
    assert before.items() <= made.items()
    assert case.total in (None, len(made))
    for again in (words, tuple(case.spelled.get(word, word) for word in words)):
        third = ended(case, tmp_path, *again)
        assert (third.returncode, third.stderr.count("Traceback")) == (0, 0), third.stderr
        assert done(case, tmp_path) == made
        assert contents(tmp_path) == whole

    if case.refused is not None:
        other = ended(case, tmp_path, *(case.other if word.startswith("learning_rate") else word for word in words))
        assert (other.returncode, other.stderr.count("\n")) == (1, 1), other.stderr
        assert case.refused in other.stderr
        assert contents(tmp_path) == whole
