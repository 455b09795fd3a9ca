"""A sweep may have a grid of its own for each method."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from worlds import exit_status

from hetsim.cli.main import main
from hetsim.files.config_file import read_config
from hetsim.files.identity import typed_overrides

pytestmark = pytest.mark.slow

TINY = ("-m", "workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false")
RATES = "+grid={ssgd: {learning_rate: [0.1, 0.2]}, asgd: {learning_rate: [0.01], momentum: '0,0.9', cluster: {name: [mine]}}}"


def runs(folder: Path) -> list[tuple[object, ...]]:
    """Method, seed, rate, momentum and cluster of each finished run."""
    configs = [read_config(path.parent) for path in folder.glob("*/summary.json")]
    return sorted(
        (entry["method"], entry["seed"], entry["learning_rate"], entry["momentum"], entry["cluster"]["name"]) for entry in configs
    )


def test_each_method_is_swept_over_its_own_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They multiply with the other keys, a method that the grid does not name has none of it, and what is typed wins."""
    assert exit_status(monkeypatch, "hetsim", main, *TINY, "method=ssgd,asgd,dana", "seed=0,1", RATES, f"hydra.sweep.dir={tmp_path}") == 0
    typed = ("method=asgd", "learning_rate=0.5", RATES, f"hydra.sweep.dir={tmp_path / 'typed'}")
    assert exit_status(monkeypatch, "hetsim", main, *TINY, *typed) == 0

    usual = read_config(next(tmp_path.glob("dana-*")))
    assert runs(tmp_path) == sorted(
        [
            *(("ssgd", seed, rate, 0.9, "mixed4") for seed in (0, 1) for rate in (0.1, 0.2)),
            *(("asgd", seed, 0.01, momentum, "mine") for seed in (0, 1) for momentum in (0, 0.9)),
            *(("dana", seed, usual["learning_rate"], usual["momentum"], "mixed4") for seed in (0, 1)),
        ]
    )
    assert runs(tmp_path / "typed") == [("asgd", 0, 0.5, momentum, "mine") for momentum in (0, 0.9)]


def test_a_run_of_a_grid_is_the_run_that_could_have_been_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder, its identity and its typed words; so the runs of one command are found by the other."""
    typed = (*TINY, "method=ssgd", f"hydra.sweep.dir={tmp_path}")
    assert exit_status(monkeypatch, "hetsim", main, *typed, RATES) == 0
    (run, _) = sorted(tmp_path.glob("ssgd-*"))
    words = typed_overrides(run)
    assert exit_status(monkeypatch, "hetsim", main, *typed, "learning_rate=0.1,0.2") == 0

    assert "2 runs (2 were there already)" in capsys.readouterr().out
    assert words["learning_rate"] in ("0.1", "0.2")
    assert "grid" not in words


def test_a_grid_may_be_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Typed words change it; it may vary what a file may vary, and a text in it is no more than a text."""
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "mine.yaml").write_text(
        "ssgd:\n  learning_rate: [0.1, 0.2]\n  cluster.name: ['it''s, [x]']\nasgd: {seed: 'range(0,2)'}\n"
    )
    typed = (*TINY, "--config-dir", tmp_path, "+grid=mine", f"hydra.sweep.dir={tmp_path / 'sweep'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed, "method=ssgd,asgd", "grid.asgd.seed=[7]") == 0
    found = [read_config(path.parent) for path in (tmp_path / "sweep").glob("*/summary.json")]
    assert sorted((entry["method"], entry["seed"], entry["cluster"]["name"]) for entry in found) == [
        ("asgd", 7, "mixed4"), ("ssgd", 0, "it's, [x]"), ("ssgd", 0, "it's, [x]")
    ]  # fmt: skip
    capsys.readouterr()

    for key, value in {"trust": "[[os]]", "hydra.sweep.dir": "[/tmp]", "download": "[true]", "workload.download": "[true]"}.items():
        (tmp_path / "grid" / "mine.yaml").write_text(f"ssgd:\n  {key}: {value}\n")
        assert exit_status(monkeypatch, "hetsim", main, *typed, "method=ssgd") == 1
        assert f"grid.ssgd.{key} cannot be varied in a grid" in capsys.readouterr().err
    (tmp_path / "grid" / "mine.yaml").write_text("ssgd: {data_root: ['${oc.select:x}']}\n")
    assert exit_status(monkeypatch, "hetsim", main, *typed, "method=ssgd") == 1
    assert "mine.yaml has a reference in ssgd.data_root.0 that is no ${key}" in capsys.readouterr().err


BAD = {
    "+grid=[1]": "grid must map each method to its keys, not [1]",
    "+grid={sgd: {seed: [1]}}": "grid.sgd names no method",
    "+grid={ssgd: 1}": "grid.ssgd must map keys to lists of values, not 1",
    "+grid={ssgd: {seed: []}}": "grid.ssgd.seed has no values: list some",
    "+grid={ssgd: {method: [asgd]}}": "grid.ssgd.method cannot be varied in a grid",
    "+grid={ssgd: {learning_rate: 'interval(0,1)'}}": "grid.ssgd.learning_rate must be a list of values",
    "+grid={ssgd: {seed: [1]}},{asgd: {seed: [2]}}": "lists several grids: name one",
    "+grid={ssgd: {seed: 'range(0,2000000)'}}": "the sweep would have 2000000 runs: at most 1000000 can be listed",
    "+grid=nothing": "grid must map each method to its keys, not 'nothing'",
    "grid={ssgd: {seed: [1]}}": "grid",
}


@pytest.mark.parametrize("word", BAD)
def test_a_grid_that_is_none_is_one_sentence(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is run."""
    assert exit_status(monkeypatch, "hetsim", main, *TINY, word, "method=ssgd", f"hydra.sweep.dir={tmp_path / 'sweep'}") == 1

    told = capsys.readouterr().err
    assert re.match(r"hetsim: error: [^\n]*\n\Z", told)
    assert BAD[word] in told
    assert not list(tmp_path.rglob("summary.json"))


def test_a_grid_without_a_sweep_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A single run varies nothing."""
    assert exit_status(monkeypatch, "hetsim", main, *TINY[1:], RATES) == 1
    assert "grid says what a sweep varies for each method, by hydra/sweeper=basic: add -m" in capsys.readouterr().err
