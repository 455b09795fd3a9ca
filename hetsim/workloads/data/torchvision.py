"""torchvision's data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from hetsim import checks
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.supervised import Supervised


@dataclass(frozen=True, kw_only=True)
class TorchvisionImages(Supervised):
    """One of torchvision's data sets, from `data_root`; downloaded from its official address only with `download`."""

    data_root: str
    download: bool = False

    imports: ClassVar[tuple[str, ...]] = (*Supervised.imports, "torchvision")
    dataset: ClassVar[str]
    files: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.flag("download", self.download)
        if not isinstance(self.data_root, str):
            raise ValueError(f"data_root must name a folder, not {self.data_root!r}")

    def check(self) -> None:
        if self.download:
            return
        for file in self.files:
            path = Path(self.data_root, file)
            if not path.is_file():
                packed = path.with_name(path.name + ".gz").is_file()
                raise ValueError(
                    f"workload={self.name} needs {path}, which is missing: "
                    + (f"gunzip {path}.gz" if packed else "point data_root at the folder that holds it, or add download=true")
                )

    def read(self) -> Arrays:
        self.check()
        import torchvision.datasets

        try:
            made = [
                getattr(torchvision.datasets, self.dataset)(self.data_root, train=train, download=self.download) for train in (True, False)
            ]
            arrays = [np.asarray(part.data) for part in made]
            labels = [np.asarray(part.targets, dtype=np.int64) for part in made]
        except Exception as error:
            raise ValueError(f"workload={self.name} cannot be read from data_root={self.data_root}: {error}") from None
        for x, y in zip(arrays, labels, strict=True):
            if len(x) != len(y) or not len(x):
                raise ValueError(
                    f"workload={self.name} in data_root={self.data_root} has {len(x)} images and {len(y)} labels: fetch it again"
                )
        x_train, x_test = (x[:, None] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, 3, 1)) for x in arrays)
        return Arrays(x_train, labels[0], x_test, labels[1])


def _idx(folder: str) -> tuple[str, ...]:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{name}" for name in names)


@dataclass(frozen=True, kw_only=True)
class MNIST(TorchvisionImages):
    """70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes, Burges)."""

    name: str = "mnist"
    dataset: ClassVar[str] = "MNIST"
    files: ClassVar[tuple[str, ...]] = _idx("MNIST")


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(TorchvisionImages):
    """70,000 grey pictures of clothes of 28 x 28 pixels (arXiv 1708.07747)."""

    name: str = "fashion_mnist"
    dataset: ClassVar[str] = "FashionMNIST"
    files: ClassVar[tuple[str, ...]] = _idx("FashionMNIST")


@dataclass(frozen=True, kw_only=True)
class CIFAR10(TorchvisionImages):
    """60,000 colour pictures of 32 x 32 pixels (Krizhevsky 2009)."""

    name: str = "cifar10"
    dataset: ClassVar[str] = "CIFAR10"
    files: ClassVar[tuple[str, ...]] = tuple(
        f"cifar-10-batches-py/{name}" for name in ("batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6)))
    )
