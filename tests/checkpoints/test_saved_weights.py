"""The weights that a run leaves are those of its model, by the model's own names."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from worlds import experiment

from hetsim.sim.backend import Simulator
from hetsim.workloads.device import device
from hetsim.workloads.models.registry import build_model
from hetsim.workloads.tasks.flat_model import FlatModel, FlatTask


@pytest.mark.parametrize("which", ["final", "best"])
def test_a_plain_module_loads_them(which: str, tmp_path: Path) -> None:
    """Every tensor of the state dict, and the accuracy of that version on the learning curve."""
    keys = {"learning_rate": 1.5, "momentum": 0.9, "save_weights": which, "workload": {"num_samples": 300}, "evaluate_every_epochs": 0.5}
    described = experiment("method=ssgd", "workload=digits", budget={"epochs": 4}, **keys)
    summary = Simulator().run(described, tmp_path, "seed: 0\n")
    accuracies = [float(row["test_accuracy"]) for row in csv.DictReader((tmp_path / "curve.csv").read_text().splitlines())]
    task, _ = described.load()
    plain = build_model("mlp", described.workload.model_options, shape=(64,), num_classes=10, seed=1)  # type: ignore[attr-defined]

    plain.load_state_dict(load_file(tmp_path / "weights.safetensors"))

    wanted = max(accuracies) if which == "best" else accuracies[-1]
    assert task.evaluate(torch.cat([its.detach().reshape(-1) for its in plain.parameters()])).test_accuracy == pytest.approx(wanted)
    assert max(accuracies) > accuracies[-1], accuracies
    assert summary["final"]["test_accuracy"] == pytest.approx(accuracies[-1])


def test_a_task_without_a_model_has_one_vector(tmp_path: Path) -> None:
    """The quadratic's."""
    described = experiment("method=asgd", "workload=quadratic", save_weights="final", budget={"updates": 3})
    Simulator().run(described, tmp_path, "seed: 0\n")

    found = load_file(tmp_path / "weights.safetensors")
    header = json.loads((tmp_path / "weights.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")

    assert [*header["__metadata__"]] == ["format", "which", "workload"]  # in this order, so that equal weights are equal files
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"weights": tuple(described.load()[0].initial().shape)}


def test_tied_parameters_and_statistics_are_all_there() -> None:
    """Each name of the state dict has a tensor of its own, with what the flat vector has for it."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight  # type: ignore[union-attr]
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    task = Tied()
    task.flat = FlatModel(model, statistics, seed=0, device=device("cpu"))
    at = torch.arange(float(len(task.initial())))

    named = task.named(at)

    fresh = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False))
    fresh.load_state_dict(named)
    assert named["0.weight"].tolist() == named["2.weight"].tolist() == at[:9].view(3, 3).tolist()
    assert named["1.running_mean"].tolist() == at[15:18].tolist()
    assert len({tensor.data_ptr() for tensor in named.values()}) == len(named)


class Tied(FlatTask):
    """A task that has only a model."""

    gradient = evaluate = None  # type: ignore[assignment]


def test_they_go_with_the_run_that_left_them(tmp_path: Path) -> None:
    """A run that leaves none removes those of an earlier run in its folder."""
    for which in ("final", None):
        described = experiment("method=asgd", "workload=quadratic", save_weights=which, budget={"updates": 3})
        Simulator().run(described, tmp_path, "seed: 0\n")

    assert not (tmp_path / "weights.safetensors").exists()


def test_a_phantom_has_none() -> None:
    """One sentence."""
    with pytest.raises(ValueError, match="save_weights would do nothing, because workload=phantom has no weights: leave it out"):
        experiment("method=asgd", "workload=phantom", save_weights="final")
