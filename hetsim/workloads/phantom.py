"""A workload of sizes only: every method runs, nothing is computed, and torch is never imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetsim import checks
from hetsim.effects import Batch, Fragment
from hetsim.vector import Phantom, Vector
from hetsim.workloads.device import Device
from hetsim.workloads.partition import Indices
from hetsim.workloads.task import BYTES, Evaluation, Optimizer, OptimizerRecipe, Task, Workload

MAX_BYTES_PER_PARAMETER = 64


@dataclass(frozen=True, kw_only=True)
class PhantomWorkload(Workload):
    """A model and a data set of given sizes, for timing only."""

    num_parameters: int
    num_samples: int
    bytes_per_parameter: int | None = None
    """The bytes of a parameter in weights and gradients, for sending and updating; None: the bytes of the config's dtype."""
    name: str = "phantom"

    def __post_init__(self) -> None:
        checks.whole("workload.num_parameters", self.num_parameters)
        checks.whole("workload.num_samples", self.num_samples)
        if self.bytes_per_parameter is not None:
            checks.whole("workload.bytes_per_parameter", self.bytes_per_parameter, most=MAX_BYTES_PER_PARAMETER)

    def load(self, *, seed: int, dtype: str, device: Device) -> PhantomTask:
        size = self.bytes_per_parameter or BYTES[dtype]
        return PhantomTask(Phantom(self.num_parameters * size, size), self.num_samples)


class Identity(Optimizer):
    """An optimizer whose new weights are the old ones."""

    def initial(self) -> None:
        return None

    def step(self, memory: None, weights: Vector, gradient: Vector, epoch: int, fragment: Fragment | None = None) -> tuple[None, Vector]:
        return None, weights


class PhantomTask(Task):
    """A task whose weights and gradients are the same phantom. It computes nothing, so its device is the CPU."""

    num_parameters = None

    def __init__(self, weights: Phantom, num_samples: int) -> None:
        self.weights = weights
        self.num_samples = num_samples

    def divide(self, pools: Sequence[Indices]) -> None:
        self.pools = tuple(map(len, pools))

    def initial(self) -> Phantom:
        return self.weights

    def gradient(self, at: Vector, batch: Batch) -> tuple[Phantom, float]:
        return self.weights, 0.0

    def evaluate(self, at: Vector) -> Evaluation:
        return Evaluation()

    def optimizer(self, recipe: OptimizerRecipe) -> Identity:
        return Identity()
