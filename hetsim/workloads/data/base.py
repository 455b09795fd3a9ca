"""Labelled arrays, and the augmentation of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Arrays(NamedTuple):
    """Inputs (n x channels x height x width, or n x features) and labels 0 … classes−1, for training and for testing."""

    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random shifts by at most `pad` pixels and random mirroring, drawn from (seed, position in the sample sequence)."""

    pad: int = 0
    mirror: bool = False

    def __bool__(self) -> bool:
        return self.pad > 0 or self.mirror
