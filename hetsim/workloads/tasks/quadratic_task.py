"""The noisy quadratic, computed by torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from hetsim.effects import Batch
from hetsim.workloads.device import Device
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import Evaluation, OptimizerRecipe, Task
from hetsim.workloads.tasks.rows import Rows
from hetsim.workloads.tasks.sequence import Sequence as SampleSequence

SHOWN_NUMBERS = 10**8
"""The number of entries from which drawing takes seconds."""
STREAM = 2  # no other random stream with the same seed has this number


class QuadraticTask(Task):
    """f(x) = mean_i ½ Σ_k h_k (x_k − c_ik)². Its optimum is the mean of the c_i. The reported loss is f(x) − f(optimum)."""

    forkable = True
    gradients_are_new = True

    def __init__(
        self,
        *,
        num_parameters: int,
        num_samples: int,
        condition: float,
        noise: float,
        seed: int,
        dtype: str,
        device: Device,
        drawn_together: int,
    ) -> None:
        self.device = device
        rng = np.random.default_rng([seed, num_parameters, STREAM])
        self.num_samples = num_samples
        self.num_parameters: int = num_parameters
        self.sequence = SampleSequence(num_samples, seed=seed)
        kind: torch.dtype = getattr(torch, dtype)
        self.curvature = device.place(torch.tensor(np.geomspace(1.0, 1.0 / condition, num_parameters), dtype=kind))
        centre = rng.standard_normal(num_parameters)
        centres = torch.empty((num_samples, num_parameters), dtype=kind)
        for rows in _show_progress(torch.split(centres, drawn_together)):
            rows.copy_(torch.from_numpy(centre + noise * rng.standard_normal(rows.shape)))
        self.optimum: torch.Tensor = device.place(centres.mean(0))
        self.centres = Rows(centres, device)

    def initial(self) -> torch.Tensor:
        return torch.zeros_like(self.optimum)

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        away = at - self.centres.take(self.sequence.indices(batch)).mean(0)
        return self.curvature * away, self._excess(at)

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        return Evaluation(train_loss=self._excess(at))

    def optimizer(self, recipe: OptimizerRecipe) -> FlatOptimizer:
        return FlatOptimizer(recipe, self.num_parameters, self.parameters())

    def _excess(self, at: torch.Tensor) -> float:
        return 0.5 * (self.curvature * (at - self.optimum) ** 2).sum().item()


def _show_progress(vectors: Sequence[torch.Tensor]) -> Iterable[torch.Tensor]:
    """The parts, with a progress bar on a terminal if drawing them takes seconds."""
    if sum(vector.numel() for vector in vectors) < SHOWN_NUMBERS or not sys.stderr.isatty():
        return vectors
    from tqdm import tqdm

    bar: Iterable[torch.Tensor] = tqdm(vectors, desc="drawing the quadratic", leave=False)
    return bar
