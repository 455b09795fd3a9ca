"""What the next gradients and updates of all nodes take, as arrays by rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.compute_times import StepTimes

BLOCK = 64  # numbers taken from each stream of chance at a time


Seconds = NDArray[np.float64]
"""By rank."""


Counts = NDArray[np.int64]
"""By rank."""


class Draws:
    """The next number of each of many streams at once; whoever is not asked keeps its own for later."""

    def __init__(self, streams: Sequence[Iterator[float]]) -> None:
        self._streams = streams
        self._ranks = np.arange(len(streams))
        self._block = np.empty((BLOCK, len(streams)))
        self._taken = np.full(len(streams), BLOCK)

    def next(self, asked: NDArray[np.bool_]) -> Seconds:
        """One number for each stream, which counts as taken only where it is asked for."""
        empty = self._taken == BLOCK
        if empty.all():
            drawn = chain.from_iterable(islice(stream, BLOCK) for stream in self._streams)
            self._block = np.ascontiguousarray(np.fromiter(drawn, np.float64, self._block.size).reshape(-1, BLOCK).T)
        elif empty.any():
            for rank in np.flatnonzero(empty).tolist():
                self._block[:, rank] = list(islice(self._streams[rank], BLOCK))
        self._taken[empty] = 0
        numbers: Seconds = self._block[self._taken, self._ranks]
        self._taken += asked
        return numbers


class VectorizedTimes:
    """What the next gradients and updates of all nodes take, as their `StepTimes` say.

    Nodes whose times are affine in their samples, times noise, are worked out in one go; the others are asked one by one.
    """

    def __init__(self, times: Sequence[StepTimes]) -> None:
        affine = [one.affine for one in times]
        self._one_by_one = {rank: one for rank, one in enumerate(times) if affine[rank] is None}
        self._overhead = np.array([0.0 if its is None else its[0] for its in affine])
        self._per_sample = np.array([0.0 if its is None else its[1] for its in affine])
        self._update = np.array([0.0 if its is None else one.update_seconds(0.0) for one, its in zip(times, affine, strict=True)])
        noise = [None if its is None else one.noise() for one, its in zip(times, affine, strict=True)]
        self._draws = Draws([repeat(1.0) if its is None else its for its in noise]) if any(its is not None for its in noise) else None

    def seconds(self, samples: Counts, start: Seconds) -> Seconds:
        """Of each rank's gradient over so many samples, begun then; 0, and nothing drawn, where there are none."""
        asked = samples > 0
        seconds: Seconds = self._overhead + samples * self._per_sample
        if self._draws is not None:
            seconds *= self._draws.next(asked)
        for rank, times in self._one_by_one.items():
            if asked[rank]:
                seconds[rank] = times.seconds(int(samples[rank]), float(start[rank]))
        seconds[~asked] = 0.0
        return seconds

    def update_seconds(self, start: Seconds) -> Seconds:
        """Of an optimizer step of each rank's own, begun then."""
        seconds = self._update.copy()
        for rank, times in self._one_by_one.items():
            seconds[rank] = times.update_seconds(float(start[rank]))
        return seconds
