"""A full disk: one sentence that names the file and what to do; nothing unfinished is left, and nothing written before is lost."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

from hetsim.cli.main import main
from hetsim.config.errors import sentence
from hetsim.files.writing import unfinished
from hetsim.runtime.recording import trace

FULL = Path("/dev/full")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")]

QUICK = ("workload=quadratic", "budget.epochs=1", "trace=full")
REMEDY = "cannot be written (No space left on device): free some space, or set hydra.run.dir or hydra.sweep.dir to a folder on another disk"
FILES = ("config.yaml", "trace.parquet", "timeline.png", "curve.png", "curve.csv", "summary.json")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim` with these arguments."""
    return exit_status(monkeypatch, "hetsim", main, *arguments)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Leaves no space for a file of this process, under its temporary name."""
    opened = Path.open

    def leave_no_space(path: Path) -> None:
        def open_(self: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
            return opened(FULL, "r+b") if self == unfinished(path) and mode == "xb" else opened(self, mode, *more, **options)

        monkeypatch.setattr(Path, "open", open_)

    return leave_no_space


def contents(folder: Path) -> dict[str, bytes]:
    """What is in the folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.sampled(3)
def test_a_file_that_finds_no_space_is_named_and_an_earlier_run_stays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], full: Callable[[Path], None]
) -> None:
    """Whichever file it is: the files of the earlier run in the folder are as they were, and there are no others."""
    assert command(monkeypatch, *QUICK, f"hydra.run.dir={tmp_path}") == 0
    before = contents(tmp_path)
    capfd.readouterr()
    full(tmp_path / name)

    status = command(monkeypatch, *QUICK, f"hydra.run.dir={tmp_path}")

    assert status == 1
    assert capfd.readouterr().err == f"hetsim: error: {tmp_path / name} {REMEDY}\n"
    assert set(before) == set(FILES)
    assert contents(tmp_path) == before


@pytest.mark.long
def test_processes_that_find_no_space_leave_an_earlier_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files may not grow as large as the largest one of the earlier run."""
    assert command(monkeypatch, *QUICK, "backend=dist", f"hydra.run.dir={tmp_path}") == 0
    before = contents(tmp_path)
    most = max(map(len, before.values())) // 2
    typed = [sys.executable, "-m", "hetsim", *QUICK, "backend=dist", f"hydra.run.dir={tmp_path}"]

    ended = subprocess.run(
        typed,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )

    assert ended.returncode == 1
    assert re.fullmatch(rf"hetsim: error: {tmp_path}/\w+\.\w+ cannot be written \(File too large\): free some space, .*\n", ended.stderr)
    assert contents(tmp_path) == before


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from somebody else may hold one that leads to a file of the user's."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.write_text("precious")
    for name in FILES:
        unfinished(theirs / name).symlink_to(mine)

    assert command(monkeypatch, *QUICK, f"hydra.run.dir={theirs}") == 0

    assert mine.read_text() == "precious"
    assert all(not path.is_symlink() for path in theirs.iterdir())


def test_a_trace_that_finds_no_space_during_the_run_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full: Callable[[Path], None]
) -> None:
    """Its first rows are written long before the run's end; the folder that was made for the run is gone."""
    folder = tmp_path / "run"
    full(folder / "trace.parquet")
    typed = ("workload=phantom", "method=asgd", "budget.epochs=null", "budget.updates=1000000", "trace=full", "pictures=false")

    assert command(monkeypatch, *typed, f"hydra.run.dir={folder}") == 1
    assert capsys.readouterr().err == f"hetsim: error: {folder / 'trace.parquet'} {REMEDY}\n"
    assert not folder.exists()


def test_a_sweep_reports_a_full_disk_although_its_error_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full: Callable[[Path], None]
) -> None:
    """On standard error at once, and after the last run."""
    folder = tmp_path / "one"
    (folder / "error.txt").mkdir(parents=True)
    full(folder / "summary.json")

    status = command(monkeypatch, "-m", *QUICK, "pictures=false", f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=one")

    told = f"{folder / 'summary.json'} {REMEDY}"
    assert status == 1
    assert capsys.readouterr().err == f"hetsim: error: {told}\nhetsim: 1 of 1 runs failed:\n  one: {told}\n"
    assert {path.name for path in folder.iterdir()} == {"error.txt"}


def test_a_run_of_a_sweep_that_failed_while_it_ran_has_an_error_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: Callable[[Path], None]
) -> None:
    """Although the run has removed its empty folder."""
    full(tmp_path / "one" / "config.yaml")

    assert command(monkeypatch, "-m", *QUICK, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=one") == 1
    assert (tmp_path / "one" / "error.txt").read_text() == f"{tmp_path / 'one' / 'config.yaml'} {REMEDY}\n"


def test_the_folder_of_temporary_files_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that does not lead writes a large part of a trace there."""
    monkeypatch.setattr(trace, "SpooledTemporaryFile", lambda **_: FULL.open("r+b", buffering=0))

    with trace.TracePart("full") as part, pytest.raises(OSError, match="No space left on device") as raised:
        part.close()

    remedy = REMEDY.replace("hydra.run.dir or hydra.sweep.dir", "TMPDIR")
    assert sentence(raised.value) == f"{tempfile.gettempdir()} {remedy}"


def test_a_leader_without_space_does_not_blame_the_rank_that_sent_its_rows(tmp_path: Path, full: Callable[[Path], None]) -> None:
    """What cannot be written was read well."""
    full(tmp_path / "trace.parquet")
    with trace.TracePart("full") as part:
        for row in range(10_000):  # more than a file's buffer
            part.record((row / 7, row / 3, 1, 0, row, 5, 0, 0))
        part.close()

        with trace.Trace(tmp_path, "full") as whole, pytest.raises(OSError, match="No space left on device") as raised:
            trace.append_received(whole, part.pieces(), rank=1)

    assert raised.value.filename == str(tmp_path / "trace.parquet")
    assert list(tmp_path.iterdir()) == []
