"""GPUs by name in a cluster, and rows of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hetsim.catalogue.own import catalogue_of
from hetsim.catalogue.times import Choice
from hetsim.cli.catalogue import answered
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.cluster_files import as_rows
from hetsim.config.resolved import named_gpus, with_names

BOXES = [{"gpus": {"a100-40gb": 2}, "network": 1.25e8}, {"gpus": {"t4": 4, "cost_per_hour": 0.5}, "network": 1.25e8}]


def resolved(machines: Any, **catalogue: Any) -> dict[str, Any]:
    workload = {"num_parameters": None, "bytes_per_parameter": None}
    return with_names(
        {"cluster": {"name": "x", "machines": machines, "catalogue": {"model": "resnet50", **catalogue}}, "workload": workload}
    )


def test_names_become_what_was_published() -> None:
    """Seconds, samples that fit and links of both machines; the size of the model; what was written beside a name stays."""
    found = resolved(BOXES)
    cluster = parse_cluster(found["cluster"])

    assert [node.table[0] for node in cluster.nodes[:3]] == [(20, 0.148614), (20, 0.148614), (20, 0.14741)]
    assert cluster.nodes[0].uplink_bytes_per_second == 300e9
    assert cluster.nodes[5].max_samples == 283
    assert cluster.nodes[5].cost_per_hour == 0.5
    assert found["workload"] == {"num_parameters": 25_557_032, "bytes_per_parameter": 4}


def test_what_is_written_counts() -> None:
    """A rate inside, a bound and a factor of one's own."""
    machines = [{"gpus": {"t4": 4, "max_samples": 64}, "inside": 5e9, "network": 1e8}]
    cluster = parse_cluster(resolved(machines, factors={"t4": 2.0})["cluster"])

    assert cluster.nodes[0].uplink_bytes_per_second == 5e9
    assert cluster.nodes[0].max_samples == 64
    assert cluster.nodes[0].table[0] == (20, 0.29482)


@pytest.mark.parametrize(
    ("machines", "catalogue", "sentence"),
    [
        (BOXES, None, "names a100-40gb, whose time depends on the model: add catalogue: {model: resnet50}"),
        ([{"gpus": {"a1000": 2}}], {"model": "resnet50"}, "'a1000' is no GPU of the catalogue: describe"),
        (BOXES, {"model": "resnt50"}, "'resnt50' is no model of the catalogue; did you mean 'resnet50'?"),
        (BOXES, {"model": "resnet50", "precision": "int8"}, "precision must be fp32 or amp or fp16"),
        (BOXES, {"model": "yolov3", "precision": "fp16"}, "nobody measured yolov3 in fp16: take precision amp"),
        (BOXES, {"model": "resnet50", "factors": {"l4": 2}}, "cluster.catalogue.factors has no key l4|cluster.catalogue.factors.l4"),
        ([{"gpus": {"count": 2}}], {"model": "resnet50"}, "cluster.catalogue does nothing, because no machine names a GPU"),
    ],
)
def test_what_the_catalogue_has_not_is_one_sentence(machines: Any, catalogue: Any, sentence: str) -> None:
    """It names what is missing, or the closest name."""
    with pytest.raises(ValueError, match=sentence.replace("{", r"\{").replace("?", r"\?")):
        named_gpus({"machines": machines, "catalogue": catalogue})


def test_rows_of_ones_own_join_the_catalogue(tmp_path: Path) -> None:
    """A model of one's own, measured on one card, is estimated for another; the card's own steps are taken as measured."""
    file = tmp_path / "own.yaml"
    rows = [{"gpu": "t4", "model": "my-net", "precision": "amp", "batch": batch, "seconds": 0.02 + 0.01 * batch} for batch in (8, 16, 32)]
    file.write_text(yaml.safe_dump({"models": {"my-net": {"parameters": 11_000_000}}, "rows": rows}))
    measured, estimated = Choice(catalogue_of(str(file))).times(["t4", "a100"], "my-net")

    assert measured.table == ((8, pytest.approx(0.1)), (16, pytest.approx(0.18)), (32, pytest.approx(0.34)))
    assert estimated.num_measured == 0
    assert estimated.table[-1][1] < 0.34
    assert "my-net" in "\n".join(answered(catalogue_of(str(file)), ["t4", "my-net"]))


