"""A small transformer that predicts the next character of Shakespeare's sonnets, which ship with hetsim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hetsim import checks
from hetsim.workloads.device import Device
from hetsim.workloads.task import BYTES, Task, Workload

COPIES = 4
"""The number of copies of the parameters: the model's, the initial weights, the current weights, and a gradient."""


@dataclass(frozen=True, kw_only=True)
class TinyLM(Workload):
    """A sample is a sequence of `context_length` characters; the model has `num_layers` blocks of width `width`."""

    context_length: int = 32
    width: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_samples: int | None = None
    """The number of training sequences to use; every run uses the same ones."""
    name: str = "tiny_lm"
    imports: ClassVar[tuple[str, ...]] = ("hetsim.workloads.tasks.language_task",)
    has_model: ClassVar[bool] = True
    smaller: ClassVar[str] = "lower workload.width or workload.num_layers"

    def __post_init__(self) -> None:
        for key in ("context_length", "width", "num_layers", "num_heads"):
            checks.whole(f"workload.{key}", getattr(self, key))
        if self.num_samples is not None:
            checks.whole("workload.num_samples", self.num_samples)
        if self.width % self.num_heads:
            raise ValueError(
                f"workload.width={self.width} cannot be divided among workload.num_heads={self.num_heads}: take a multiple of it"
            )

    def peak_bytes(self, dtype: str) -> int:
        return COPIES * BYTES[dtype] * (12 * self.num_layers * self.width**2 + self.context_length * self.width)

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        from hetsim.workloads.tasks.language_task import LanguageTask

        options = {"width": self.width, "num_layers": self.num_layers, "num_heads": self.num_heads}
        return LanguageTask(
            context_length=self.context_length, model_options=options, num_samples=self.num_samples, seed=seed, dtype=dtype, device=device
        )
