"""The command hetsim-calibrate, on this machine."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from worlds import exit_status, experiment

import hetsim
from hetsim.calibration.cluster import Calibrated
from hetsim.calibration.fit import FittedLine, GradientTimes
from hetsim.calibration.measuring import proof
from hetsim.calibration.measuring.answer import remarks
from hetsim.calibration.noise import Noise
from hetsim.calibration.readings import RankReadings
from hetsim.cli.calibrate import main

NODES = "cluster.nodes=[{count: 2, seconds_per_sample: 1, overhead_seconds: 1}]"


@pytest.mark.slow
def test_a_calibrated_cluster_is_read_by_both_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has what was measured, says so, and predicts a time of the right order. Gradients are measured once in so short phases."""
    monkeypatch.chdir(tmp_path)
    found: list[RankReadings] = []
    read = RankReadings.of_json
    monkeypatch.setattr(RankReadings, "of_json", lambda text: found.append(read(text)) or found[-1])
    monkeypatch.setattr(proof, "MOST_ERROR", math.inf)  # so short runs prove little, and each miss is measured again
    file = tmp_path / "cluster" / "lab.yaml"
    file.parent.mkdir()

    assert (
        exit_status(
            monkeypatch,
            "hetsim-calibrate",
            main,
            file,
            "workload=digits",
            "batch_size=64",
            NODES,
            "--seconds",
            "0.1",
            "--html",
            file.with_suffix(".html"),
        )
        == 0
    )
    assert "hetsim-calibrate" in file.with_suffix(".html").read_text(encoding="utf-8")

    for kind in ("alone", "first", "gather"):
        assert [bool(measured.of(0, kind)) for measured in found] == [True, False], kind
    firsts = [reading.size for reading in found[0].of(0, "first")]
    assert len(set(firsts)) == len(firsts) > 1
    said = capfd.readouterr().out
    assert re.search(r"2 workers, about \d+\.\d minutes", said)
    assert re.search(r"Mean error of gradient times at held-out batch sizes: \d+\.\d %", said)
    rates = r"ssgd [-+]\d+\.\d %, local_sgd \S+ %, asgd \S+ %"
    assert re.search(rf"Errors of predicted updates per second, against real runs: {rates}\.\n", said)
    assert (tmp_path / "cluster" / "lab.png").read_bytes().startswith(b"\x89PNG")
    text = file.read_text()
    assert text.startswith("# Measured by hetsim-calibrate on 20")
    assert "4 to 64 samples a gradient" in text
    cluster = yaml.safe_load(text)
    assert [row["host"] for row in cluster["nodes"]] == ["host0", "host0"]
    assert cluster["server"]["seconds_per_vector_operation"] >= 0
    assert list(cluster["calibrated"]["tried"]) == ["ssgd", "local_sgd", "asgd"]
    assert cluster["calibrated"]["error"] == pytest.approx(fmean(map(abs, cluster["calibrated"]["tried"].values())), rel=1e-3)
    assert [size for size, _ in cluster["network"]["all_reduce_table"]] == sorted(
        size for size, _ in cluster["network"]["all_reduce_table"]
    )
    words = ("cluster=lab", "workload=digits", "batch_size=64", "budget.epochs=null", "budget.updates=60", "pictures=false", "method=asgd")
    simulated = hetsim.run(*words, config_dir=tmp_path, folder=tmp_path / "sim")
    real = hetsim.run(*words, "backend=dist", "backend.emulate=none", config_dir=tmp_path, folder=tmp_path / "dist")
    assert 0.05 < simulated.summary["updates_per_second"] / real.summary["updates_per_second"] < 20


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Two processes of hetsim-launch on this host."""
    command = [sys.executable, "-m", "hetsim.cli.launch", "--processes", "2", "--", "hetsim-calibrate", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.slow
def test_hetsim_launch_starts_it_on_hosts(tmp_path: Path) -> None:
    """One run, whose leader alone writes the file."""
    done = launch(tmp_path, "lab.yaml", "workload=digits", "batch_size=64", "method=ssgd", NODES, "--seconds", "0.1")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Mean error") == 1
    config = yaml.safe_load((tmp_path / "lab.yaml").read_text())
    assert config["network"]["all_reduce_table"]
    assert len(config["nodes"]) == 2


@pytest.mark.slow
@pytest.mark.long
def test_what_all_its_processes_refuse_is_said_once(tmp_path: Path) -> None:
    done = launch(tmp_path, "lab.yaml", "workload=phantom", "method=ssgd", NODES)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "hetsim-launch: error: workload=phantom computes nothing that could be measured: take the workload that you train"
    ]


def test_a_workloads_name_stays_in_its_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line break in it would begin a key of the cluster."""
    made = experiment("workload=digits")
    monkeypatch.setitem(vars(made.workload), "name", "mine\nfaults: {}")
    steps = GradientTimes(line=FittedLine(1.0, 1.0), table=((8, 1.0),), error_of_line=0.0, error_of_table=0.0, noise=Noise(), sizes=(8, 16))

    said = remarks(made, Calibrated({}, [steps]))

    assert "mine" in said
    assert all(line.startswith("# ") for line in said.splitlines())


def test_a_strangers_config_downloads_nothing_and_shows_no_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `hetsim`: a file refers to keys alone, and what fetches data is typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETSIM_TEST_SECRET", "correct-horse-battery")
    theirs = tmp_path / "theirs" / "experiment"
    theirs.mkdir(parents=True)
    head = "# @package _global_\ndefaults:\n  - override /workload: {}\n"
    (theirs / "loads.yaml").write_text(head.format("mnist") + "workload: {download: true}\n")
    nodes = "cluster: {nodes: [{count: 1, seconds_per_sample: 1, overhead_seconds: 1, rack: '${oc.env:HETSIM_TEST_SECRET}'}]}\n"
    (theirs / "shows.yaml").write_text(head.format("digits") + nodes)

    for chosen, message in (
        ("loads", "download is set by a config file, but only the command line may set it"),
        ("shows", "has a reference in cluster.nodes.0.rack that is no ${key}"),
    ):
        assert exit_status(monkeypatch, "hetsim-calibrate", main, "lab.yaml", f"experiment={chosen}", "--config-dir", "theirs") == 1
        assert message in (said := capsys.readouterr().err)
        assert "correct-horse" not in said
    assert not (tmp_path / "lab.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lab.yml"], "lab.yml must be called NAME.yaml, in an existing folder"),
        (["gone/lab.yaml"], "gone/lab.yaml must be called NAME.yaml, in an existing folder"),
        (["lab.yaml", "workload=phantom"], "workload=phantom computes nothing that could be measured"),
        (["lab.yaml", "--seconds", "0"], "--seconds must be from 0.1 to 3600, not 0"),
        (["lab.yaml", "workload=digit"], "workload=digit"),
        (["lab.yaml", "backend=sim"], "backend is not dist, and real processes are what is measured: leave it out"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert exit_status(monkeypatch, "hetsim-calibrate", main, *words) == 1

    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
