"""What the tests of owned data share: pools of given sizes, methods on them, and World Q."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from methods import DROPPING
from test_every_method import short
from worlds import Run, tiles

from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.effects import Batch, Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.device import Device
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.partition import Divisible, Indices, Partition
from hetsim.workloads.task import Evaluation, OptimizerRecipe, Task, Workload
from hetsim.workloads.tasks.sequence import Sequence as SampleSequence

SIZES = (50, 30, 20)
DROPS = DROPPING
HANDS_OUT_AHEAD = ("acco", "od_sgd", "cd_sgd", "ssd_sgd", "halos", "decoupled_diloco")
"""Methods that hand ranges out ahead: no aligned epochs."""


@dataclass(frozen=True)
class Pieces(Partition):
    """Pools of these sizes, one after the other."""

    sizes: tuple[int, ...]

    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        assert len(self.sizes) == num_workers
        return np.split(np.arange(data.num_samples), np.cumsum(self.sizes)[:-1])


def owned(name: str, *choices: str, sizes: tuple[int, ...] = SIZES, epochs: str = "independent", **keys: Any) -> Experiment:
    """A method on three uneven, noisy nodes, of which each has a pool of its own."""
    made = short(name, "partition=even", *choices, data="owned", epochs=epochs, **keys)
    return replace(made, partition=Pieces(sizes))


def cursors(run: Run) -> tuple[int, ...]:
    """How far each pool has come at the end, without what was under way."""
    reached = run.simulation.history.last.rewound().next_sample
    assert isinstance(reached, Cursors)
    return reached.of


def tile_pools(batches: Sequence[Batch], stops: Sequence[int]) -> bool:
    """Whether these ranges cover each position of each pool up to its cursor exactly once."""
    return all(tiles([batch for batch in batches if batch.pool == pool], stop) for pool, stop in enumerate(stops))


def applied(run: Run) -> list[Contribution]:
    """All contributions that versions were made of."""
    return [c for group in run.applied for c in group]


class QTask(Task):
    """f_i(x) = ½ (x − a_i)², a = 1, 2, 3, 4: a sample each, with its number as its label."""

    num_parameters = 1
    num_samples = 4

    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        self.sequence = SampleSequence(4, seed=seed)

    def divisible(self, workload: str) -> Divisible:
        return Divisible(workload, 4, np.arange(4))

    def initial(self) -> torch.Tensor:
        return torch.full((1,), 2.0, dtype=torch.float64)

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        away = at - 1 - float(self.sequence.indices(batch).mean())
        return away, 0.5 * away.item() ** 2

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        return Evaluation(train_loss=0.0)

    def optimizer(self, recipe: OptimizerRecipe) -> FlatOptimizer:
        return FlatOptimizer(recipe, 1)


@dataclass(frozen=True, kw_only=True)
class Q(Workload):
    """World Q's data."""

    name: str = "Q"

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        return QTask(device, seed)
