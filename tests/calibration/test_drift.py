"""What a second calibration says of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import worlds
from worlds import exit_status

from hetsim.calibration.drift import NUM_PARTS, Drift, drifts, format_table, split_readings
from hetsim.calibration.readings import IN_STEP, IN_TRAINING, RankReadings, Reading
from hetsim.cli.calibrate import main
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.cluster_files import written_cluster


def described(per_sample: float = 1e-4, *, update: float = 1e-3, latency: float = 1e-4, table: Any = None, last: float = 4e-3) -> Cluster:
    """One node, a server, messages and all-reduces."""
    row = worlds.node(per_sample, 2e-3) if table is None else {"count": 1, "table": table}
    config = worlds.cluster(
        {**row, "host": "host0"}, network={"latency_seconds": latency, "bytes_per_second": 1e9}, seconds_per_update=update
    )
    config["network"] |= {"all_reduce_table": [[1000, 1e-3], [100_000, last]], "cpu": {"send_seconds": 1e-5}}
    return parse_cluster({**config, "hosts": {"host0": {"cores": 2, "busy_speeds": [1, 0.8]}}})


def found(old: Cluster, new: Cluster, parts: list[Cluster]) -> dict[tuple[str, str], Drift]:
    """By what has drifted or not."""
    return {(drift.of, drift.quantity): drift for drift in drifts(old, new, parts, samples=[[8, 32, 64]], nbytes=100_000)}


def test_what_has_changed_beyond_its_own_spread_has_drifted() -> None:
    """Each number by the spread of its own parts: 10 % is much for one and little for another."""
    new = described(1.1e-4, update=1.1e-3)
    parts = [described(1.1e-4 * one, update=1.1e-3 * other) for one, other in ((0.99, 0.8), (1.0, 1.0), (1.01, 1.2), (1.0, 1.0))]
    seen = found(described(), new, parts)

    step, update = seen["node 0", "seconds_per_sample"], seen["server", "seconds_per_update"]
    assert (step.old, step.new, step.ratio) == (1e-4, 1.1e-4, pytest.approx(1.1))
    assert step.deviation == pytest.approx(1.1e-4 * 0.00816, rel=1e-2)
    assert step.has_drifted
    assert update.ratio == pytest.approx(1.1)
    assert not update.has_drifted
    assert [key for key, drift in seen.items() if drift.has_drifted and "gradient" not in key[1]] == [("node 0", "seconds_per_sample")]


def test_every_number_that_is_measured_is_compared() -> None:
    new = described(2e-4, update=2e-3, latency=2e-4, last=8e-3)
    seen = found(described(), new, [new] * 4)

    assert {key: drift.ratio for key, drift in seen.items() if drift.has_drifted} == {
        ("node 0", "seconds_per_sample"): pytest.approx(2.0),
        ("node 0", "gradient of 8 samples"): pytest.approx(3.6 / 2.8),
        ("node 0", "gradient of 32 samples"): pytest.approx(8.4 / 5.2),
        ("node 0", "gradient of 64 samples"): pytest.approx(14.8 / 8.4),
        ("server", "seconds_per_update"): pytest.approx(2.0),
        ("message of 100000 bytes", "seconds"): pytest.approx(3 / 2),
        ("all-reduce of 100000 bytes", "seconds"): pytest.approx(2.0),
    }
    assert {key for key, drift in seen.items() if not drift.has_drifted} == {
        ("node 0", "overhead_seconds"),
        ("message of 100000 bytes", "CPU-seconds at each end"),
        ("host0", "speed of busy cores"),
    }


def test_a_line_is_compared_with_a_table_by_what_gradients_take() -> None:
    new = described(table=[[8, 3e-3], [64, 9e-3]])
    seen = found(described(), new, [new] * 4)

    assert seen["node 0", "gradient of 8 samples"].old == pytest.approx(2.8e-3)
    assert seen["node 0", "gradient of 64 samples"].ratio == pytest.approx(9 / 8.4)
    assert ("node 0", "seconds_per_sample") not in seen


def test_readings_are_divided_in_the_order_of_time() -> None:
    """Of each size by itself; what was read too seldom is in each part."""
    readings = [Reading("alone", size, float(turn), float(turn)) for turn in range(9) for size in (8, 16)]
    updates = [Reading("update", 0, 1.0, 1.0)] * 3
    parts = split_readings(RankReadings([[*readings, *updates]], [[0.0]], 7))

    assert [[reading.seconds for reading in part.of(0, "alone") if reading.size == 8] for part in parts] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7, 8],
    ]
    assert [len(part.of(0, "update")) for part in parts] == [3, 3, 3, 3]
    assert {part.num_parameters for part in parts} == {7}


def test_the_table_marks_what_has_drifted() -> None:
    text = format_table([Drift("node 0", "seconds_per_sample", 1e-4, 2e-4, 1e-6), Drift("server", "seconds_per_update", 0.0, 1e-3, 1e-3)])

    assert text.splitlines()[1].split() == ["node", "0", "seconds_per_sample", "0.0001", "0.0002", "2", "0.5", "%", "*"]
    assert text.splitlines()[2].split() == ["server", "seconds_per_update", "0", "0.001", "–", "100.0", "%"]
    assert text.splitlines()[3].startswith(
        "1 of 2 numbers have drifted (*): by more than 2 times what 4 parts of this measurement differ by"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--against old.yaml: No such file or directory"),
        ("nodes: [", "--against old.yaml: "),
        ("- 1\n", "--against old.yaml: cluster must be a mapping"),
        ("name: x\n", "--against old.yaml: cluster.nodes, cluster.network, cluster.server are missing"),
        (
            "name: x\nnodes: [{count: 3, seconds_per_sample: 1, overhead_seconds: 0}]\n"
            "network: {latency_seconds: 0, bytes_per_second: 1}\nserver: {seconds_per_update: 0}\n",
            "--against old.yaml: it has 3 nodes, and the cluster that is measured 2: compare it with one like it",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_before_anything_is_measured(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "old.yaml").write_text(text)
    nodes = "cluster.nodes=[{count: 2, seconds_per_sample: 1, overhead_seconds: 1}]"

    assert exit_status(monkeypatch, "hetsim-calibrate", main, "lab.yaml", "workload=digits", nodes, "--against", "old.yaml") == 1

    said = capsys.readouterr().err
    assert said.startswith(f"hetsim-calibrate: error: {message}")
    assert "Traceback" not in said
    assert not (tmp_path / "lab.yaml").exists()


def test_floats_are_read_as_hetsim_reads_them(tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-3 for a text."""
    (tmp_path / "x.yaml").write_text(
        "name: x\nnodes: [{count: 1, seconds_per_sample: 1e-3, overhead_seconds: 0}]\n"
        "network: {latency_seconds: 0, bytes_per_second: 1e9}\nserver: {seconds_per_update: 0}\n"
    )

    assert written_cluster("--against", tmp_path / "x.yaml").nodes[0].seconds_per_sample == 1e-3


def test_rounds_in_training_stay_together() -> None:
    """Each part has as many of the rounds, with the same ones of all ranks, however long the gradients before them took."""
    kinds = IN_TRAINING[1:]
    ranks = [
        [Reading(kind, (number * rank) % 4, float(number), 0.0) for number in range(3 * NUM_PARTS) for kind in kinds] for rank in range(2)
    ]

    parts = split_readings(RankReadings(ranks, []))

    for place, part in enumerate(parts):
        for rank in range(2):
            assert [reading.seconds for reading in part.of(rank, IN_STEP)] == [3.0 * place, 3.0 * place + 1, 3.0 * place + 2]
            assert [reading.kind for reading in part.readings[rank]] == [*kinds] * 3
