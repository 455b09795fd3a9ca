"""Seeded sequences of shuffled epochs, one for each pool of samples, and random numbers by position: the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.effects import Batch

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]

MASK = 2**64 - 1  # Python's integers do not wrap around, NumPy's do
STEP = 0x9E3779B97F4A7C15
STREAM = 0  # no other random stream with the same seed has this number
MAX_EVALUATED_SAMPLES = 10_000
"""The maximum number of training samples over which the training loss is averaged."""


class Sequence:
    """Position q of pool i is sample π_{i,e}(q mod n_i) of epoch e = q // n_i, with one permutation for each (seed, e, i).

    `pools` are the samples of each pool; None: a single pool of all samples, with permutations drawn from (seed, e).
    """

    def __init__(self, num_samples: int, *, seed: int, pools: Many[Indices] | None = None) -> None:
        self.num_samples = num_samples
        self.seed = seed
        self.pools = None if pools is None or len(pools) == 1 else tuple(pools)
        self._permutation = lru_cache(maxsize=3 * (1 if pools is None else len(pools)))(self._draw)

    def indices(self, batch: Batch) -> Indices:
        """The samples at these positions; a batch may cross the end of an epoch."""
        pieces = []
        position, size = batch.start, self.num_samples if self.pools is None else len(self.pools[batch.pool])
        while position < batch.stop:
            epoch, offset = divmod(position, size)
            count = min(batch.stop - position, size - offset)
            pieces.append(self._permutation(epoch, batch.pool)[offset : offset + count])
            position += count
        return np.concatenate(pieces) if len(pieces) != 1 else pieces[0]

    def _draw(self, epoch: int, pool: int) -> Indices:
        if self.pools is None:
            return np.random.default_rng([self.seed, epoch, STREAM]).permutation(self.num_samples)
        return np.random.default_rng([self.seed, epoch, STREAM, pool]).permutation(self.pools[pool])


def evaluated_samples(num_samples: int) -> Indices:
    """The training samples over which the loss is averaged: all, or evenly spaced ones if there are too many."""
    count = min(num_samples, MAX_EVALUATED_SAMPLES)
    return np.arange(count, dtype=np.int64) * num_samples // count


def words(seed: int, positions: NDArray[np.integer], stream: int = 0, pool: int = 0) -> Words:
    """One uniform 64-bit word for each position, a function of (seed, stream, pool, position): SplitMix64 (10.1145/2660193.2660195)."""
    drawn: Words = _mix(_key(seed, stream, pool) ^ (positions.astype(np.uint64) * np.uint64(STEP)))
    return drawn


def word(seed: int, position: int, stream: int = 0, pool: int = 0) -> int:
    """The word of a single position."""
    drawn: int = _mix(_key(seed, stream, pool) ^ (position * STEP & MASK))
    return drawn


def _key(seed: int, stream: int, pool: int) -> Any:
    return _mix(seed + stream * 0xD1B54A32D192ED03 + pool * 0xDA942042E4DD58B5 + 1 & MASK)


def _mix(word: Any) -> Any:
    """SplitMix64's mixing function, of a Python integer or a NumPy array."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)
