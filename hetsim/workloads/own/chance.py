"""Random numbers of a user's own code: the same on every rank, and in both worlds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_everything(word: int) -> None:
    """Seed the generators that code uses unless it has one of its own: PyTorch's, NumPy's and Python's."""
    torch.default_generator.manual_seed(word)
    np.random.seed(word % 2**32)
    random.seed(word)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """While this lasts, all random numbers are a function of this seed; afterwards the generators continue where they were."""
    numpys, pythons = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        seed_everything(seed)
        try:
            yield
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)


def states() -> Any:
    """The states of the generators, for `restore`."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def restore(kept: Any) -> None:
    """Let the generators continue from these states, which may be another process's."""
    torchs, numpys, pythons = kept
    torch.set_rng_state(torchs)
    np.random.set_state(numpys)
    random.setstate(pythons)
