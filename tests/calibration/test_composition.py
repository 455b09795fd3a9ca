"""Machines that were calibrated separately, as one cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from worlds import exit_status

import hetsim
from hetsim.calibration.composition import Part, compose_cluster
from hetsim.cli.calibrate import main
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.results.writing.describe import describe

HELD = {
    "date": "2026-11-23", "machine": "x86_64", "workload": "phantom", "num_parameters": 1_000_000, "samples": [4, 64], "dtype": "float32",
    "torch": "2.15.0", "threads": 1, "device": "cpu", "error": 0.01,
}  # fmt: skip
TABLE = [[4000, 2e-3], [4_000_000, 10e-3]]


def calibrated(per_sample: float, *, count: int = 2, **held: Any) -> dict[str, Any]:
    """A machine with so many workers, and a server."""
    return {
        "name": "lab",
        "calibrated": {**HELD, **held},
        "nodes": [{"count": 1, "seconds_per_sample": per_sample, "overhead_seconds": 1e-3, "host": "host0"} for _ in range(count)],
        "network": {
            "latency_seconds": 1e-4,
            "bytes_per_second": 1e9 / per_sample,
            "all_reduce_table": TABLE,
            "cpu": {"send_seconds": 1e-5},
        },
        "server": {"seconds_per_update": per_sample, "host": "host0"},
        "hosts": {"host0": {"cores": 2}},
    }


def made(*parts: Part) -> Cluster:
    """The cluster that both backends read of this."""
    return parse_cluster(compose_cluster("both", parts))


def test_nodes_are_those_of_all_and_links_those_of_the_first() -> None:
    """Each copy of a machine is a machine: two of the fast one and one slow, with one server."""
    cluster = made(Part("fast", calibrated(1e-4), 2), Part("slow", calibrated(3e-4, count=1)))

    assert [node.seconds_per_sample for node in cluster.nodes] == [1e-4] * 4 + [3e-4]
    assert [node.host for node in cluster.nodes] == ["fast-host0-0"] * 2 + ["fast-host0-1"] * 2 + ["slow-host0"]
    assert set(cluster.hosts) == {"fast-host0-0", "fast-host0-1", "slow-host0"}
    assert (cluster.server.seconds_per_update, cluster.server.host) == (1e-4, "fast-host0-0")
    assert cluster.network.bytes_per_second == 1e13


def test_all_reduces_among_more_workers_are_a_rings() -> None:
    """Of two workers measured: five take 4 times the steps, of 2/5 of the bytes each."""
    of_five = made(Part("fast", calibrated(1e-4), 2), Part("slow", calibrated(3e-4, count=1))).network.all_reduce_table
    of_two = made(Part("one", calibrated(1e-4, count=1)), Part("slow", calibrated(3e-4, count=1))).network.all_reduce_table

    assert of_five == ((4000, pytest.approx(8e-3)), (4_000_000, pytest.approx(4 * (2e-3 + 8e-3 * 2 / 5))))
    assert of_two == ((4000, 2e-3), (4_000_000, 10e-3))


def test_it_says_of_what_it_is_composed_and_the_error_of_each_nodes_gradients() -> None:
    """The mean over its nodes; it holds for what all of them were measured with."""
    calibration = made(
        Part("fast", calibrated(1e-4, error=0.01), 2), Part("slow", calibrated(3e-4, count=1, error=0.06, samples=[8, 32], torch="2.14"))
    ).calibrated

    assert calibration is not None
    assert calibration.composed == ("2 × fast", "slow")
    assert calibration.error == pytest.approx((4 * 0.01 + 0.06) / 5)
    assert calibration.samples == (8, 32)
    assert "2.15.0 and 2.14 (here 2.15.0)" in str(calibration.process_warning(torch="2.15.0", threads=1, device="cpu"))


def test_nodes_of_two_devices_say_theirs() -> None:
    cluster = made(Part("gpu", calibrated(1e-5, device="cuda")), Part("cpu", calibrated(3e-4)))

    assert [node.device for node in cluster.nodes] == ["cuda", "cuda", "cpu", "cpu"]


def test_a_composed_cluster_is_predicted_and_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster").mkdir()
    for name, per_sample in (("fast", 1e-4), ("slow", 3e-4)):
        Path("cluster", f"{name}.yaml").write_text(yaml.safe_dump(calibrated(per_sample)))

    words = ("cluster/both.yaml", "--compose", "cluster/fast.yaml:2", "cluster/slow.yaml")
    assert exit_status(monkeypatch, "hetsim-calibrate", main, *words) == 0
    run = hetsim.run("cluster=both", "workload=phantom", "method=asgd", "budget.updates=20", config_dir=tmp_path, folder=tmp_path / "run")

    assert "cluster/both.yaml: 6 nodes, composed of 2 × fast, slow, never measured" in capsys.readouterr().out
    assert Path("cluster/both.yaml").read_text().startswith("# Composed by hetsim-calibrate of fast (2 times), slow. It was never measured")
    assert "the cluster is composed of 2 × fast, slow and was never measured as a whole" in describe(run.summary)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fast.yaml", "gone.yaml"], "--compose gone.yaml: No such file or directory"),
        (["fast.yaml", "byhand.yaml"], "byhand does not say what it was calibrated with, so its times may not fit: calibrate it again"),
        (["fast.yaml", "other.yaml"], "the clusters were calibrated with different workload (fast with phantom, other with digits)"),
        (["fast.yaml", "large.yaml"], "the clusters were calibrated with batch sizes that have none in common"),
        (["fast.yaml", "fast.yaml"], "--compose names a file twice"),
        (["fast.yaml:0"], "--compose fast.yaml:0 must have 1 to 10000 copies"),
        (["broken.yaml"], "--compose broken.yaml: cluster.nodes, cluster.network, cluster.server are missing"),
    ],
)
def test_what_cannot_be_composed_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    by_hand = {key: value for key, value in calibrated(1e-4).items() if key != "calibrated"}
    files = {
        "fast": calibrated(1e-4), "byhand": by_hand, "other": calibrated(1e-4, workload="digits"),
        "large": calibrated(1e-4, samples=[100, 200]), "broken": {"name": "x"},
    }  # fmt: skip
    for name, config in files.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(config))

    assert exit_status(monkeypatch, "hetsim-calibrate", main, "both.yaml", "--compose", *words) == 1

    said = capsys.readouterr().err
    assert said.startswith(f"hetsim-calibrate: error: {message}")
    assert "Traceback" not in said
    assert not Path("both.yaml").exists()


def test_words_of_a_run_do_nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)

    assert exit_status(monkeypatch, "hetsim-calibrate", main, "both.yaml", "workload=digits", "--compose", "x.yaml") == 1
    assert "workload=digits would do nothing, as --compose measures nothing" in capsys.readouterr().err
