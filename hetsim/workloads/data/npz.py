"""A user's own arrays, from one NumPy archive or several."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim import checks
from hetsim.memory import check_fits
from hetsim.workloads.data.archive import REMEDY, Claim, open_archive
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.data.supervised import Supervised

MAX_CLASSES = 100_000  # a larger label is taken for a mistake

CHANNELS = (1, 2, 3, 4)
"""The numbers of channels of images: grey or colour, with or without transparency."""
INPUTS, LABELS = ("x_train", "x_test"), ("y_train", "y_test")
NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, kw_only=True)
class NpzArrays(Supervised):
    """`x_train y_train x_test y_test` from a `.npz` or `.npz.xz`.

    Inputs are n x features, grey images n x height x width, or colour images n x height x width x channels (as in most
    archives). Labels are whole numbers from 0. If there are several archives, their training sets are joined, and their test sets too.
    """

    path: str | Sequence[str]
    """An archive, or a list of archives whose samples have one shape and type."""
    name: str = "arrays"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.paths or not all(isinstance(path, str) and path for path in self.paths):
            raise ValueError(f"workload.path must name a .npz or .npz.xz file, or a list of them, not {checks.shown(self.path)}")
        if len(set(self.paths)) < len(self.paths):
            raise ValueError("workload.path names an archive twice: name each once, because its samples would count twice")

    @property
    def paths(self) -> Sequence[Any]:
        """The archives."""
        return self.path if isinstance(self.path, list | tuple) else (self.path,)

    def check(self) -> None:
        for path in self.paths:
            if not Path(path).is_file():
                raise ValueError(f"workload.path={path} is not a file: give the .npz or .npz.xz that holds {', '.join(NAMES)}")

    def read(self) -> Arrays:
        return self.read_archives()[0]

    def read_archives(self) -> tuple[Arrays, NDArray[np.int64]]:
        self.check()
        loaded = [_read(path) for path in self.paths]
        first = loaded[0]
        for path, arrays in zip(self.paths, loaded, strict=True):
            if (arrays.x_train.shape[1:], arrays.x_train.dtype) != (first.x_train.shape[1:], first.x_train.dtype):
                raise ValueError(
                    f"workload.path={path} has {arrays.x_train.dtype} samples of shape {arrays.x_train.shape[1:]}, and {self.paths[0]} "
                    f"{first.x_train.dtype} of shape {first.x_train.shape[1:]}: archives of one training set must agree"
                )
        archives = np.repeat(np.arange(len(loaded)), [len(arrays.y_train) for arrays in loaded])
        if len(loaded) == 1:
            return first, archives
        nbytes = sum(part.nbytes for arrays in loaded for part in (arrays.x_train, arrays.x_test))
        check_fits(f"workload.path, of {len(loaded)} archives,", 2 * nbytes, REMEDY, used=nbytes)
        return Arrays(*(np.concatenate([getattr(arrays, name) for arrays in loaded]) for name in NAMES)), archives


def _read(path: str) -> Arrays:
    """The arrays of one archive."""
    source = f"workload.path={path}"
    with open_archive(path, source, NAMES) as archive:
        claims = archive.claims()
        _check_claims(claims, source)
        check_fits(source, archive.memory_bytes + _peak_bytes(claims), REMEDY, used=archive.memory_bytes)
        inputs = {name: _channels_first(archive.read(claims[name]), f"{source}: {name}") for name in INPUTS}
        labels = {name: _labels(archive.read(claims[name]), f"{source}: {name}") for name in LABELS}
    return Arrays(**inputs, **labels)


def _check_claims(claims: Mapping[str, Claim], source: str) -> None:
    """Raise ValueError if the shapes and types in the headers are not suitable for training."""
    for name in INPUTS:
        shape, dtype = claims[name].shape, claims[name].dtype
        if len(shape) not in (2, 3, 4) or dtype.kind not in "uif":
            raise ValueError(f"{source}: {name} must be numbers in 2, 3 or 4 dimensions, not {dtype} in {len(shape)}: convert it first")
        if not all(shape[1:]):
            raise ValueError(f"{source}: {name} has samples of shape {shape[1:]}, which hold nothing: give each at least one number")
        if len(shape) == 4 and shape[1] in CHANNELS and shape[3] not in CHANNELS:
            raise ValueError(f"{source}: {name} has images of shape {shape[1:]}, and channels belong last: store np.moveaxis({name}, 1, 3)")
    for name in LABELS:
        shape, dtype = claims[name].shape, claims[name].dtype
        if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)) or dtype.kind not in "ui":
            raise ValueError(
                f"{source}: {name} must be one row of integers from 0, not {dtype} of shape {reprlib.repr(shape)}: convert it first"
            )
    for x, y in zip(INPUTS, LABELS, strict=True):
        samples, labels = claims[x].shape[0], claims[y].shape[0]
        if samples != labels or not samples:
            raise ValueError(f"{source}: {x} has {samples} samples and {y} {labels} labels: give each sample its label, and at least one")
    train, test = (claims[name].shape[1:] for name in INPUTS)
    if train != test:
        raise ValueError(f"{source}: x_train is {train} a sample, x_test {test}: they must agree")


def _peak_bytes(claims: Mapping[str, Claim]) -> int:
    """The peak memory of reading: all arrays with their final types, and the largest converted array also as stored."""
    kept = sum(claims[name].size * _final_dtype(claims[name].dtype).itemsize for name in INPUTS) + sum(
        8 * claims[name].size for name in LABELS
    )
    as_stored = [name for name in INPUTS if claims[name].dtype == _final_dtype(claims[name].dtype) and len(claims[name].shape) < 4]
    return kept + max(claim.nbytes for name, claim in claims.items() if name not in as_stored)


def _final_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """The final type of inputs. Bytes stay bytes."""
    return stored if stored in (np.uint8, np.float64) else np.dtype(np.float32)


def _channels_first(x: NDArray[Any], source: str) -> NDArray[Any]:
    limit = np.finfo(np.float32).max
    if x.dtype.kind == "f" and not (x.min() >= -limit and x.max() <= limit):
        raise ValueError(f"{source} holds NaN or infinity, or a number beyond float32: clean it first")
    images = np.moveaxis(x, 3, 1) if x.ndim == 4 else x
    kept = images.astype(_final_dtype(x.dtype), order="C" if x.ndim == 4 else "K", copy=False)
    return kept[:, None] if x.ndim == 3 else kept


def _labels(y: NDArray[Any], source: str) -> NDArray[np.int64]:
    if int(y.min()) < 0:
        raise ValueError(f"{source} goes down to {y.min()}: number the classes from 0")
    if int(y.max()) >= MAX_CLASSES:
        raise ValueError(f"{source} goes up to {y.max()}: number the classes from 0, fewer than {MAX_CLASSES} of them")
    return y.reshape(-1).astype(np.int64)
