"""Measurements written by hand, and the shares that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetsim.effects import Batch, Contribution
from hetsim.policies.allocation.base import Allocation


def timing(rank: int, samples: int, seconds: float) -> Contribution:
    """One worker's gradient, as far as an allocation looks at it."""
    return Contribution(rank, Batch(0, samples), version=0, seconds=seconds, loss=0.0)


def timings(samples: Sequence[int], seconds: Sequence[float]) -> list[Contribution]:
    """A gradient of every worker, in rank order."""
    return [timing(rank, b, t) for rank, (b, t) in enumerate(zip(samples, seconds, strict=True))]


def followed(allocation: Allocation, state: Any, *steps: Sequence[float]) -> list[tuple[int, ...]]:
    """The shares after each of these updates, at which the workers took so many seconds for their share."""
    seen = []
    for seconds in steps:
        state = allocation.observe(state, timings(allocation.shares(state), seconds))
        seen.append(allocation.shares(state))
    return seen
