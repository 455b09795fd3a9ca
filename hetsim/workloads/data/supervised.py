"""Labelled arrays and a model for them: the common part of digits, torchvision's data sets and a user's own arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetsim import checks
from hetsim.workloads.data.base import Arrays, Augmentation
from hetsim.workloads.device import Device
from hetsim.workloads.task import Task, Workload


@dataclass(frozen=True, kw_only=True)
class Supervised(Workload):
    """Labelled arrays, a classifier by name with its options, and the preparation of inputs."""

    imports: ClassVar[tuple[str, ...]] = ("hetsim.workloads.tasks.classification",)
    has_model: ClassVar[bool] = True

    model: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    resize: int | None = None
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int | None = None
    """The number of training samples to use, balanced by class; every run uses the same ones."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise ValueError(f"workload.model must be a name, such as mlp, lenet or resnet18, not {self.model!r}")
        checks.mapping("workload.model_options", self.model_options, optional=None)
        if self.resize is not None:
            checks.whole("workload.resize", self.resize)
        if self.num_samples is not None:
            checks.whole("workload.num_samples", self.num_samples)
        self.augmented()

    def augmented(self) -> Augmentation:
        """The augmentation that the config describes."""
        options = checks.mapping("workload.augmentation", self.augmentation, optional=("pad", "mirror"))
        return Augmentation(
            pad=checks.whole("workload.augmentation.pad", options.get("pad", 0), least=0),
            mirror=checks.flag("workload.augmentation.mirror", options.get("mirror", False)),
        )

    @abstractmethod
    def read(self) -> Arrays:
        """The data. Raises ValueError if a file is missing or invalid."""

    def read_archives(self) -> tuple[Arrays, NDArray[np.int64] | None]:
        """The data, and for each training sample the number of its archive; None without archives."""
        return self.read(), None

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        from hetsim.workloads.data.part import part_of
        from hetsim.workloads.tasks.classification import Classification

        arrays, archives = self.read_archives()
        if self.num_samples is not None:
            part = part_of(len(arrays.y_train), self.num_samples, arrays.y_train)
            arrays = arrays._replace(x_train=arrays.x_train[part], y_train=arrays.y_train[part])
            archives = None if archives is None else archives[part]
        return Classification(
            arrays, model=self.model, model_options=self.model_options, resize=self.resize,
            augmentation=self.augmented(), seed=seed, dtype=dtype, device=device, archives=archives,
        )  # fmt: skip
