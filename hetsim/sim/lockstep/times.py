"""The times of the next gradients and updates of all nodes, as arrays by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.distributions import BLOCK, GRADIENTS, MIN_FACTOR, Distribution
from hetsim.cluster.model import NodeSpec
from hetsim.cluster.streams import generator

TOGETHER = 1024
"""The number of streams whose numbers are copied together."""

Seconds = NDArray[np.float64]
"""By rank."""
Counts = NDArray[np.int64]
"""By rank."""


class Draws:
    """The next numbers of many ranks' streams of one distribution, as from `Distribution.draws`, without an iterator for each.

    A stream that is not asked keeps its number for later. `positions` are the numbers that an earlier run has taken from each stream.
    """

    def __init__(self, law: Distribution, ranks: Sequence[int], *, seed: int, positions: Sequence[int]) -> None:
        self._law, self._seed, self._ranks = law, seed, np.array(ranks)
        self._draw = law.drawer()
        self._generators: list[np.random.Generator] = []
        self._positions = np.array(positions)
        self._columns = np.arange(len(ranks))
        self._block = np.empty((BLOCK, len(ranks)))
        self._taken = np.full(len(ranks), BLOCK)

    def fill(self, numbers: Seconds, drawn: NDArray[np.bool_]) -> None:
        """Put one number of each stream at its rank. Only numbers of asked ranks count as taken."""
        empty = np.flatnonzero(self._taken == BLOCK)
        for first in range(0, len(empty), TOGETHER):
            self._refill(empty[first : first + TOGETHER])
        numbers[self._ranks] = self._block[self._taken, self._columns]
        self._taken += drawn[self._ranks]

    def _refill(self, columns: NDArray[np.intp]) -> None:
        """Draw the next block of these streams."""
        if len(self._generators) < len(self._ranks):  # at first, all are empty
            for column in columns.tolist():
                self._generators.append(generator(self._seed, int(self._ranks[column]), GRADIENTS))
                for _ in range(self._positions[column] // BLOCK):
                    self._draw(self._generators[-1], BLOCK)
            self._taken[columns] = self._positions[columns] % BLOCK
        else:
            self._taken[columns] = 0
        drawn = np.empty((len(columns), BLOCK))
        for row, column in enumerate(columns.tolist()):
            drawn[row] = self._draw(self._generators[column], BLOCK)
        self._block[:, columns] = self._law.check_range(drawn, MIN_FACTOR).T


class VectorizedTimes:
    """The times of the next gradients and updates of all nodes, equal to those of their `StepTimes`.

    Equal nodes with as many samples take equally long before noise, so only one of them is asked, and nobody again while all samples
    stay the same. Nodes that change their speed are asked one by one. `positions` are the numbers of gradients that each rank computed
    in an earlier run.
    """

    def __init__(self, nodes: Sequence[NodeSpec], *, seed: int, positions: Sequence[int]) -> None:
        self._kinds = [id(node) for node in nodes]  # nodes of one row are one object
        steady = {id(node): replace(node, noise=None, loading=0.0) for node in nodes}
        self._steady = {kind: StepTimes(node, seed=seed, rank=0) for kind, node in steady.items()}
        self._one_by_one: dict[int, StepTimes] = {}
        streams: dict[int, list[int]] = {}
        for rank, node in enumerate(nodes):
            if self._steady[id(node)].slowdown is not None:
                self._one_by_one[rank] = StepTimes(node, seed=seed, rank=rank)
                self._one_by_one[rank].skip(positions[rank])
            elif node.noise is not None:
                streams.setdefault(id(node.noise), []).append(rank)
        self._loading = np.array([node.loading for node in nodes])
        self._latest: tuple[bytes, Seconds] = b"", np.zeros(0)
        """The latest samples, and their seconds before noise."""
        self._updates = {}
        """The seconds of each rank's updates, and of its local updates."""
        for local in (False, True):
            update = {kind: 0.0 if times.slowdown else times.update_seconds(0.0, local=local) for kind, times in self._steady.items()}
            self._updates[local] = np.array([update[kind] for kind in self._kinds])
        laws = [(nodes[ranks[0]].noise, ranks) for ranks in streams.values()]
        self._draws = [Draws(law, ranks, seed=seed, positions=[positions[r] for r in ranks]) for law, ranks in laws if law is not None]

    def seconds(self, samples: Counts, start: Seconds) -> Seconds:
        """Each rank's seconds for a gradient over its samples that begins at `start`. Without samples, 0, and no number is drawn."""
        drawn = samples > 0
        if self._latest[0] != samples.tobytes():
            self._latest = samples.tobytes(), self._steady_seconds(samples.tolist())
        seconds: Seconds = self._latest[1].copy()
        if self._draws:
            factors = np.ones(len(seconds))
            for draws in self._draws:
                draws.fill(factors, drawn)
            seconds *= factors
        seconds = np.maximum(seconds, samples * self._loading)
        for rank, times in self._one_by_one.items():
            if drawn[rank]:
                seconds[rank] = times.seconds(int(samples[rank]), float(start[rank]))
        return seconds

    def _steady_seconds(self, samples: Sequence[int]) -> Seconds:
        """Each rank's seconds before noise; 0 without samples, and for nodes that are asked one by one."""
        questions = [*zip(self._kinds, samples, strict=True)]
        answers = {(kind, num): self._steady[kind].seconds(num) for kind, num in {*questions} if num and not self._steady[kind].slowdown}
        return np.array([answers.get(question, 0.0) for question in questions], np.float64)

    def update_seconds(self, start: Seconds, *, local: bool) -> Seconds:
        """Each rank's seconds for an optimizer step that begins at `start`. `local`: for a local step."""
        seconds = self._updates[local].copy()
        for rank, times in self._one_by_one.items():
            seconds[rank] = times.update_seconds(float(start[rank]), local=local)
        return seconds
