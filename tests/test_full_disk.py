"""A full disk: one sentence that names the file and what to do; nothing unfinished is left, and nothing written before is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from worlds import exit_status

from hetsim.cli import job
from hetsim.cli.errors import sentence
from hetsim.cli.main import main
from hetsim.runtime import trace
from hetsim.runtime.files import unfinished

FULL = Path("/dev/full")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")]

QUICK = ("workload=quadratic", "budget.epochs=1", "trace=full")
REMEDY = "cannot be written (No space left on device): free some space, or set hydra.run.dir or hydra.sweep.dir to a folder on another disk"
FILES = ("config.yaml", "trace.parquet", "timeline.png", "curve.png", "curve.csv", "summary.json")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim` with these arguments."""
    job.failures.clear()
    return exit_status(monkeypatch, "hetsim", main, *arguments)


def contents(folder: Path) -> dict[str, bytes]:
    """What is in the folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("backend", "name"),
    [*(("sim", name) for name in FILES), *(("dist", name) for name in ("trace.parquet", "curve.png", "summary.json"))],
)
def test_a_file_that_finds_no_space_is_named_and_an_earlier_run_stays(
    backend: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whichever file it is: the files of the earlier run in the folder are as they were, and there are no others."""
    assert command(monkeypatch, *QUICK, f"hydra.run.dir={tmp_path}") == 0
    before = contents(tmp_path)
    capfd.readouterr()
    unfinished(tmp_path / name).symlink_to(FULL)

    status = command(monkeypatch, *QUICK, "seed=1", f"backend={backend}", f"hydra.run.dir={tmp_path}")

    assert status == 1
    assert capfd.readouterr().err == f"hetsim: error: {tmp_path / name} {REMEDY}\n"
    assert set(before) == set(FILES)
    assert contents(tmp_path) == before


def test_a_trace_that_finds_no_space_during_the_run_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first rows are written long before the run's end; the folder that was made for the run is gone."""
    folder = tmp_path / "run"
    folder.mkdir()
    unfinished(folder / "trace.parquet").symlink_to(FULL)
    typed = ("workload=phantom", "method=asgd", "budget.epochs=null", "budget.updates=1000000", "trace=full", "pictures=false")

    assert command(monkeypatch, *typed, f"hydra.run.dir={folder}") == 1
    assert capsys.readouterr().err == f"hetsim: error: {folder / 'trace.parquet'} {REMEDY}\n"
    assert not folder.exists()


def test_a_sweep_reports_a_full_disk_although_its_error_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error at once, and after the last run."""
    folder = tmp_path / "one"
    (folder / "error.txt").mkdir(parents=True)
    unfinished(folder / "summary.json").symlink_to(FULL)

    status = command(monkeypatch, "-m", *QUICK, "pictures=false", f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=one")

    told = f"{folder / 'summary.json'} {REMEDY}"
    assert status == 1
    assert capsys.readouterr().err == f"hetsim: error: {told}\nhetsim: 1 of 1 runs failed:\n  one: {told}\n"
    assert {path.name for path in folder.iterdir()} == {"error.txt"}


def test_a_run_of_a_sweep_that_failed_while_it_ran_has_an_error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the run has removed its empty folder."""
    (tmp_path / "one").mkdir()
    unfinished(tmp_path / "one" / "config.yaml").symlink_to(FULL)

    assert command(monkeypatch, "-m", *QUICK, f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=one") == 1
    assert (tmp_path / "one" / "error.txt").read_text() == f"{tmp_path / 'one' / 'config.yaml'} {REMEDY}\n"


def test_the_folder_of_temporary_files_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that does not lead writes a large part of a trace there."""
    monkeypatch.setattr(trace, "SpooledTemporaryFile", lambda **_: FULL.open("r+b", buffering=0))

    with trace.TracePart("full") as part, pytest.raises(OSError, match="No space left on device") as raised:
        part.close()

    remedy = REMEDY.replace("hydra.run.dir or hydra.sweep.dir", "TMPDIR")
    assert sentence(raised.value) == f"{tempfile.gettempdir()} {remedy}"


def test_a_leader_without_space_does_not_blame_the_rank_that_sent_its_rows(tmp_path: Path) -> None:
    """What cannot be written was read well."""
    unfinished(tmp_path / "trace.parquet").symlink_to(FULL)
    with trace.TracePart("full") as part:
        for row in range(10_000):  # more than a file's buffer
            part.record((row / 7, row / 3, 1, 0, row, 5, 0, 0))
        part.close()

        with trace.Trace(tmp_path, "full") as whole, pytest.raises(OSError, match="No space left on device") as raised:
            trace.append_received(whole, part.pieces(), rank=1)

    assert raised.value.filename == str(tmp_path / "trace.parquet")
    assert list(tmp_path.iterdir()) == []
