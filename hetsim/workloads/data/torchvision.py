"""torchvision's data sets, from its folders and addresses. torchvision reads CIFAR-10's files; MNIST's may be packed or unpacked."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetsim import checks
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.data.idx import existing_file, read_idx
from hetsim.workloads.data.supervised import Supervised

CIFAR_FOLDER, CIFAR_ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
ARRAYS = {
    *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
}
"""The functions that an array's pickle calls."""


@dataclass(frozen=True, kw_only=True)
class _TorchvisionImages(Supervised):
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

    @property
    def root(self) -> Path:
        """The folder, as torchvision understands its name."""
        try:
            return Path(self.data_root).expanduser()
        except RuntimeError:
            raise ValueError(f"data_root={self.data_root} names the home of a user that there is not: give a folder") from None

    def check(self) -> None:
        pickled = self.root / self.dataset / "processed"
        if pickled.exists():
            raise ValueError(f"{pickled} is of an old torchvision, and would be read instead of the data: remove it")
        if self.download:
            _refuse_links(self.root / self.dataset, self.root / CIFAR_FOLDER)
            return
        if missing := self.missing():
            raise ValueError(
                f"workload={self.name} needs {missing[0]}, which is missing: "
                "point data_root at the folder that holds it, or add download=true"
            )

    def missing(self) -> list[Path]:
        """The missing files."""
        return [path for file in self.files if not (path := self.root / file).is_file()]

    def read(self) -> Arrays:
        self.check()
        new = _new_folders(self.root / self.dataset / "raw")
        try:
            arrays, labels = self._arrays()
        except Exception as error:
            _remove_empty(new)
            raise ValueError(f"workload={self.name} cannot be read from data_root={self.data_root}: {error}") from None
        for x, y in zip(arrays, labels, strict=True):
            if len(x) != len(y) or not len(x):
                raise ValueError(
                    f"workload={self.name} in data_root={self.data_root} has {len(x)} images and {len(y)} labels: fetch it again"
                )
        x_train, x_test = (x[:, None] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, 3, 1)) for x in arrays)
        return Arrays(x_train, labels[0], x_test, labels[1])

    def _arrays(self) -> tuple[list[NDArray[Any]], list[NDArray[np.int64]]]:
        """Images and labels, for training and for testing, as torchvision downloads and reads them."""
        import torchvision.datasets

        with _only_arrays_in_pickles(torchvision.datasets.cifar):
            data_sets = [
                getattr(torchvision.datasets, self.dataset)(str(self.root), train=train, download=self.download) for train in (True, False)
            ]
        return [np.asarray(part.data) for part in data_sets], [np.asarray(part.targets, dtype=np.int64) for part in data_sets]


def _refuse_links(*folders: Path) -> None:
    """Raise ValueError if a download would write through a link, which somebody else may have created."""
    for folder in folders:
        for path in (folder, folder.with_name(CIFAR_ARCHIVE), *checks.entries_below(folder)):
            if path.is_symlink():
                raise ValueError(f"{path} is a link, which a download would write through: remove it, or leave download=true out")


def _new_folders(folder: Path) -> list[Path]:
    """This folder and its parents, as far as they do not exist, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the empty folders of a failed download."""
    with contextlib.suppress(OSError):
        for folder in folders:
            if folder.exists():
                folder.rmdir()


class _Arrays(pickle.Unpickler):
    """Reads a pickle of texts, lists and NumPy arrays. It calls no other functions."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"a file holds {module}.{name}, and should hold arrays only")
        return super().find_class(module, name)


@contextlib.contextmanager
def _only_arrays_in_pickles(module: Any) -> Iterator[None]:
    """Within this context, a module of torchvision reads only pickles of arrays, because it reopens a file after checking its sum."""
    module.pickle = SimpleNamespace(load=lambda file, **options: _Arrays(file, **options).load())
    try:
        yield
    finally:
        module.pickle = pickle


def _idx(folder: str) -> tuple[str, ...]:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{name}" for name in names)


@dataclass(frozen=True, kw_only=True)
class MNIST(_TorchvisionImages):
    """70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes, Burges)."""

    name: str = "mnist"
    dataset: ClassVar[str] = "MNIST"
    files: ClassVar[tuple[str, ...]] = _idx("MNIST")

    def missing(self) -> list[Path]:
        return [path for file in self.files if existing_file(path := self.root / file) is None]

    def _arrays(self) -> tuple[list[NDArray[Any]], list[NDArray[np.int64]]]:
        """The arrays from files in gzip format, or unpacked next to these."""
        if self.missing():
            super()._arrays()  # downloads them
        x_train, y_train, x_test, y_test = (
            read_idx(existing_file(self.root / file) or self.root / file, num_axes=axes)
            for file, axes in zip(self.files, (3, 1, 3, 1), strict=True)
        )
        return [x_train, x_test], [y_train.astype(np.int64), y_test.astype(np.int64)]


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(MNIST):
    """70,000 grey pictures of clothes of 28 x 28 pixels (arXiv 1708.07747)."""

    name: str = "fashion_mnist"
    dataset: ClassVar[str] = "FashionMNIST"
    files: ClassVar[tuple[str, ...]] = _idx("FashionMNIST")


@dataclass(frozen=True, kw_only=True)
class CIFAR10(_TorchvisionImages):
    """60,000 colour pictures of 32 x 32 pixels (Krizhevsky 2009)."""

    name: str = "cifar10"
    dataset: ClassVar[str] = "CIFAR10"
    files: ClassVar[tuple[str, ...]] = tuple(
        f"{CIFAR_FOLDER}/{name}" for name in ("batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6)))
    )
