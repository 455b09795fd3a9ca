"""A user's own arrays, from one NumPy archive."""

from __future__ import annotations

import io
import lzma
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.workloads.data.base import Arrays
from hetsim.workloads.supervised import Supervised

MAX_CLASSES = 100_000  # a larger label is taken for a mistake


NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, kw_only=True)
class NpzArrays(Supervised):
    """`x_train y_train x_test y_test` from a `.npz` or `.npz.xz`.

    Inputs are n x features, grey images n x height x width, or colour images n x height x width x channels (as most
    archives have them); labels are whole numbers from 0.
    """

    path: str
    name: str = "arrays"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, str) or not self.path:
            raise ValueError(f"workload.path must name a .npz or .npz.xz file, not {self.path!r}")

    def check(self) -> None:
        if not Path(self.path).is_file():
            raise ValueError(f"workload.path={self.path} is no file: give the .npz or .npz.xz that holds {', '.join(NAMES)}")

    def read(self) -> Arrays:
        self.check()
        arrays = self._arrays()
        x_train, x_test = (_channels_first(arrays[name], f"{self.path}: {name}") for name in ("x_train", "x_test"))
        y_train, y_test = (_labels(arrays[name], f"{self.path}: {name}") for name in ("y_train", "y_test"))
        for x, y, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
            if len(x) != len(y) or not len(x):
                raise ValueError(f"workload.path={self.path}: x_{part} has {len(x)} samples and y_{part} {len(y)} labels: they must agree")
        if x_train.shape[1:] != x_test.shape[1:]:
            raise ValueError(
                f"workload.path={self.path}: x_train is {x_train.shape[1:]} a sample, x_test {x_test.shape[1:]}: they must agree"
            )
        return Arrays(x_train, y_train, x_test, y_test)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        try:
            packed = Path(self.path).read_bytes()
            unpacked = io.BytesIO(lzma.decompress(packed) if self.path.endswith(".xz") else packed)
            if not zipfile.is_zipfile(unpacked):
                raise ValueError("it is no .npz archive, as numpy.savez makes one")
            unpacked.seek(0)
            with np.load(unpacked, allow_pickle=False) as archive:
                missing = [name for name in NAMES if name not in archive]
                if missing:
                    raise ValueError(f"it has no {', '.join(missing)}")
                return {name: archive[name] for name in NAMES}
        except Exception as error:
            raise ValueError(f"workload.path={self.path} cannot be read as a NumPy archive of {', '.join(NAMES)}: {error}") from None


def _channels_first(x: NDArray[Any], what: str) -> NDArray[Any]:
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "uif":
        raise ValueError(f"workload.path={what} must be numbers in 2, 3 or 4 dimensions, not {x.dtype} in {x.ndim}")
    if not all(x.shape[1:]):
        raise ValueError(f"workload.path={what} has samples of shape {x.shape[1:]}, which hold nothing: give each at least one number")
    if x.dtype.kind == "f" and not (np.abs(x) <= np.finfo(np.float32).max).all():
        raise ValueError(f"workload.path={what} holds NaN or infinity: clean it first")
    if x.dtype not in (np.uint8, np.float64):
        x = x.astype(np.float32)
    if x.ndim == 3:
        return x[:, None]
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if x.ndim == 4 else x


def _labels(y: NDArray[Any], what: str) -> NDArray[np.int64]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise ValueError(f"workload.path={what} must be one row of integers from 0, not {y.dtype} of shape {y.shape}: convert it first")
    if len(y) and int(y.min()) < 0:
        raise ValueError(f"workload.path={what} goes down to {y.min()}: number the classes from 0")
    if len(y) and int(y.max()) >= MAX_CLASSES:
        raise ValueError(f"workload.path={what} goes up to {y.max()}: number the classes from 0, fewer than {MAX_CLASSES} of them")
    return y.astype(np.int64)
