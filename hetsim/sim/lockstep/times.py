"""The times of the next gradients and updates of all nodes, as arrays by rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.compute_times import StepTimes

BLOCK = 64  # numbers taken from each random stream at a time

Seconds = NDArray[np.float64]
"""By rank."""
Counts = NDArray[np.int64]
"""By rank."""


class Draws:
    """The next numbers of many random streams at once; a stream that is not asked keeps its number for later."""

    def __init__(self, streams: Sequence[Iterator[float]]) -> None:
        self._streams = streams
        self._ranks = np.arange(len(streams))
        self._block = np.empty((BLOCK, len(streams)))
        self._taken = np.full(len(streams), BLOCK)

    def next(self, asked: NDArray[np.bool_]) -> Seconds:
        """One number for each stream; only the numbers of the streams that are asked count as taken."""
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
    """The times of the next gradients and updates of all nodes, equal to those of their `StepTimes`.

    Times that are affine in the samples, times noise, are computed as arrays; the other nodes' `StepTimes` are asked one by one.
    """

    def __init__(self, times: Sequence[StepTimes]) -> None:
        distinct = {id(node.node): node for node in times}  # nodes of one row are one object
        lines = {key: node.affine for key, node in distinct.items()}
        affine = [lines[id(node.node)] for node in times]
        self._one_by_one = {rank: node for rank, node in enumerate(times) if affine[rank] is None}
        self._overhead = np.array([0.0 if line is None else line[0] for line in affine])
        self._per_sample = np.array([0.0 if line is None else line[1] for line in affine])
        self._update = np.array([0.0 if line is None else node.update_seconds(0.0) for node, line in zip(times, affine, strict=True)])
        noise = [None if line is None else node.noise() for node, line in zip(times, affine, strict=True)]
        self._draws = Draws([repeat(1.0) if one is None else one for one in noise]) if any(one is not None for one in noise) else None

    def seconds(self, samples: Counts, start: Seconds) -> Seconds:
        """Each rank's seconds for a gradient over its samples, begun at `start`; 0, and no number drawn, for no samples."""
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
        """Each rank's seconds for an optimizer step, begun at `start`."""
        seconds = self._update.copy()
        for rank, times in self._one_by_one.items():
            seconds[rank] = times.update_seconds(float(start[rank]))
        return seconds
