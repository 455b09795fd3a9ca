"""The command, its forkserver or a rank killed at any moment: no process is left, and a folder holds a whole run or nothing of it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from running import LONG, family, hetsim, wait_for
from worlds import exit_status

from hetsim import run
from hetsim.cli.main import main
from hetsim.distributed.launch import local as launch
from hetsim.files import writing as files
from hetsim.files.folder import FILES, finish_run
from hetsim.files.writing import unfinished

pytestmark = pytest.mark.slow

DRAWN = ("-m", "hetsim", "backend=dist", "workload=quadratic", "budget.epochs=4", "trace=full")

WRITTEN = tuple(name for name in FILES if name not in ("weights.safetensors", "per_worker.parquet"))
"""The files of a run that does not save its weights."""


def contents(folder: Path) -> dict[str, bytes]:
    """What is in the folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def forkserver_of(parent: int) -> list[int]:
    """The process id of the forkserver that this process has started, if it has."""
    found = []
    for process in family(parent):
        try:
            command = Path(f"/proc/{process}/cmdline").read_text()
            above = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if "multiprocessing.forkserver" in command and above == parent:
            found.append(process)
    return found


@pytest.mark.parametrize("begun", ["config.yaml", "timeline.png", "curve.png"])
@pytest.mark.sampled(1)
def test_a_command_that_is_killed_leaves_the_earlier_run_as_it_was(begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its ranks run, or while its leader draws: none of the run's files has its name before all of them are complete."""
    assert (
        exit_status(
            monkeypatch, "hetsim", main, "workload=quadratic", "budget.epochs=1", "trace=full", f"hydra.run.dir={tmp_path / 'earlier'}"
        )
        == 0
    )
    before, folder = contents(tmp_path / "earlier"), tmp_path / "run"
    command = hetsim(*DRAWN, "seed=1", folder=folder)
    for name in ("config.yaml", begun):
        while not unfinished(folder / name).exists():
            assert command.poll() is None, command.stderr.read()  # type: ignore[union-attr]
            time.sleep(0.001)
        shutil.copytree(tmp_path / "earlier", folder, dirs_exist_ok=True)  # a folder that has another run is refused at the start

    command.kill()
    _, told = command.communicate(timeout=180)
    wait_for(lambda: not family(command.pid))

    assert set(before) == set(WRITTEN)
    assert contents(folder) == before
    assert "Traceback" not in told


@pytest.mark.real_start
def test_a_forkserver_that_is_killed_while_the_ranks_start_is_one_sentence(tmp_path: Path) -> None:
    """It imports for seconds before it forks the first. One that is killed before it is asked for any is replaced."""
    command = hetsim(*LONG, folder=tmp_path / "run")
    wait_for(lambda: forkserver_of(command.pid))
    time.sleep(0.2)

    os.kill(forkserver_of(command.pid)[0], signal.SIGKILL)
    _, told = command.communicate(timeout=180)
    wait_for(lambda: not family(command.pid))

    assert command.returncode == 1
    assert told == "hetsim: error: the process that forks one for each rank was killed, perhaps for lack of memory: the run is lost\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.real_start
def test_a_run_outlives_its_forkserver(tmp_path: Path) -> None:
    """The ranks that it has forked need it no more."""
    command = hetsim(*DRAWN, folder=tmp_path)
    wait_for(unfinished(tmp_path / "config.yaml").exists)

    os.kill(forkserver_of(command.pid)[0], signal.SIGKILL)
    _, told = command.communicate(timeout=120)
    wait_for(lambda: not family(command.pid))

    assert command.returncode == 0
    assert "Traceback" not in told
    assert set(contents(tmp_path)) == set(WRITTEN)


def test_ranks_whose_forkserver_was_killed_are_ended_all_the_same() -> None:
    """Multiprocessing takes them for dead; a sweep would go on beside them."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process: Any = context.Process(target=_says_that_it_is_there_and_sleeps, args=(sender,), daemon=True)
    process.start()
    sender.close()
    assert receiver.recv() == "here"
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
    process.join()

    launch._end([launch.ForkedRank(rank=0, process=process, pipe=receiver)])

    assert process.exitcode == launch.UNKNOWN_STATUS
    with pytest.raises(EOFError):
        receiver.recv()


def _says_that_it_is_there_and_sleeps(sender: Any) -> None:
    sender.send("here")
    time.sleep(1000)


def test_no_summary_stands_beside_files_that_are_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs in one folder: the earlier summary goes before the first new name, the new one comes last."""
    for name in FILES:
        (tmp_path / name).write_text("earlier")
    written = [name for name in WRITTEN if name != "timeline.png"]
    for name in written:
        with files.begun(tmp_path / name) as file:
            file.write(b"new")
    seen, replace = [], os.replace

    def looked(source: Path, to: Path) -> None:
        seen.append((to.name, (tmp_path / "summary.json").exists()))
        replace(source, to)

    monkeypatch.setattr(files.os, "replace", looked)
    finish_run(tmp_path, written)

    assert seen == [(name, False) for name in ("trace.parquet", "curve.png", "curve.csv", "config.yaml", "summary.json")]
    assert contents(tmp_path) == dict.fromkeys(written, b"new")


def test_what_a_killed_run_has_left_is_not_taken_for_a_file_of_the_next_one(tmp_path: Path) -> None:
    """The next run may write fewer files than the killed one was about to."""
    for name in FILES:
        unfinished(tmp_path / name).write_text("of a killed run")

    run("method=ssgd", "workload=phantom", "budget.epochs=null", "budget.updates=2", "trace=none", "pictures=false", folder=tmp_path)

    assert contents(tmp_path).keys() == {"config.yaml", "curve.csv", "summary.json"}


OWN = '''
"""An admission that forgets to release workers."""
from dataclasses import dataclass
from hetsim.policies.admission import Decision, EveryGradient

@dataclass(frozen=True)
class NeverReleases(EveryGradient):
    def arrived(self, state, contribution):
        return None, Decision(apply=(contribution,))
'''


def test_an_admission_of_ones_own_that_releases_nobody_ends_with_who_waits_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On real processes, and no folder is left."""
    (tmp_path / "my_admissions.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    typed = ("backend=dist", "method=asgd", "workload=quadratic", "admission._target_=my_admissions.NeverReleases", "trust=[my_admissions]")

    status = exit_status(monkeypatch, "hetsim", main, *typed, f"hydra.run.dir={tmp_path / 'run'}")

    waits = "; ".join(f"rank {rank} waits for a message from rank 4" for rank in range(4))
    assert status == 1
    assert capfd.readouterr().err == (f"hetsim: error: the run can make no progress: {waits}; rank 4 waits for a message from anyone\n")
    assert not (tmp_path / "run").exists()
