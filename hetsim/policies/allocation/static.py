"""A split by speeds, measured once before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, check_repetitions, proportional, relative_speeds


@dataclass(frozen=True)
class StaticState:
    """The split, and how many samples fit into each worker's memory."""

    shares: tuple[int, ...]
    max_samples: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Static(Allocation):
    """b_i = rint(B · s_i) with the relative speeds s_i, measured once before training; fixed for the run.

    Moreno-Álvarez, Paoletti, Rico-Gallego, Haut 2020 (10.1007/s11227-020-03200-6). A share of zero becomes one sample. If the
    rounded shares do not add up to B, the fastest worker gains or loses the difference.
    """

    keeps_gradients = False
    repetitions: int = 5

    def __post_init__(self) -> None:
        check_repetitions(self.repetitions, least=1)

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> StaticState:
        return StaticState(proportional([1.0] * num_workers, batch_size, max_samples=max_samples), max_samples)

    def shares(self, state: StaticState) -> tuple[int, ...]:
        return state.shares

    def observe_profile(self, state: StaticState, timings: Sequence[Contribution]) -> StaticState:
        """If a share exceeds a worker's memory, the split is proportional to the speeds within `max_samples`."""
        speeds = relative_speeds(timings, len(state.shares))
        total, batch_size = sum(speeds), sum(state.shares)
        shares = [max(1, round(batch_size * speed / total)) for speed in speeds]
        by_speed = sorted(range(len(shares)), key=lambda rank: (-speeds[rank], rank))
        shares[by_speed[0]] += max(0, batch_size - sum(shares))
        while sum(shares) > batch_size:
            shares[next(rank for rank in by_speed if shares[rank] > 1)] -= 1
        if state.max_samples is not None and any(share > bound for share, bound in zip(shares, state.max_samples, strict=True)):
            return replace(state, shares=proportional(speeds, batch_size, max_samples=state.max_samples))
        return replace(state, shares=tuple(shares))
