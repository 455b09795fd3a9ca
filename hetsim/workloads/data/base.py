"""Labelled arrays, and what is done to them on the way to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    pass


class Arrays(NamedTuple):
    """Inputs (n x channels x height x width, or n x features) and labels 0 … classes−1, to train on and to test on."""

    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random shifts by at most `pad` pixels and mirror images, drawn from (seed, sample position)."""

    pad: int = 0
    mirror: bool = False

    def __bool__(self) -> bool:
        return self.pad > 0 or self.mirror
