"""Modules of a user's own, written to a folder where Python finds them."""

from __future__ import annotations

import sys
import textwrap
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from worlds import cluster, experiment, node

from hetsim.runtime.experiment import Experiment

IMPORTS = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

import hetsim

"""

REGRESSION = """
@hetsim.workload
def build():
    x = torch.linspace(-3, 3, 100).unsqueeze(1)
    y = torch.sin(x)
    return hetsim.Training(
        model=nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)),
        train=TensorDataset(x[::2], y[::2]), test=TensorDataset(x[1::2], y[1::2]),
        loss=F.mse_loss, metrics={"test_error": F.l1_loss},
    )
"""
"""Float labels."""

FLOAT_LABELS = """
class Points(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index / 40]), float(index) / 7

def loss(outputs, targets):
    return F.mse_loss(outputs.squeeze(1), targets)

@hetsim.workload
def build():
    return hetsim.Training(model=nn.Linear(1, 1), train=Points(), loss=loss)
"""
"""Python's own floats, sample by sample."""

LANGUAGE = """
class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.recurrent, self.head = nn.Embedding(11, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 11)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])

def loss(outputs, tokens):
    return F.cross_entropy(outputs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

class Text(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return (torch.arange(9) * (1 + index % 5) + index) % 11

@hetsim.workload
def build():
    return hetsim.Training(model=NextToken(), train=Text(), test=Text(), loss=loss)
"""
"""Sequences of tokens, each its own target."""

DICTIONARY = """
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Embedding(5, 4)

    def forward(self, batch):
        return {"score": self.left(batch["features"]).sum(1) + self.right(batch["kind"]).sum(1)}

def loss(outputs, batch):
    return F.binary_cross_entropy_with_logits(outputs["score"], batch["label"])

def samples():
    rng = np.random.default_rng(0)
    return [{"features": rng.standard_normal(3), "kind": i % 5, "label": float(i % 2)} for i in range(50)]

@hetsim.workload
def build():
    accuracy = lambda outputs, batch: ((outputs["score"] > 0) == (batch["label"] > 0.5)).float().mean()
    return hetsim.Training(model=Wide(), train=samples(), test=samples(), loss=loss, metrics={"test_accuracy": accuracy})
"""
"""Dictionaries of arrays and numbers."""

EVERY_KIND = {"regression": REGRESSION, "float labels": FLOAT_LABELS, "language": LANGUAGE, "dictionary": DICTIONARY}

_numbers = count()


def written(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new module with this text."""
    name = f"mymodel{next(_numbers)}"
    (folder / f"{name}.py").write_text(IMPORTS + textwrap.dedent(text), encoding="utf-8")
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(folder)
    return name


def own(
    module: str, *choices: str, options: dict[str, Any] | None = None, num_samples: int | None = None, loader_workers: int = 0, **keys: Any
) -> Experiment:
    """The experiment with this module's `build`, in float64 on one node unless the keys say otherwise."""
    workload = {"module": f"{module}:build", "options": options or {}, **({"num_samples": num_samples} if num_samples else {})}
    workload["loader_workers"] = loader_workers
    usual = {"cluster": cluster(node(1e-3)), "batch_size": 8, "dtype": "float64", "budget": {"updates": 5}, "optimizer": {"lr": 0.1}}
    return experiment(*(choices or ("method=ssgd",)), "workload=own", workload=workload, trust=[module], **{**usual, **keys})
