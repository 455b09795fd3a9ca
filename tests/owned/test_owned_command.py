"""Owned data as a user asks for them: the command, the summary, and one sentence for what cannot be."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest

from hetsim.cli.main import main
from hetsim.files.schema import check_kinds
from hetsim.runtime.recording.outcome import PoolUse
from hetsim.trust.shipped import configs

pytestmark = pytest.mark.slow

PAGE = pages.text("owned-data.md")
DIGITS = ("workload=digits", "method=asgd", "data=owned", "partition=dirichlet", "partition.alpha=0.1", "pictures=false")


def hetsim(monkeypatch: pytest.MonkeyPatch, *typed: object) -> int:
    """The command's exit status."""
    monkeypatch.setattr(sys, "argv", ["hetsim", *map(str, typed)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def summary(folder: Path) -> dict[str, Any]:
    """What a run wrote, as every reader of it checks it."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    check_kinds(folder / "summary.json", found)
    return found


@pytest.mark.parametrize("backend", ["sim", "dist"])
def test_the_summary_says_who_counted_and_which_classes_suffered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str):
    """Shares of the weight by rank, accuracy by class, and what became of each pool."""
    assert hetsim(monkeypatch, *DIGITS, f"backend={backend}", "budget.epochs=1", f"hydra.run.dir={tmp_path}") == 0

    told = summary(tmp_path)
    assert sum(told["weight_shares"]) == pytest.approx(1)
    assert len(told["weight_shares"]) == 4
    assert len(told["class_accuracy"]) == 10
    assert [pool["samples"] for pool in told["pools"]] == [360, 359, 359, 359]
    assert sum(pool["epochs"] * pool["samples"] for pool in told["pools"]) == pytest.approx(1437)
    assert {(pool["closed"], pool["remainder"]) for pool in told["pools"]} == {(False, 0)}


def test_shared_data_have_classes_and_shares_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And no pools. The mean of the classes' accuracies, by how many there are of each, is the accuracy; a phantom has no classes."""
    assert (
        hetsim(monkeypatch, "workload=digits", "method=ssgd", "budget.epochs=2", "pictures=false", f"hydra.run.dir={tmp_path / 'a'}") == 0
    )
    assert (
        hetsim(monkeypatch, "workload=phantom", "method=ssgd", "budget.epochs=2", "pictures=false", f"hydra.run.dir={tmp_path / 'b'}") == 0
    )

    told, phantom = summary(tmp_path / "a"), summary(tmp_path / "b")
    from hetsim.workloads.data.digits import Digits

    tested = np.bincount(Digits(model="mlp").read().y_test)
    assert np.dot(tested, told["class_accuracy"]) / 360 == pytest.approx(told["final"]["test_accuracy"])
    last = 1  # of 2874 samples, 58 are left after eleven batches of 256: rank 0 takes them all
    assert told["weight_shares"] == pytest.approx([(11 / 4 + last) / 12, *[11 / 4 / 12] * 3])
    assert sum(phantom["weight_shares"]) == pytest.approx(1)
    assert (told["pools"], phantom["pools"], phantom["class_accuracy"]) == (None, None, None)


def archives(folder: Path, *sizes: int) -> list[Path]:
    """One for each worker; the i-th has labels i and i + 1."""
    paths = []
    for number, size in enumerate(sizes):
        x, y = np.random.default_rng(number).random((size, 6), dtype=np.float32), number + np.arange(size) % 2
        paths.append(folder / f"{number}.npz")
        np.savez(paths[-1], x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    return paths


def test_each_worker_has_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Four archives of unequal size for the four workers of mixed4."""
    named = f"workload.path=[{','.join(map(str, archives(tmp_path, 40, 30, 20, 10)))}]"
    typed = ("workload=arrays", named, "data=owned", "partition=by_file", "batch_size=8", "budget.epochs=2", "pictures=false")

    assert hetsim(monkeypatch, *typed, f"hydra.run.dir={tmp_path / 'run'}") == 0

    assert [pool["samples"] for pool in summary(tmp_path / "run")["pools"]] == [40, 30, 20, 10]


OWNED = ("workload=digits", "data=owned", "pictures=false")
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a partition of shared data": (("partition=even",), "partition would do nothing with data=shared"),
    "aligned epochs of shared data": (("epochs=aligned",), "epochs=aligned would do nothing with data=shared"),
    "no partition": (OWNED, "data=owned needs a partition"),
    "another word": (("data=mine",), "data must be shared or owned, not 'mine'"),
    "other epochs": ((*OWNED, "partition=even", "epochs=3"), "epochs must be independent or aligned, not 3"),
    "no labels": (
        (*OWNED, "workload=quadratic", "partition=dirichlet"),
        "partition=dirichlet goes by labels, but workload=quadratic has none",
    ),
    "no labels either": ((*OWNED, "workload=phantom", "partition=contiguous"), "partition=contiguous goes by labels, but workload=phantom"),
    "classes of none": ((*OWNED, "workload=quadratic", "partition=by_class"), "partition=by_class goes by labels"),
    "more classes than there are": (
        (*OWNED, "partition=by_class", "partition.classes=11"),
        "partition.classes=11 is more than the 10 classes",
    ),
    "classes of nobody": ((*OWNED, "partition=by_class"), "partition.classes=2 for each of 4 workers leaves some of the 10 classes"),
    "no classes": ((*OWNED, "partition=by_class", "partition.classes=0"), "partition.classes must be at least 1, not 0"),
    "fewer samples than workers": (
        (*OWNED, "partition=even", "+workload.num_samples=3"),
        "workload=digits has 3 training samples for 4 workers",
    ),
    "no alpha": ((*OWNED, "partition=dirichlet", "partition.alpha=0"), "partition.alpha must be a finite number above zero"),
    "a text for alpha": ((*OWNED, "partition=dirichlet", "partition.alpha=few"), "partition.alpha must be a number, not 'few'"),
    "an alpha of no law": ((*OWNED, "partition=dirichlet", "partition.alpha=1e-9"), "partition.alpha must be between 1e-06 and 1e"),
    "a key of no partition": (
        (*OWNED, "partition=even", "+partition.alpha=1"),
        "partition.alpha is not a key of hetsim.workloads.partition.Even",
    ),
    "no archives": ((*OWNED, "partition=by_file"), "partition=by_file takes an archive for each worker, but workload=digits has none"),
    "a partition that is none": (
        (*OWNED, "partition=others"),
        "partition=others is not a choice: take by_class, by_file, contiguous, dirichlet or even",
    ),
    "a class that is none": ((*OWNED, "partition=even", "partition._target_=hetsim.sim.Simulator"), "partition._target_"),
    "a server that hands out ahead": ((*OWNED, "partition=even", "method=od_sgd", "epochs=aligned"), "epochs=aligned lets workers wait"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.sampled(8)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str):
    """No traceback, no folder, exit status 1."""
    typed, told = REFUSED[name]

    assert hetsim(monkeypatch, *typed, f"hydra.run.dir={tmp_path / 'run'}") == 1

    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"hetsim: error: {told}")
    assert not (tmp_path / "run").exists()


def test_archives_that_do_not_fit_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Too few for the workers, of other shapes, one named twice, or nothing at all."""
    two, odd = archives(tmp_path, 40, 30), tmp_path / "odd.npz"
    np.savez(odd, x_train=np.zeros((9, 5)), y_train=np.arange(9), x_test=np.zeros((9, 5)), y_test=np.arange(9))
    for paths, told in (
        (two, "workload.path names 2 archives, but the cluster has 4 workers"),
        ([*two, odd], f"workload.path={odd} has float64 samples of shape (5,), and {two[0]} float32 of shape (6,)"),
        ([two[0], two[0]], "workload.path names an archive twice"),
        ([], "workload.path must name a .npz or .npz.xz file, or a list of them, not []"),
        ([two[0], tmp_path / "none.npz"], f"workload.path={tmp_path / 'none.npz'} is not a file"),
    ):
        named = f"workload.path=[{','.join(map(str, paths))}]"

        assert hetsim(monkeypatch, "workload=arrays", named, "data=owned", "partition=by_file", f"hydra.run.dir={tmp_path / 'run'}") == 1
        assert capfd.readouterr().err.splitlines()[0].startswith(f"hetsim: error: {told}")


def test_a_closed_pool_says_what_its_last_epoch_has_left():
    """Nothing of one whose owner is there, nothing after a whole epoch, everything of one that nobody took from."""
    taken = [(30, 0, True), (30, 30, True), (30, 45, True), (30, 45, False)]

    assert [PoolUse(samples=n, num_taken=q, closed=closed).remainder for n, q, closed in taken] == [30, 0, 15, 0]
    assert PoolUse(samples=30, num_taken=45, closed=True).epochs == 1.5


def test_a_pool_that_was_closed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the summary, and in a warning."""
    faults = "+cluster.faults={schedule: [{nodes: [2], crash: 0.2}]}"

    assert hetsim(monkeypatch, *DIGITS, faults, "budget.epochs=4", f"hydra.run.dir={tmp_path}") == 0

    told = summary(tmp_path)
    (closed,) = [pool for pool in told["pools"] if pool["closed"]]
    assert closed["rank"] == 2
    assert any("worker 2 was absent when the run ended: its 359 samples" in warning for warning in told["warnings"])


def test_whoever_is_always_dropped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a backup worker, the slowest one's samples are in no version."""
    nodes = "[{count: 3, seconds_per_sample: 1e-3, overhead_seconds: 0}, {count: 1, seconds_per_sample: 3e-3, overhead_seconds: 0}]"
    workers = f"cluster.nodes={nodes}"

    assert hetsim(monkeypatch, *DIGITS, "method=backup", workers, "budget.epochs=2", f"hydra.run.dir={tmp_path}") == 0

    told = summary(tmp_path)
    assert told["weight_shares"][3] == 0
    assert any(warning.startswith("no gradient of worker 3 was applied") for warning in told["warnings"])


@pytest.mark.long
def test_the_pages_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the order in which they stand; and what it says of the first is so."""
    commands = [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
    for number, (program, *typed) in enumerate(commands):
        assert program == "hetsim"
        assert hetsim(monkeypatch, *typed, f"hydra.run.dir={tmp_path / str(number)}") == 0

    first = summary(tmp_path / "0")
    assert len(commands) == 4
    assert all(f"{share:.3f}" in PAGE for share in first["weight_shares"])
    assert all(f"{accuracy:.2f}" in PAGE for accuracy in (min(first["class_accuracy"]), min(summary(tmp_path / "1")["class_accuracy"])))


def test_every_partition_is_a_choice():
    """The page and the config have the same ones."""
    shipped = {path.stem for path in (configs() / "partition").glob("*.yaml")}

    assert shipped == set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE))
