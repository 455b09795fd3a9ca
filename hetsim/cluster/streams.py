"""Generators of random streams, seeded for many ranks at once. NumPy needs 20 µs and twice the memory for each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

RANKS = 1024
"""The number of consecutive ranks that are seeded together."""
MASK = 0xFFFFFFFF
Words = NDArray[np.uint32]


def generator(*stream: int) -> np.random.Generator:
    """A generator equal to `np.random.default_rng(stream)`. Streams of three numbers (seed, rank, purpose) are seeded together."""
    if len(stream) != 3 or stream[1] > MASK:
        return np.random.default_rng(stream)
    seed, rank, purpose = stream
    first = rank // RANKS * RANKS
    words: Any = Seed(_seeds(seed, first, purpose)[rank - first])
    return np.random.Generator(np.random.PCG64(words))


class Seed(ISeedSequence):
    """The words of a single bit generator, which reads them once."""

    __slots__ = ("_words",)

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words: Any = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return the words and forget them."""
        words, self._words = self._words, None
        return words


@lru_cache(maxsize=4)
def _seeds(seed: int, first: int, purpose: int) -> NDArray[np.uint64]:
    """`SeedSequence((seed, rank, purpose)).generate_state(4, np.uint64)` of `RANKS` consecutive ranks, from `first` on.

    Source: numpy/random/bit_generator.pyx, whose results NumPy keeps stable (NEP 19).
    """
    ranks = np.arange(first, first + RANKS, dtype=np.uint32)
    entropy = [np.full_like(ranks, word) for word in _words(seed)] + [ranks] + [np.full_like(ranks, word) for word in _words(purpose)]
    entropy += [np.zeros_like(ranks)] * (4 - len(entropy))
    hashed = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [hashed(word) for word in entropy[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = _mix(pool[target], hashed(pool[source]))
    for word in entropy[4:]:
        pool = [_mix(mine, hashed(word)) for mine in pool]
    hashed = _Hash(0x8B51F9DD, 0x58F38DED)
    states = [hashed(pool[place % 4]).astype(np.uint64) for place in range(8)]
    return np.stack([low | high << np.uint64(32) for low, high in zip(states[::2], states[1::2], strict=True)], axis=1)


def _words(number: int) -> list[int]:
    """The number as 32-bit words, the lowest word first."""
    words = [number & MASK]
    while number := number >> 32:
        words.append(number & MASK)
    return words


class _Hash:
    """A hash whose constant changes with each word."""

    def __init__(self, constant: int, factor: int) -> None:
        self._constant, self._factor = constant, factor

    def __call__(self, word: Words) -> Words:
        constant, self._constant = self._constant, self._constant * self._factor & MASK
        value: Words = (word ^ np.uint32(constant)) * np.uint32(self._constant)
        return value ^ value >> np.uint32(16)


def _mix(a: Words, b: Words) -> Words:
    value: Words = a * np.uint32(0xCA01F9DD) - b * np.uint32(0x4973F715)
    return value ^ value >> np.uint32(16)
