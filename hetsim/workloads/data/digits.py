"""The handwritten digits in scikit-learn: real data without a download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hetsim.workloads.data.base import Arrays
from hetsim.workloads.data.supervised import Supervised


@dataclass(frozen=True, kw_only=True)
class Digits(Supervised):
    """1797 grey images of 8 x 8 pixels in ten classes, in one fixed random split: 1437 for training, 360 for testing."""

    name: str = "digits"

    def read(self) -> Arrays:
        pixels, labels = _read()
        order = np.random.default_rng(0).permutation(len(labels))  # the same split for every seed
        x = pixels[order].reshape(-1, 1, 8, 8).astype(np.float32)
        y = labels[order].astype(np.int64)
        return Arrays(x[:1437], y[:1437], x[1437:], y[1437:])


def _read() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixels and labels. scikit-learn's file is read directly, because importing the library takes longer than many runs."""
    spec = find_spec("sklearn")
    file = None if spec is None or spec.origin is None else Path(spec.origin).with_name("datasets") / "data" / "digits.csv.gz"
    if file is not None and file.is_file():
        rows = np.loadtxt(file, delimiter=",")
        return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits  # which knows where a later version has it

    bunch = load_digits()
    return bunch.data, bunch.target
