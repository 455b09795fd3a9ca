"""Shares that are multiples of a number of samples and have a minimum: for Mixup, tensor cores, BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetsim import checks
from hetsim.policies.allocation import proportional


@dataclass(frozen=True)
class Grain:
    """An allocation divides a batch of units of `multiple_of` samples each. Every rank gets at least `least` units."""

    multiple_of: int = 1
    at_least: int = 1
    """The minimum number of samples of each rank."""

    def __post_init__(self) -> None:
        checks.whole("multiple_of", self.multiple_of)
        checks.whole("at_least", self.at_least)

    @property
    def least(self) -> int:
        """The minimum number of units of a rank."""
        return -(-self.at_least // self.multiple_of)

    @property
    def is_single(self) -> bool:
        """Whether every split is allowed."""
        return self == Grain()

    def units(self, batch_size: int, num_ranks: int) -> int:
        """The batch in units. Raises ValueError if no split is possible."""
        if batch_size % self.multiple_of:
            other = max(self.multiple_of, batch_size - batch_size % self.multiple_of)
            raise ValueError(f"batch_size={batch_size} cannot be divided into multiples of multiple_of={self.multiple_of}: take {other}")
        fewest = self.least * self.multiple_of
        if batch_size < fewest * num_ranks:
            raise ValueError(
                f"batch_size={batch_size} is less than {fewest} samples for each of {num_ranks} ranks, as multiple_of={self.multiple_of} "
                f"and at_least={self.at_least} ask for: raise it, or lower them"
            )
        return batch_size // self.multiple_of

    def bounds(self, max_samples: Sequence[int] | None, batch_size: int) -> tuple[int, ...] | None:
        """The ranks' `max_samples` in units. Raises ValueError if no split is possible."""
        if max_samples is None or self.is_single:
            return None if max_samples is None else tuple(max_samples)
        bounds = tuple(bound // self.multiple_of for bound in max_samples)
        fewest = self.least * self.multiple_of
        if min(bounds) < self.least or sum(bounds) * self.multiple_of < batch_size:
            raise ValueError(
                f"max_samples of {', '.join(map(str, max_samples))} hold no split of batch_size={batch_size} into multiples of "
                f"{self.multiple_of} and at least {fewest} for each rank: raise them, or lower multiple_of or at_least"
            )
        return bounds

    def samples(self, units: Sequence[int], bounds: Sequence[int] | None) -> tuple[int, ...]:
        """The split in samples, from the allocation's split in units. Ranks with too few units get the minimum."""
        if min(units) < self.least and len(units) > 1:
            units = proportional(units, sum(units), least=self.least, max_samples=bounds)
        return tuple(each * self.multiple_of for each in units)
