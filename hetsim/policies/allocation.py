"""How many samples each worker takes of the next global batch of B."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim.effects import Contribution


def proportional(weights: Sequence[float], total: int, *, least: int = 1) -> tuple[int, ...]:
    """Split `total` in proportion to `weights` by largest remainder, at least `least` each; ties go to the lower rank."""
    largest = max(weights)
    weights = [weight / largest for weight in weights]
    held = [False] * len(weights)
    while True:
        free = total - least * sum(held)
        scale = free / math.fsum(weight for weight, at_least in zip(weights, held, strict=True) if not at_least)
        quotas = [least if at_least else weight * scale for weight, at_least in zip(weights, held, strict=True)]
        short = [
            not at_least and quota < least * (1 - 1e-9) for quota, at_least in zip(quotas, held, strict=True)
        ]  # an exact quota may round to below
        if not any(short):
            break
        held = [at_least or lacks for at_least, lacks in zip(held, short, strict=True)]
    shares = [max(least, math.floor(quota)) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda rank: (round(shares[rank] - quotas[rank], 9), rank))
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


class Allocation(ABC):
    """Decides (b_1 … b_N) with Σ b_i = B and b_i ≥ 1, from what it has observed."""

    measures: ClassVar[bool] = False
    """Whether it asks for measurements: without a server they cost a `Gather` at every step."""

    @abstractmethod
    def initial(self, num_workers: int, batch_size: int) -> Any:
        """The state before anything was observed."""

    @abstractmethod
    def shares(self, state: Any) -> tuple[int, ...]:
        """Samples for each worker, in rank order."""

    def observe(self, state: Any, timings: Sequence[Contribution]) -> Any:
        """The state after these gradients took these times (`rank`, `samples`, `seconds` of each)."""
        return state


@dataclass(frozen=True)
class Even(Allocation):
    """Everyone takes B/N."""

    def initial(self, num_workers: int, batch_size: int) -> tuple[int, ...]:
        return proportional([1.0] * num_workers, batch_size)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


@dataclass(frozen=True, kw_only=True)
class Fixed(Allocation):
    """Worker i takes its given part of B for the whole run: `parts` are relative, [1, 1, 2, 4] as good as [32, 32, 64, 128]."""

    parts: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, list | tuple):
            raise ValueError(f"allocation.parts must be a list of positive numbers, one for each worker, not {self.parts!r}")
        if not self.parts:
            raise ValueError("allocation.parts is empty: give one positive number for each worker")
        for part in self.parts:
            if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part < math.inf:
                raise ValueError(f"allocation.parts must be positive numbers, one for each worker, not {part!r}")

    def initial(self, num_workers: int, batch_size: int) -> tuple[int, ...]:
        if len(self.parts) != num_workers:
            raise ValueError(
                f"allocation.parts has {len(self.parts)} numbers, but the cluster has {num_workers} workers: give one for each"
            )
        return proportional(self.parts, batch_size)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


@dataclass(frozen=True)
class Speeds:
    """What SpeedProportional knows: v_i of each worker (None until measured) and the split that follows."""

    batch_size: int
    v: tuple[float | None, ...]
    shares: tuple[int, ...]


@dataclass(frozen=True)
class SpeedProportional(Allocation):
    """DBS: b_i = B · v_i / Σ v_j by the speeds last measured, v_i = b_i / t_i; even until everyone has been measured.

    Ji et al. 2019 (10.7544/issn1000-1239.2019.20180880) modulate the batch "according to the runtime performance of
    each node" so that all step times agree; the rule as code: Ye et al., arXiv 2007.11831.
    """

    measures: ClassVar[bool] = True

    def initial(self, num_workers: int, batch_size: int) -> Speeds:
        return Speeds(batch_size, (None,) * num_workers, proportional([1.0] * num_workers, batch_size))

    def shares(self, state: Speeds) -> tuple[int, ...]:
        return state.shares

    def observe(self, state: Speeds, timings: Sequence[Contribution]) -> Speeds:
        v = list(state.v)
        for timing in timings:
            if timing.samples and timing.seconds > 0:
                v[timing.rank] = timing.samples / timing.seconds
        measured = [speed for speed in v if speed is not None]
        shares = proportional(measured, state.batch_size) if len(measured) == len(v) else state.shares
        return replace(state, v=tuple(v), shares=shares)
