"""A split that changes at each step, so that every worker computes new numbers of samples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetsim.effects import Contribution
from hetsim.policies.allocation import Allocation, proportional


class Changed(NamedTuple):
    """How often the split has changed, and the arguments of `initial`."""

    times: int
    num_workers: int
    batch_size: int
    max_samples: Sequence[int] | None


@dataclass(frozen=True)
class ChangingSplit(Allocation):
    """Each of several workers takes about half to twice an equal share, at random."""

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Changed:
        """No split has been made yet."""
        return Changed(0, num_workers, batch_size, max_samples)

    def shares(self, state: Changed) -> tuple[int, ...]:
        """Drawn by the number of changes, so all ranks draw the same."""
        chance = random.Random(state.times)
        weights = [1.0 + chance.random() for _ in range(state.num_workers)]
        return proportional(weights, state.batch_size, max_samples=state.max_samples)

    def asks(self, state: Changed, epoch: int) -> bool:
        """Always, as methods whose split follows the timings do."""
        return True

    def observe(self, state: Changed, timings: Sequence[Contribution], epoch: int = 0) -> Changed:
        """The next split is another one."""
        return state._replace(times=state.times + 1)
