"""Two runs in one folder: a single run is refused at once, a sweep's run waits; who is killed locks nothing."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import LONG, family, hetsim, started, wait_for
from worlds import exit_status

from hetsim.cli.main import main
from hetsim.errors import RunFailed
from hetsim.files import lock

pytestmark = pytest.mark.slow

QUICK = ("workload=quadratic", "budget.epochs=1", "pictures=false", "trace=none")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim` with these arguments."""
    return exit_status(monkeypatch, "hetsim", main, *arguments)


def refusal(folder: Path) -> str:
    """What a user reads whose folder is in use."""
    return f"{folder} is in use by another run: set another hydra.run.dir, or wait for it to end"


def test_the_second_run_in_a_folder_is_refused_until_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one's files stay as they are; once it is killed, the folder is free."""
    first = hetsim(*LONG, folder=tmp_path)
    started(first, tmp_path)
    begun = {path.name for path in tmp_path.iterdir()}

    refused = command(monkeypatch, *QUICK, f"hydra.run.dir={tmp_path}")
    told, there = capsys.readouterr().err, {path.name for path in tmp_path.iterdir()}
    first.kill()
    first.communicate(timeout=180)
    wait_for(lambda: not family(first.pid))
    accepted = command(monkeypatch, *QUICK, f"hydra.run.dir={tmp_path}")

    assert (refused, told, there) == (1, f"hetsim: error: {refusal(tmp_path)}\n", begun)
    assert begun == {".config.yaml.unfinished"}
    assert accepted == 0


def test_a_folder_that_a_run_has_just_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a run that is refused nor one whose config is wrong removes it, although it is empty."""
    folder = tmp_path / "run"
    folder.mkdir()
    holds = os.open(folder, os.O_RDONLY)
    fcntl.flock(holds, fcntl.LOCK_EX)

    assert command(monkeypatch, *QUICK, f"hydra.run.dir={folder}") == 1
    assert command(monkeypatch, *QUICK, "batch_size=1", f"hydra.run.dir={folder}") == 1
    os.close(holds)

    assert capsys.readouterr().err.splitlines()[0] == f"hetsim: error: {refusal(folder)}"
    assert folder.exists()


def test_a_single_run_is_refused_where_a_sweep_runs_and_a_sweep_waits_for_a_single_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the sweep waited for it finds done."""
    entered: list[str] = []
    flock = fcntl.flock

    def run_first(descriptor: int, operation: int) -> None:
        """A single run has the folder first, and finishes. Once the sweep has it, another is refused."""
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):  # a file that is written
            flock(descriptor, operation)
            return
        if not entered:
            entered.append("sweep")
            assert operation == fcntl.LOCK_EX
            single = [sys.executable, "-m", "hetsim", *QUICK, f"hydra.run.dir={tmp_path / 'one'}"]
            assert subprocess.run(single, check=False).returncode == 0
        flock(descriptor, operation)
        if entered == ["sweep"] and operation == fcntl.LOCK_EX:
            entered.append("locked")
            with pytest.raises(RunFailed, match="is in use by another run"), lock.only_run_in(tmp_path / "one"):
                pass

    monkeypatch.setattr(lock.fcntl, "flock", run_first)
    status = command(monkeypatch, "-m", *QUICK, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=one")

    assert (status, entered) == (0, ["sweep", "locked"])
    assert "1 run (1 were there already) in" in capsys.readouterr().out


def test_a_lock_is_of_the_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails removes its empty folder: who waited for it locks the new one, so a third is refused."""
    folder, flock, asked = tmp_path / "run", fcntl.flock, []

    def removed_before(descriptor: int, operation: int) -> None:
        asked.append(operation)
        if len(asked) == 1:
            folder.rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", removed_before)

    with lock.folder_lock(folder):
        assert len(asked) == 2
        with pytest.raises(RunFailed, match="is in use by another run"), lock.only_run_in(folder):
            pass


def torchrun(num_processes: int, *typed: str) -> subprocess.CompletedProcess[str]:
    """A whole command under torchrun."""
    command: list[Any] = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_processes, "-m", "hetsim"]
    return subprocess.run([*map(str, command), *typed], capture_output=True, text=True, timeout=300, check=False)


TWO = ("backend=dist", *QUICK, "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]")


def test_under_torchrun_the_leader_alone_is_refused_and_torchruns_report_says_why(tmp_path: Path) -> None:
    """The server leads, the last rank; standard error has hetsim's own line once."""
    holds = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holds, fcntl.LOCK_EX)

    ended = torchrun(3, *TWO, "method=asgd", f"hydra.run.dir={tmp_path}")
    os.close(holds)

    assert ended.returncode == 1
    assert ended.stderr.count(f"hetsim: error: {refusal(tmp_path)}\n") == ended.stderr.count("hetsim: error: ") == 1
    assert ended.stderr.partition("Root Cause")[2].count(f"  traceback : {refusal(tmp_path)}\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_all_ranks_refuse_stands_in_torchruns_report_of_each(tmp_path: Path) -> None:
    """And once on standard error."""
    ended = torchrun(2, *TWO, "method=ssgd", "batch_size=1", f"hydra.run.dir={tmp_path / 'run'}")

    told = "batch_size=1 is less than one sample for each of 2 workers: raise it"
    assert ended.returncode == 1
    assert ended.stderr.count(f"hetsim: error: {told}\n") == ended.stderr.count("hetsim: error: ") == 1
    assert ended.stderr.partition("Root Cause")[2].count(f"  traceback : {told}\n") == 1
    assert "To enable traceback" not in ended.stderr
    assert not list(tmp_path.glob("run/*"))  # torchrun may end a rank before it removes the folder that Hydra has made


@pytest.mark.long
def test_a_sweep_under_torchrun_runs(tmp_path: Path) -> None:
    """Its ranks share each run's folder, so they must not wait for one another's lock."""
    ended = torchrun(2, "-m", *TWO, "method=ssgd", "seed=0,1", f"hydra.sweep.dir={tmp_path}")

    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("*/summary.json"))) == 2
