"""A user's own arrays, from one NumPy archive."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.memory import check_fits
from hetsim.workloads.data.archive import REMEDY, Claim, opened
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.supervised import Supervised

MAX_CLASSES = 100_000  # a larger label is taken for a mistake

INPUTS, LABELS = ("x_train", "x_test"), ("y_train", "y_test")
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
        what = f"workload.path={self.path}"
        with opened(self.path, what, NAMES) as archive:
            claims = archive.claims()
            _check_claims(claims, what)
            check_fits(what, archive.memory_bytes + _peak_bytes(claims), REMEDY, taken=archive.memory_bytes)
            inputs = {name: _channels_first(archive.read(claims[name]), f"{what}: {name}") for name in INPUTS}
            labels = {name: _labels(archive.read(claims[name]), f"{what}: {name}") for name in LABELS}
        return Arrays(**inputs, **labels)


def _check_claims(claims: Mapping[str, Claim], what: str) -> None:
    """ValueError with one sentence if the shapes and types that the headers tell are none to train on."""
    for name in INPUTS:
        shape, dtype = claims[name].shape, claims[name].dtype
        if len(shape) not in (2, 3, 4) or dtype.kind not in "uif":
            raise ValueError(f"{what}: {name} must be numbers in 2, 3 or 4 dimensions, not {dtype} in {len(shape)}: convert it first")
        if not all(shape[1:]):
            raise ValueError(f"{what}: {name} has samples of shape {shape[1:]}, which hold nothing: give each at least one number")
    for name in LABELS:
        shape, dtype = claims[name].shape, claims[name].dtype
        if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)) or dtype.kind not in "ui":
            raise ValueError(
                f"{what}: {name} must be one row of integers from 0, not {dtype} of shape {reprlib.repr(shape)}: convert it first"
            )
    for x, y in zip(INPUTS, LABELS, strict=True):
        samples, labels = claims[x].shape[0], claims[y].shape[0]
        if samples != labels or not samples:
            raise ValueError(f"{what}: {x} has {samples} samples and {y} {labels} labels: give each sample its label, and at least one")
    train, test = (claims[name].shape[1:] for name in INPUTS)
    if train != test:
        raise ValueError(f"{what}: x_train is {train} a sample, x_test {test}: they must agree")


def _peak_bytes(claims: Mapping[str, Claim]) -> int:
    """The most that reading takes: all arrays as they are kept, and the largest of those that are converted also as it is stored."""
    kept = sum(claims[name].size * _kept(claims[name].dtype).itemsize for name in INPUTS) + sum(8 * claims[name].size for name in LABELS)
    as_stored = [name for name in INPUTS if claims[name].dtype == _kept(claims[name].dtype) and len(claims[name].shape) < 4]
    return kept + max(claim.nbytes for name, claim in claims.items() if name not in as_stored)


def _kept(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The type that inputs are kept in: bytes stay bytes."""
    return stored if stored in (np.uint8, np.float64) else np.dtype(np.float32)


def _channels_first(x: NDArray[Any], what: str) -> NDArray[Any]:
    limit = np.finfo(np.float32).max
    if x.dtype.kind == "f" and not (x.min() >= -limit and x.max() <= limit):
        raise ValueError(f"{what} holds NaN or infinity, or a number beyond float32: clean it first")
    images = np.moveaxis(x, 3, 1) if x.ndim == 4 else x
    kept = images.astype(_kept(x.dtype), order="C" if x.ndim == 4 else "K", copy=False)
    return kept[:, None] if x.ndim == 3 else kept


def _labels(y: NDArray[Any], what: str) -> NDArray[np.int64]:
    if int(y.min()) < 0:
        raise ValueError(f"{what} goes down to {y.min()}: number the classes from 0")
    if int(y.max()) >= MAX_CLASSES:
        raise ValueError(f"{what} goes up to {y.max()}: number the classes from 0, fewer than {MAX_CLASSES} of them")
    return y.reshape(-1).astype(np.int64)
