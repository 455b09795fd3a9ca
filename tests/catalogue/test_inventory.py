"""Machines from what nvidia-smi, SLURM and Kubernetes print. The files in `files/` have their documented formats."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetsim.catalogue.inventory import inventory
from hetsim.catalogue.tables import shipped_catalogue
from hetsim.catalogue.typed_machines import typed_machines

FILES = Path(__file__).with_name("files")
CATALOGUE = shipped_catalogue()
TO_FILL_IN = "???"


def lines(*names: str) -> list[str]:
    return [*inventory([FILES / name for name in names], CATALOGUE)]


def machines(*names: str) -> list[dict[str, Any]]:
    """The printed machines, without the network that is to be filled in."""
    read = yaml.safe_load("\n".join(lines(*names)))["machines"]
    return [{key: value for key, value in machine.items() if (key, value) != ("network", TO_FILL_IN)} for machine in read]


MACHINES: dict[str, list[dict[str, Any]]] = {
    "dgx-a100.txt": [{"gpus": {"a100-40gb": 4}}],
    "workstation.txt": [{"gpus": [{"rtx3090": 1}, {"gtx1080ti": 1}]}],
    "v100-pairs.txt": [{"gpus": {"v100-16gb": 4}, "inside": "16 GB/s"}],
    "mig.txt": [{"gpus": [{"a100-40gb-mig-3g.20gb": 2}, {"a100-40gb": 1}], "inside": TO_FILL_IN}],
    "sinfo-grouped.txt": [{"count": 5, "gpus": {"h100-80gb": 8}}],
    "sinfo.txt": [
        {"count": 2, "gpus": {"a100-80gb": 4}},
        {"gpus": {"v100-16gb": 8}},
        {"gpus": [{"rtx2080ti": 2}, {"t4": 1}]},
        {"gpus": {"count": 8, "seconds_per_sample": TO_FILL_IN, "max_samples": TO_FILL_IN}, "inside": TO_FILL_IN},
    ],
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_file_becomes_machines(name: str) -> None:
    """Machines without GPUs are left out, equal ones are counted, and nodes of two partitions are one."""
    assert machines(name) == MACHINES[name]


def test_nodes_of_kubernetes() -> None:
    """Time-sliced GPUs count once, and GKE's label names a GPU, too."""
    assert machines("kubernetes.json") == [
        {"gpus": {"a100-40gb": 8}},
        {"gpus": {"t4": 4}},
        {"gpus": {"a100-40gb-mig-3g.20gb": 2}, "inside": TO_FILL_IN},
        {"gpus": {"l4": 1}},
    ]
    assert not any("hetsim-advise" in line for line in lines("kubernetes.json"))  # one rate inside for all would be wrong


def test_files_of_several_machines_make_a_cluster() -> None:
    """Its last line is a question that the advice reads."""
    printed = lines("dgx-a100.txt", "workstation.txt", "sinfo-grouped.txt")
    line = printed[-1].split("'")[1]

    assert [str(machine) for machine in typed_machines(line, CATALOGUE.gpu)] == ["4*a100-40gb", "(rtx3090 + gtx1080ti)", "5x(8*h100-80gb)"]
    assert "  # h100 may be h100-80gb or h100-80gb-pcie" in printed


def test_an_unknown_gpu_is_to_be_described() -> None:
    """And there is no line for the advice, which would name it."""
    printed = lines("sinfo.txt")

    assert any("not in the catalogue: l40s. Fill in seconds, samples and rate" in line for line in printed)
    assert not any("hetsim-advise" in line for line in printed)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cannot be read: give the output of nvidia-smi -L"),
        ("hello\nworld\n", "cannot be read: give the output of nvidia-smi -L"),
        ("{", "cannot be read: give the output of"),
        ("[" * 100_000, "cannot be read: give the output of"),
        ('{"items": [{"kind": "Pod"}]}', "cannot be read: give the output of"),
        ('{"items": [{"kind": "Node", "metadata": 3}]}', "no machine in"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n", "has links and no names of GPUs"),
        ("NODELIST GRES\nnode[1-3] (null)\n", "no machine in"),
        ("NODELIST GRES\nnode[1-999999999] gpu:t4:1\n", "has over 100000 machines"),
    ],
)
def test_another_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """It names the formats."""
    file = tmp_path / "file.txt"
    file.write_text(text)

    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        [*inventory([file], CATALOGUE)]

    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", sorted(file.name for file in FILES.iterdir()))
def test_a_damaged_file_ends_in_no_other_error(tmp_path: Path, name: str) -> None:
    """Any lines or values of it may be missing, doubled or cut."""
    draw, file = random.Random(0), tmp_path / "file.txt"
    text = (FILES / name).read_text(encoding="utf-8")
    for _ in range(200):
        start, end = sorted(draw.choices(range(len(text)), k=2))
        damaged = draw.choice([text[:start] + text[end:], text[start:end], text[:end] + text[start:]])
        if name.endswith(".json"):
            content = json.loads(text)
            node = draw.choice(content["items"])
            part = draw.choice([node["metadata"], node["metadata"]["labels"], node["status"], node["status"]["allocatable"]])
            part[draw.choice([*part])] = draw.choice([None, 3, -1, "x", [], {}, "8" * 50])
            damaged = draw.choice([damaged, json.dumps(content)])
        file.write_text(damaged, encoding="utf-8")
        try:
            printed = [*inventory([file], CATALOGUE)]
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert yaml.safe_load("\n".join(printed))["machines"]
