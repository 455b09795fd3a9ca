"""The handwritten digits that scikit-learn carries: real data without a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hetsim.workloads.data.base import Arrays
from hetsim.workloads.supervised import Supervised


@dataclass(frozen=True, kw_only=True)
class Digits(Supervised):
    """1797 grey images of 8 x 8 pixels in ten classes, in one fixed random split: 1437 for training, 360 for testing."""

    name: str = "digits"
    imports: ClassVar[tuple[str, ...]] = (*Supervised.imports, "sklearn.datasets")

    def read(self) -> Arrays:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        order = np.random.default_rng(0).permutation(len(bunch.target))  # the same split for every seed
        x = bunch.images[order, None].astype(np.float32)
        y = bunch.target[order].astype(np.int64)
        return Arrays(x[:1437], y[:1437], x[1437:], y[1437:])
