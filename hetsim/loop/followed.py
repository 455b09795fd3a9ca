"""Allocations that follow another one: until nobody knows whether the loss is a mean over samples, or in multiples of some samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, Even


class Followed(Allocation):
    """As `allocation`."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.leaves_out = allocation.leaves_out  # type: ignore[misc]

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        return self.allocation.initial_within(num_workers, batch_size, max_samples)

    def shares(self, state: Any) -> tuple[int, ...]:
        return self.allocation.shares(state)

    def has(self, name: str) -> bool:
        return self.allocation.has(name)

    def asks(self, state: Any, epoch: int) -> bool:
        return self.allocation.asks(state, epoch)

    def observe(self, state: Any, timings: Sequence[Contribution], epoch: int = 0) -> Any:
        return self.allocation.observe(state, timings, epoch)


class Gate(Followed):
    """Follows an allocation while it is open, and gives even shares once it is closed."""

    def __init__(self, allocation: Allocation) -> None:
        super().__init__(allocation)
        self.is_open = True
        self._even: tuple[int, ...] = ()

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        self._even = Even().initial(num_workers, batch_size, max_samples)
        return super().initial(num_workers, batch_size, max_samples)

    def shares(self, state: Any) -> tuple[int, ...]:
        return super().shares(state) if self.is_open else self._even

    def asks(self, state: Any, epoch: int) -> bool:
        return self.is_open and super().asks(state, epoch)

    def observe(self, state: Any, timings: Sequence[Contribution], epoch: int = 0) -> Any:
        return super().observe(state, timings, epoch) if self.is_open else state


class Multiples(Followed):
    """Divides a batch of units of `multiple_of` samples each, and shows the allocation its measurements in units."""

    def __init__(self, allocation: Allocation, multiple_of: int) -> None:
        super().__init__(allocation)
        self.multiple_of = multiple_of

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        unit = self.multiple_of
        if batch_size % unit:
            other = max(unit, batch_size - batch_size % unit)
            raise ValueError(f"batch_size={batch_size} cannot be divided into multiples of multiple_of={unit}: take {other}")
        if batch_size < unit * num_workers:
            raise ValueError(f"batch_size={batch_size} has no multiple_of={unit} samples for each of {num_workers} workers: raise it")
        units = None if max_samples is None else [bound // unit for bound in max_samples]
        if units is not None and (min(units) < 1 or sum(units) * unit < batch_size):
            raise ValueError(f"the ranks' max_samples hold no split of batch_size={batch_size} in multiples of {unit}: raise max_samples")
        return super().initial(num_workers, batch_size // unit, units)

    def shares(self, state: Any) -> tuple[int, ...]:
        return tuple(units * self.multiple_of for units in super().shares(state))

    def observe(self, state: Any, timings: Sequence[Contribution], epoch: int = 0) -> Any:
        in_units = [replace(timing, batch=replace(timing.batch, samples=timing.samples // self.multiple_of)) for timing in timings]
        return super().observe(state, in_units, epoch)
