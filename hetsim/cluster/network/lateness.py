"""How much later than its closed form a collective ends if its messages have jitter. No step waits for all ranks.

A rank begins its next step when it has sent its message and received the other one. So a late message delays the receiver, and in the
next step the receiver's receiver. A ring that is simulated transfer by transfer (`tests/rings.py`) behaves in the same way. A rank's
lateness is the time in seconds after the moment at which the rank begins its step in the closed form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.distributions import COLLECTIVES, Distribution

Seconds = NDArray[np.float64]
Places = NDArray[np.intp]
MAX_DRAWN_AT_ONCE = 2**16
"""The maximum number of random numbers in memory. All steps of a ring of 10,000 nodes would need too many."""


class CollectiveLateness:
    """The lateness of each participant of one collective. All begin at the same moment. `stream` determines the jitters."""

    def __init__(self, num: int, jitter: Distribution, stream: Sequence[int]) -> None:
        self.seconds: Seconds = np.zeros(num)
        self._jitter = jitter
        self._rng = np.random.default_rng((stream[0], COLLECTIVES, *stream[1:]))

    @property
    def last(self) -> float:
        """The lateness of the last participant."""
        return float(self.seconds.max(initial=0.0))

    def ring(self, num_steps: int, latency: float, places: Places | slice = slice(None)) -> None:
        """`num_steps` steps in which each of these places sends to the next place, and the last to the first.

        `latency` is the time in a step in which a rank has sent its message and waits for the other one. A late rank can make up this time.
        """
        late = self.seconds[places]
        for jitters in self._rows(num_steps, len(late)):
            arrived = late + jitters
            late = np.maximum(late - latency, np.concatenate((arrived[-1:], arrived[:-1])))
        self.seconds[places] = late

    def exchange(self, latency: float, partners: Places) -> None:
        """A step in which each of the first places exchanges messages with its partner."""
        num = len(partners)
        (jitters,) = self._rows(1, num)
        late = self.seconds[:num]
        self.seconds[:num] = np.maximum(late - latency, (late + jitters)[partners])

    def send(self, senders: Places, receivers: Places) -> None:
        """A step in which each sender sends to one receiver. The receivers send nothing."""
        (jitters,) = self._rows(1, len(senders))
        self.seconds[receivers] = np.maximum(self.seconds[receivers], self.seconds[senders] + jitters)

    def barrier(self, places: Places) -> None:
        """Let these places wait for each other."""
        self.seconds[places] = self.seconds[places].max()

    def wait(self, places: Places, seconds: float) -> None:
        """Let these places pause for `seconds` before the next step, as in the closed form. A late place pauses for less."""
        self.seconds[places] = np.maximum(0.0, self.seconds[places] - seconds)

    def _rows(self, num_steps: int, num: int) -> Iterator[Seconds]:
        at_once = max(1, MAX_DRAWN_AT_ONCE // max(1, num))
        for first in range(0, num_steps, at_once):
            rows = min(at_once, num_steps - first)
            yield from self._jitter.draw(self._rng, rows * num).reshape(rows, num)
