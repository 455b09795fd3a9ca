"""A sweep does what Hydra's own sweeper and launchers would do, with less around each run."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

from hetsim.cli import main
from hetsim.config.guard import provenance
from hetsim.sweeps import basic_launcher

pytestmark = pytest.mark.slow

TINY = ("-m", "workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false")


def sweep(monkeypatch: pytest.MonkeyPatch, folder: Path, *typed: str) -> int:
    """Exit status of a sweep into this folder."""
    return exit_status(monkeypatch, "hetsim", main.main, *TINY, f"hydra.sweep.dir={folder}", *typed)


def contents(folder: Path) -> dict[str, Any]:
    """All that a sweep has left, but for the seconds that it took."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "multirun.yaml":
            text = path.read_text().replace(str(folder), "FOLDER")
            found[str(path.relative_to(folder))] = {**json.loads(text), "wall_seconds": 0} if path.name == "summary.json" else text
    return found


NAMED = "hydra.sweep.subdir=${method}/${hydra:job.num}-${seed}-${hydra.job.override_dirname}"


@pytest.mark.parametrize(
    "typed",
    [
        ("method=ssgd,asgd", "seed=0,1", "allocation=fixed,even"),
        ("method=ssgd,asgd", "seed=${threads}", "++new=1", NAMED),
        ("seed=0,1", "batch_size=3,64", "hydra.output_subdir=.hydra"),
        ("seed=0,1", "hydra.sweeper.max_batch_size=1", "learning_rate=${momentum}", NAMED),
    ],
    ids=["choices", "names", "Hydra's own files", "batches"],
)
@pytest.mark.sampled(2)
def test_a_sweep_leaves_what_hydras_own_would_leave(
    typed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders, files and what is printed."""
    ours, hydras = tmp_path / "a", tmp_path / "b"
    status = sweep(monkeypatch, ours, *typed)
    told = capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(main, "own_plugins", contextlib.nullcontext)
        patch.setattr(provenance, "quickly_composed", lambda *_: None)
        assert sweep(patch, hydras, *typed) == status
    expected = capsys.readouterr()

    assert contents(ours) == contents(hydras)
    assert (told.out, told.err) == (expected.out.replace(os.path.relpath(hydras), os.path.relpath(ours)), expected.err)


def test_a_finished_run_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By its config, if its folder has the name that hetsim gives it; else the run itself finds out that it is there."""
    typed = ("method=ssgd,asgd", "seed=0,1", "learning_rate=0.1,0.2")
    assert sweep(monkeypatch, tmp_path / "a", *typed) == 0
    assert sweep(monkeypatch, tmp_path / "b", *typed, NAMED) == 0
    started: list[str] = []
    execute = basic_launcher.execute

    def counted(*parts: Any, **more: Any) -> Any:
        started.append(" ".join(parts[3]))
        return execute(*parts, **more)

    monkeypatch.setattr(basic_launcher, "execute", counted)
    capsys.readouterr()
    assert sweep(monkeypatch, tmp_path / "a", *typed[:1], "seed=0,1,2", *typed[2:]) == 0
    assert [word.split("seed=")[1] for word in started] == [f"2 learning_rate={rate}" for rate in (0.1, 0.2)] * 2
    assert "12 runs (8 were there already)" in capsys.readouterr().out
    started.clear()
    assert sweep(monkeypatch, tmp_path / "b", *typed, NAMED) == 0
    assert len(started) == 8
    assert "8 runs (8 were there already)" in capsys.readouterr().out


def test_a_finished_run_behind_a_link_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not a run of this sweep, whatever the link leads to."""
    assert sweep(monkeypatch, tmp_path / "a", "seed=0") == 0
    (run,) = (tmp_path / "a").glob("dbs_sgd-*")
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    capsys.readouterr()

    assert sweep(monkeypatch, tmp_path / "a", "seed=0") == 1
    assert "is a link or a pipe, and would be written through: remove it" in capsys.readouterr().err


def test_a_choice_that_cannot_be_composed_is_said_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Hydra checks a batch before it launches it."""
    assert sweep(monkeypatch, tmp_path / "a", "seed=0,1", "method=ssgd,sgd") == 1
    told = capsys.readouterr()

    assert told.err.startswith("hetsim: error: method=sgd is not a choice: take abs_sgd, ")
    assert told.out == ""
    assert not list(tmp_path.rglob("summary.json"))
