"""An allocation that stays even if nobody knows whether the loss is a mean over samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, Even


class Gate(Allocation):
    """Follows an `allocation` while it is open, and gives even shares once it is closed."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.leaves_out = allocation.leaves_out  # type: ignore[misc]
        self.is_open = True
        self._even: tuple[int, ...] = ()

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        """The allocation's.

        Args:
            num_workers: N.
            batch_size: B.
            max_samples: the largest share of each worker.
        """
        self._even = Even().initial(num_workers, batch_size, max_samples)
        return self.allocation.initial_within(num_workers, batch_size, max_samples)

    def shares(self, state: Any) -> tuple[int, ...]:
        """The allocation's, or even shares.

        Args:
            state: the allocation's.
        """
        return self.allocation.shares(state) if self.is_open else self._even

    def has(self, name: str) -> bool:
        """Whether the allocation has a method of this name of its own.

        Args:
            name: the name of a method of Allocation.
        """
        return self.allocation.has(name)

    def asks(self, state: Any, epoch: int) -> bool:
        """Whether the allocation asks for timings.

        Args:
            state: the allocation's.
            epoch: whole passes over the data before this step.
        """
        return self.is_open and self.allocation.asks(state, epoch)

    def observe(self, state: Any, timings: Sequence[Contribution], epoch: int = 0) -> Any:
        """The allocation's state.

        Args:
            state: the allocation's.
            timings: measured gradients.
            epoch: whole passes over the data before this update.
        """
        return self.allocation.observe(state, timings, epoch) if self.is_open else state
