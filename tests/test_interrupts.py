"""Each command × each signal that ends one: within ten seconds one sentence, the documented status, no process, nothing half-written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from running import family, wait_for

pytestmark = pytest.mark.slow

SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
SIGNALS = {
    # to whom: a terminal and `timeout` signal the whole group, and timeout its command besides; `kill` one process
    "interrupt": (signal.SIGINT, ("group",), "interrupted"),
    "interrupt twice": (signal.SIGINT, ("command", "group"), "interrupted"),
    "terminate": (signal.SIGTERM, ("command",), "ended by SIGTERM"),
    "hang up": (signal.SIGHUP, ("group",), "ended by SIGHUP"),
}
ENDS_WITHIN = 10.0
SHORT = ("workload=phantom", "budget.epochs=null", "pictures=false", "trace=none")
SIMULATED = (*SHORT, "budget.updates=1000000000", "method=asgd")
TRAINED = ("workload=digits", "budget.epochs=1000000", "pictures=false", "trace=none", "method=asgd", "backend.processes=2")
REAL = ("backend=dist", "workload=quadratic", "budget.epochs=100000", "pictures=false", "trace=none", "cluster=uniform4", "method=asgd")
SWEEP = ("-m", *SHORT, "hydra.sweep.dir=sweep")
SAVED = "checkpoint.every_updates=1000000000"
RUN = "hydra.run.dir=run"
LAST = "budget.updates=5"

Moment = Callable[[Path], bool]


def exists(pattern: str) -> Moment:
    """That a file is there."""
    return lambda folder: any(folder.glob(pattern))


def told(text: str) -> Moment:
    """That this was printed on standard error."""
    return lambda folder: text in (folder / "err").read_text(encoding="utf-8")


def blocked(folder: Path) -> bool:
    """That the command's only thread waits until somebody reads its output."""
    pid = (folder / "pid").read_text()
    return Path(f"/proc/{pid}/syscall").read_text().startswith("1 0x1 ")


def pooled(folder: Path) -> bool:
    """That a process of a pool has been started, which still imports what it needs."""
    session = family(int((folder / "pid").read_text()))
    return any("hetsim.pool.process" in Path(f"/proc/{pid}/cmdline").read_text() for pid in session)


def ray_starts(folder: Path) -> bool:
    """That a Ray of the command's own starts."""
    session = family(int((folder / "pid").read_text()))
    return any("gcs_server" in Path(f"/proc/{pid}/cmdline").read_text() for pid in session)


def measures(folder: Path) -> bool:
    """That a calibration has begun."""
    return any(temporary(folder).glob("hetsim-calibrate-*"))


@dataclass(frozen=True)
class Case:
    """A command, when it is signalled, and what it ends with other than 128 + n and the signal's words."""

    script: str
    words: tuple[str, ...]
    moment: Moment
    before: tuple[str, ...] = ()
    """What hetsim runs first."""
    terminated: tuple[int, str] | None = None
    """The status and the words after SIGTERM."""


