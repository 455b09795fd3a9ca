"""A fixed part of a training set, for `workload.num_samples`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

SEED = 0
"""The seed of the part. It does not depend on a run's seed, so runs with several seeds train on the same samples."""


def part_of(count: int, num_samples: int, labels: NDArray[np.int64] | None) -> Indices:
    """`num_samples` of `count` samples, in ascending order. With labels, classes get equally many, give or take one, if they have enough.

    A larger part contains all samples of a smaller one. Raises ValueError if the set is smaller than the part.
    """
    if num_samples > count:
        raise ValueError(f"workload.num_samples={num_samples} is more than the {count} samples of the training set: lower it")
    order = np.random.default_rng(SEED).permutation(count)
    if labels is not None:
        order = order[np.argsort(_numbers_within_class(labels[order]), kind="stable")]
    return np.sort(order[:num_samples])


def _numbers_within_class(labels: NDArray[np.int64]) -> Indices:
    """For each sample, the number of earlier samples of its class."""
    by_class = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[by_class], labels[by_class])
    numbers = np.empty_like(by_class)
    numbers[by_class] = np.arange(len(labels)) - first
    return numbers
