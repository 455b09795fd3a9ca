"""The seconds of this rank's steps, without single ones that take far longer than the others and say nothing of its speed."""

from __future__ import annotations

from collections import deque
from statistics import median_low

OUTLIER = 5.0
"""A step beyond so many times the median is not counted: an evaluation, a checkpoint, another program."""
RECENT = 9
"""Earlier steps that the median takes into account. A rank that stays slow is believed when most of them are slow."""


class Timed:
    """The steps since the last exchange, and some before them."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """Seconds and samples of a step."""
        self._new: list[tuple[float, int, int]] = []
        """And the number of steps."""

    def know(self, seconds: float, samples: int) -> None:
        """A step took so long; it is compared with, and not counted."""
        self._recent.append((seconds, samples))

    def add(self, seconds: float, samples: int, num_steps: int) -> None:
        """So many steps took so long on average, and count."""
        self._new.append((seconds, samples, num_steps))

    def mean(self) -> float:
        """The mean seconds of the steps that were added since the last call, without outliers; 0 if none is left."""
        new, self._new = self._new, []
        known = [*self._recent, *((seconds, samples) for seconds, samples, _ in new)]
        kept = [(seconds, steps) for seconds, samples, steps in new if seconds <= OUTLIER * typical(known, samples)]
        self._recent.extend((seconds, samples) for seconds, samples, _ in new)
        return sum(seconds * steps for seconds, steps in kept) / sum(steps for _, steps in kept) if kept else 0.0

    def forget(self) -> None:
        """Steps of another split are known, and not counted."""
        self._recent.extend((seconds, samples) for seconds, samples, _ in self._new)
        self._new.clear()


def typical(known: list[tuple[float, int]], samples: int) -> float:
    """The median of these steps' seconds, scaled to this number of samples: more samples take at most proportionally longer."""
    return median_low(seconds * max(1.0, samples / of) for seconds, of in known)
