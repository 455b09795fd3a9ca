"""The seconds of this rank's steps, without outliers, which do not show its speed."""

from __future__ import annotations

from collections import deque
from statistics import median_low

OUTLIER = 5.0
"""A step that takes more than this many times the median does not count: an evaluation, a checkpoint, another program."""
RECENT = 9
"""The number of earlier steps in the median. If a rank stays slow, its times count when most of these steps are slow."""


class Timed:
    """The steps since the last exchange, and some earlier ones."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """The seconds and samples of recent steps."""
        self._new: list[tuple[float, int, int]] = []
        """The seconds, samples, and number of steps of each new entry."""

    def know(self, seconds: float, samples: int) -> None:
        """Remember a step for comparison. It does not count."""
        self._recent.append((seconds, samples))

    def add(self, seconds: float, samples: int, num_steps: int) -> None:
        """Add `num_steps` steps with this mean time. They count."""
        self._new.append((seconds, samples, num_steps))

    def mean(self) -> float:
        """The mean seconds of the steps added since the last call, without outliers; 0 if none is left."""
        new, self._new = self._new, []
        known = [*self._recent, *((seconds, samples) for seconds, samples, _ in new)]
        kept = [(seconds, steps) for seconds, samples, steps in new if seconds <= OUTLIER * typical(known, samples)]
        self._recent.extend((seconds, samples) for seconds, samples, _ in new)
        return sum(seconds * steps for seconds, steps in kept) / sum(steps for _, steps in kept) if kept else 0.0

    def forget(self) -> None:
        """Keep the new steps only for comparison, because they have another split."""
        self._recent.extend((seconds, samples) for seconds, samples, _ in self._new)
        self._new.clear()


def typical(known: list[tuple[float, int]], samples: int) -> float:
    """The median seconds of these steps, scaled to this number of samples. More samples take at most proportionally longer."""
    return median_low(seconds * max(1.0, samples / of) for seconds, of in known)
