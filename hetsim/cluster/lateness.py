"""How much later than its closed form a collective ends where each of its messages has a jitter: in a step no rank waits for all others.

A rank begins its next step once it has sent its message of this one and has received the message that it waits for. So a late message
delays the rank that waits for it, and in the next step that rank's receiver; the ring transfer by transfer (`tests/rings.py`) does
the same. What is counted for each rank is its lateness, in seconds after the moment at which the closed form has it begin the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.distributions import COLLECTIVES, Distribution

Seconds = NDArray[np.float64]
Places = NDArray[np.intp]
MAX_DRAWN_AT_ONCE = 2**16
"""Numbers: those of all steps of a ring of 10,000 would not fit into memory."""


class Lateness:
    """Of each participant of one collective, which begin at the same moment. Its jitters are those of `stream`."""

    def __init__(self, num: int, jitter: Distribution, stream: Sequence[int]) -> None:
        self.seconds: Seconds = np.zeros(num)
        self._jitter = jitter
        self._rng = np.random.default_rng((stream[0], COLLECTIVES, *stream[1:]))

    @property
    def last(self) -> float:
        """Of the last participant."""
        return float(self.seconds.max(initial=0.0))

    def ring(self, num_steps: int, latency: float, places: Places | slice = slice(None)) -> None:
        """So many steps in which each of these places sends to the next one, and the last to the first.

        The latency is the part of a step in which a rank that has sent its message waits for the other one. A late rank makes up for it.
        """
        late = self.seconds[places]
        for jitters in self._rows(num_steps, len(late)):
            arrived = late + jitters
            late = np.maximum(late - latency, np.concatenate((arrived[-1:], arrived[:-1])))
        self.seconds[places] = late

    def exchange(self, latency: float, partners: Places) -> None:
        """A step in which each of the first places sends to its partner and receives from it."""
        num = len(partners)
        (jitters,) = self._rows(1, num)
        late = self.seconds[:num]
        self.seconds[:num] = np.maximum(late - latency, (late + jitters)[partners])

    def send(self, senders: Places, receivers: Places) -> None:
        """A step in which each of these places sends to one of those, which only receive."""
        (jitters,) = self._rows(1, len(senders))
        self.seconds[receivers] = np.maximum(self.seconds[receivers], self.seconds[senders] + jitters)

    def barrier(self, places: Places) -> None:
        """These places wait for each other."""
        self.seconds[places] = self.seconds[places].max()

    def wait(self, places: Places, seconds: float) -> None:
        """Let these places begin the next step after `seconds`, as the closed form says, or later if they are late by more."""
        self.seconds[places] = np.maximum(0.0, self.seconds[places] - seconds)

    def _rows(self, num_steps: int, num: int) -> Iterator[Seconds]:
        at_once = max(1, MAX_DRAWN_AT_ONCE // max(1, num))
        for done in range(0, num_steps, at_once):
            rows = min(at_once, num_steps - done)
            yield from self._jitter.drawn(self._rng, rows * num).reshape(rows, num)