UNSAVED = (143, "ended by SIGTERM or SIGUSR1: the run saves no checkpoints")
STOPPED = (75, "stopped at version")
CASES = {
    "simulated run": Case("hetsim", (*SIMULATED, RUN), exists("run/.config.yaml.unfinished")),
    "simulated run, saved": Case("hetsim", (*SIMULATED, SAVED, RUN), exists("run/.config.yaml.unfinished"), terminated=STOPPED),
    "simulated run, two processes": Case("hetsim", (*TRAINED, RUN), exists("run/.config.yaml.unfinished")),
    "real run": Case("hetsim", (*REAL, RUN), exists("run/.config.yaml.unfinished")),
    "real run, all-reduce": Case("hetsim", (*REAL, "method=ssgd", RUN), exists("run/.config.yaml.unfinished")),
    "real run, saved": Case("hetsim", (*REAL, SAVED, RUN), exists("run/.config.yaml.unfinished"), terminated=STOPPED),
    "sweep": Case("hetsim", (*SWEEP, "budget.updates=1000000000", "method=asgd,dc_asgd"), exists("sweep/*/.config.yaml.unfinished")),
    "sweep, joblib": Case(
        "hetsim",
        (*SWEEP, "budget.updates=3000", "seed=range(0,100)", "method=asgd,ssgd", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
        exists("sweep/*/summary.json"),
    ),
    "sweep, joblib begins": Case("hetsim", (*SWEEP, LAST, "seed=range(0,100)", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"), pooled),
    "sweep, submitit": Case(
        "hetsim",
        (*SWEEP, "budget.updates=1000000000", "method=asgd,dc_asgd", "hydra/launcher=submitit_local"),
        exists("sweep/*/.config.yaml.unfinished"),
    ),
    "sweep, Ray": Case(
        "hetsim",
        (*SWEEP, "budget.updates=3000", "seed=range(0,100)", "method=asgd,ssgd", "hydra/launcher=ray", "hydra.launcher.n_jobs=2"),
        exists("sweep/*/summary.json"),
    ),
    "sweep, Ray begins": Case("hetsim", (*SWEEP, LAST, "seed=range(0,100)", "hydra/launcher=ray"), ray_starts),
    "advice": Case(
        "hetsim-advise",
        ("cluster=mixed8", "budget.epochs=3", "--processes=2"),
        told("training plain DDP"),
        terminated=(0, "training"),
    ),
    "search": Case(
        "hetsim-search",
        (*SIMULATED, "learning_rate=0.1,0.2", "--objective=seconds", "--trials=2", "--folder=search"),
        exists("search/*/.config.yaml.unfinished"),
    ),
    "search, two processes": Case(
        "hetsim-search",
        (*SIMULATED, "learning_rate=0.1,0.2", "--objective=seconds", "--trials=2", "--folder=search", "--processes=2"),
        exists("search/*/.config.yaml.unfinished"),
    ),
    "search, Ray": Case(
        "hetsim-search",
        (*SIMULATED, "learning_rate=0.1,0.2", "--objective=seconds", "--trials=2", "--folder=search", "--engine=ray", "--processes=2"),
        exists("search/*/.config.yaml.unfinished"),
    ),
    "launch": Case("hetsim-launch", ("--processes", "5", "--", *REAL, RUN), exists("run/.config.yaml.unfinished"), terminated=UNSAVED),
    "launch, saved": Case(
        "hetsim-launch", ("--processes", "5", "--", *REAL, SAVED, RUN), exists("run/.config.yaml.unfinished"), terminated=STOPPED
    ),
    "calibrate": Case("hetsim-calibrate", ("c.yaml", "cluster=uniform4", "--seconds=100"), measures),
    "ddp-check": Case("hetsim-ddp-check", ("script.py",), exists("began")),
    "methods": Case("hetsim-methods", (), blocked),
    "table": Case("hetsim-table", ("sweep",), blocked, before=(*SWEEP, LAST, "method=ssgd,asgd")),
    "compare": Case("hetsim-compare", ("run", "run"), blocked, before=(*SHORT, LAST, "method=ssgd", RUN)),
    "report": Case("hetsim-report", ("run", "--perfetto", "run.pftrace"), blocked, before=(*SHORT, LAST, "method=ssgd", "trace=full", RUN)),
    "stragglers": Case("hetsim-stragglers", ("run",), blocked, before=(*SHORT, LAST, "method=ssgd", "trace=full", RUN)),
    "catalogue": Case("hetsim-catalogue", (), blocked),
}
CHEAP = {("simulated run", "interrupt twice"), ("sweep", "hang up"), ("search", "terminate"), ("methods", "interrupt")}
"""The cells that are in every `make test`."""


def temporary(folder: Path) -> Path:
    """The command's folder for temporary files, short enough for the names of sockets."""
    return folder.parent / f"t{crc32(str(folder).encode()):x}"


def started(case: Case, folder: Path) -> subprocess.Popen[bytes]:
    """The command, once it has come to its moment."""
    (folder / "script.py").write_text("import pathlib, time\npathlib.Path('began').touch()\ntime.sleep(10000)\n")
    temporary(folder).mkdir()
    if case.before:
        subprocess.run([sys.executable, "-m", "hetsim", *case.before], cwd=folder, check=True, capture_output=True)
    module = {"hetsim": "hetsim"}.get(case.script, f"hetsim.cli.{SCRIPTS[case.script].partition(':')[2]}")
    reading, writing = os.pipe()
    if case.moment is blocked:  # a pipe that is full
        os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)))
    with (folder / "err").open("wb") as errors:
        command = subprocess.Popen(
            [sys.executable, "-m", module, *case.words], cwd=folder, env={**os.environ, "TMPDIR": str(temporary(folder))}, stdout=writing,
            stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    os.close(writing)
    (folder / "pid").write_text(str(command.pid))
    wait_for(lambda: case.moment(folder) or command.poll() is not None)
    assert command.poll() is None, (folder / "err").read_text()
    os.set_blocking(reading, False)
    return command


KILL = {"kill -9": signal.SIGKILL}
OUTLIVE = {("sweep, submitit", "kill -9"), *((name, "kill -9") for name in ("sweep, Ray", "sweep, Ray begins", "search, Ray"))}
"""Jobs of submitit's own, which outlive a killed sweep as those of SLURM do, and agents of Ray's, which end a minute later."""
SLOWER = {("sweep, Ray begins", "hang up"): 40.0}
"""Ray waits half a minute for its own processes, which the signal has ended too."""


def rows(hows: Iterable[str], cheap: Collection[tuple[str, str]]) -> list[Any]:
    """Each command × each of these, with its marks; all but the cheap ones are long."""
    no_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'hetsim[ray]'")
    found = []
    for name, how in product(CASES, hows):
        if (name, how) in OUTLIVE:
            continue
        marks = [pytest.mark.long] * ((name, how) not in cheap) + [pytest.mark.real_start] * (name == "sweep, joblib begins")
        found.append(pytest.param(name, how, marks=[*marks, *[no_ray] * ("Ray" in name)], id=f"{name}-{how}"))
    return found


@pytest.mark.parametrize(("name", "how"), rows(SIGNALS, CHEAP))
@pytest.mark.realtime
def test_a_signal_ends_a_command_with_one_sentence(name: str, how: str, tmp_path: Path) -> None:
    case, (number, receivers, words) = CASES[name], SIGNALS[how]
    status = 128 + number
    if case.terminated is not None and how == "terminate":
        status, words = case.terminated
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the signal is ignored by this process and those that it starts, as under nohup")
    command = started(case, tmp_path)
    before = (tmp_path / "err").read_text().splitlines()

    for receiver in receivers:
        (os.killpg if receiver == "group" else os.kill)(command.pid, number)
    begun = time.monotonic()
    try:
        command.wait(60)
    finally:
        if command.returncode is None:
            os.killpg(command.pid, signal.SIGKILL)
    seconds = time.monotonic() - begun

    lines = (tmp_path / "err").read_text().splitlines()
    assert command.returncode == status, lines
    assert words in (lines[-1] if lines else ""), lines
    assert len(lines) - len(before) <= 1, lines
    assert seconds < SLOWER.get((name, how), ENDS_WITHIN) or os.getloadavg()[0] > 2 * (os.cpu_count() or 1), seconds
    wait_for(lambda: not family(command.pid))
    assert not list(tmp_path.rglob(".*.unfinished"))
    assert not [path for path in temporary(tmp_path).iterdir() if not path.name.startswith("torchinductor")]


def alive(command: int, folder: Path) -> set[int]:
    """The processes of a command: those of its session, and those that began in this folder."""
    found = set(family(command))
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if path.readlink().is_relative_to(folder):
                found.add(int(path.parent.name))
    return found


NEXT = ("backend=dist", "workload=quadratic", "pictures=false", "trace=none", "cluster=uniform4", "method=ssgd", LAST, "hydra.run.dir=next")


@pytest.mark.parametrize(("name", "how"), rows(KILL, {("methods", "kill -9"), ("search", "kill -9")}))
@pytest.mark.realtime
def test_a_killed_command_leaves_no_process_and_the_next_start_removes_its_folders(name: str, how: str, tmp_path: Path) -> None:
    """By `kill -9`, at which nothing of the command's own runs."""
    command = started(CASES[name], tmp_path)

    os.kill(command.pid, KILL[how])
    command.wait()
    try:
        wait_for(lambda: not alive(command.pid, tmp_path), 30)
    finally:
        for left in alive(command.pid, tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)

    variables = {**os.environ, "TMPDIR": str(temporary(tmp_path))}
    subprocess.run([sys.executable, "-m", "hetsim", *NEXT], cwd=tmp_path, check=True, capture_output=True, env=variables)
    assert not [path.name for path in temporary(tmp_path).iterdir() if path.name.startswith(("hetsim-", "pymp-"))]


def test_each_command_is_interrupted() -> None:
    assert {case.script for case in CASES.values()} == set(SCRIPTS)


def test_a_command_is_interrupted_while_it_is_imported(tmp_path: Path) -> None:
    """The import of PyTorch takes seconds, in which users change their minds."""
    code = (
        "import hetsim.cli.scripts as scripts, os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'hetsim.cli.search': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "scripts.search()\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (130, "hetsim-search: interrupted\n")


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As `nohup` asks for."""
    code = "import os, signal\nfrom hetsim.cli.ending import raise_at_signals\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    code += "raise_at_signals()\nos.kill(os.getpid(), signal.SIGHUP)\nprint('goes on')\n"

    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True).stdout == "goes on\n"


def test_an_end_that_takes_too_long_is_ended_by_force(tmp_path: Path) -> None:
    """With the processes that it has started."""
    code = (
        "import os, signal, subprocess, time\nfrom hetsim.cli import ending\nending.LAST_SECONDS = 0.1\nending.raise_at_signals()\n"
        "child = subprocess.Popen(['sleep', '1000'])\nprint(child.pid, flush=True)\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\nexcept KeyboardInterrupt:\n    child.wait()\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    assert ended.returncode == 143
    wait_for(lambda: not Path(f"/proc/{int(ended.stdout)}").exists())