def test_rows_are_read_as_configs_are(tmp_path: Path) -> None:
    """Times have units, 16e9 is a number, and a quoted & is a letter."""
    file = tmp_path / "own.yaml"
    file.write_text(
        "gpus: {mine: {title: 'A & B *', memory_gb: 16e0}}\n"
        "rows: [{gpu: mine, model: resnet50, precision: amp, batch: 32, seconds: 140 ms}]\n"
    )
    catalogue = catalogue_of(str(file))

    assert catalogue.gpus["mine"].title == "A & B *"
    assert catalogue.gpus["mine"].memory_bytes == 16e9
    assert [row.seconds for row in catalogue.rows if row.gpu == "mine"] == [0.14]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rows: [{gpu: t4}]", "are missing"),
        ("rows: 3", "rows must be a list"),
        ("rows: &a [*a]", "refers to a value by \\*"),
        ("gpus: {t4: {memory_gb: 1.0e+308}}\nrows: []", "gpus.t4.memory_gb must be at most 1e\\+06, not 1e\\+308"),
        ("rows: [!!python/object/apply:os.system [ls]]", "cannot be read as YAML"),
        (
            "rows: [{gpu: t5, model: resnet50, precision: amp, batch: 1, seconds: 1}]",
            "'t5' is neither shipped nor below gpus",
        ),
        ("rows: [{gpu: t4, model: resnet50, precision: amp, batch: 0, seconds: 1}]", r"rows\[0\].batch"),
    ],
)
def test_a_bad_file_is_one_sentence_and_runs_no_code(tmp_path: Path, text: str, sentence: str) -> None:
    """The sentence names the row and the key."""
    (tmp_path / "own.yaml").write_text(text)

    with pytest.raises(ValueError, match=sentence):
        catalogue_of(str(tmp_path / "own.yaml"))


def test_the_command_lists_searches_and_shows() -> None:
    """A pair has its sources, a GPU what was measured of it, another word what it is part of; nothing is a sentence."""
    catalogue = catalogue_of(None)

    assert any(line.startswith("h100-80gb ") for line in answered(catalogue, []))
    assert any(
        "a100-40gb with resnet50 in amp: measured at 5 batch sizes (sia)" in line for line in answered(catalogue, ["a100", "resnet50"])
    )
    assert any("https://github.com/siasosp23/artifacts at aaf7a0de" in line for line in answered(catalogue, ["a100", "resnet50"]))
    assert all("rtx3090" in line or not line.startswith("gtx") for line in answered(catalogue, ["rtx3090"]))
    assert [line.split()[0] for line in answered(catalogue, ["quadro"])] == ["GPU", "rtx5000", "rtx6000", "rtx8000"]
    with pytest.raises(ValueError, match="nothing in the catalogue matches 'nonsense'"):
        [*answered(catalogue, ["nonsense"])]


def test_a_calibrated_cluster_becomes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of its first node at the smallest and the largest measured batch, with how they were measured; again, they are replaced."""
    monkeypatch.chdir(Path(__file__).parents[2] / "studies" / "04-simulated-against-measured")
    calibrated = Path("calibrated/cluster/links_held_out_2_workers.yaml")
    rows = tmp_path / "rows.yaml"
    for _ in range(2):
        as_rows(calibrated, "my-card", rows, [])
    catalogue = catalogue_of(str(rows))
    own = [row for row in catalogue.rows if row.gpu == "my-card"]

    assert len(own) == len({row.batch for row in own}) >= 2
    assert all(row.system.startswith("hetsim-calibrate, 20") for row in own)
    assert Choice(catalogue).times(["my-card"], own[0].model)[0].num_measured == len(own)
    with pytest.raises(ValueError, match="the rank of --gpu"):
        as_rows(calibrated, "my-card:99", rows, [])
