"""The number of a worker's local steps before a push, if it depends on the worker's speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from hetsim.effects import Contribution

StepSeconds = Mapping[int, float]
"""The seconds of each participating worker's mean local step in its last round, by rank."""


@dataclass(frozen=True)
class DynamicLocalSteps:
    """H_i = max(1, ⌊H v_i / max_j v_j⌋), where worker i takes v_i steps per second: DyLU, arXiv 2401.09135.

    So all rounds take about as long as the fastest worker's round. A worker of unknown speed takes one step.
    """

    period: int
    """H"""

    def steps(self, seconds: StepSeconds, rank: int) -> int:
        """H_i."""
        if rank not in seconds:
            return 1
        share = min(seconds.values()) / seconds[rank] if seconds[rank] else 1.0
        return max(1, floor(round(self.period * share, 6)))  # rounded: a third of the speed is a third of H, whatever the last bit

    def observed(self, seconds: StepSeconds, contributions: Sequence[Contribution]) -> StepSeconds:
        """The speeds after these changes of the weights have arrived."""
        return {**seconds, **{c.rank: c.seconds / c.num_gradients for c in contributions}}

    def left(self, seconds: StepSeconds, rank: int) -> StepSeconds:
        """The speeds without this worker."""
        return {other: its for other, its in seconds.items() if other != rank}
