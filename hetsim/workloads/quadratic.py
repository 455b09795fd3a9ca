"""A noisy quadratic with a known optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hetsim import checks
from hetsim.workloads.device import Device
from hetsim.workloads.task import BYTES, Task, Workload

DRAWN_TOGETHER = 64
"""The number of samples whose centres are drawn at a time."""


@dataclass(frozen=True, kw_only=True)
class Quadratic(Workload):
    """f(x) = mean_i ½ Σ_k h_k (x_k − c_ik)²: curvatures h_k from 1 down to 1/condition, centres c_i spread by `noise`."""

    num_parameters: int
    num_samples: int
    condition: float
    noise: float
    name: str = "quadratic"
    imports: ClassVar[tuple[str, ...]] = ("hetsim.workloads.tasks.quadratic_task",)

    def __post_init__(self) -> None:
        checks.whole("workload.num_parameters", self.num_parameters)
        checks.whole("workload.num_samples", self.num_samples)
        checks.number("workload.noise", self.noise, zero=True)
        if checks.number("workload.condition", self.condition) < 1:
            raise ValueError(f"workload.condition must be at least 1, not {self.condition}")

    def peak_bytes(self, dtype: str) -> int:
        return self.num_parameters * (self.num_samples * BYTES[dtype] + 8 * DRAWN_TOGETHER)

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        from hetsim.workloads.tasks.quadratic_task import QuadraticTask

        return QuadraticTask(
            num_parameters=self.num_parameters, num_samples=self.num_samples,
            condition=self.condition, noise=self.noise, seed=seed, dtype=dtype, device=device, drawn_together=DRAWN_TOGETHER,
        )  # fmt: skip
