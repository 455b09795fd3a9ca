"""Random numbers in a user's code: the same on every rank, and in both worlds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_everything(word: int) -> None:
    """Seed the global generators of PyTorch, NumPy and Python."""
    torch.default_generator.manual_seed(word)
    np.random.seed(word % 2**32)
    random.seed(word)


@contextlib.contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """Within this context, all random numbers are a function of this seed. Then the generators continue from their earlier states."""
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
    """Restore these states, which may come from another process."""
    torchs, numpys, pythons = kept
    torch.set_rng_state(torchs)
    np.random.set_state(numpys)
    random.setstate(pythons)
