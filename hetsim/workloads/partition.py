"""Divide the training set into pools, one for each worker: `data=owned`.

Pools are disjoint and together contain every sample. They depend only on the data, the run's seed, the number of workers and the options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hetsim import checks

Indices = NDArray[np.int64]

STREAM = 11  # no other random stream with the same seed has this number
MIN_ALPHA, MAX_ALPHA = 1e-6, 1e9
"""The bounds of α. Below, each worker draws one class. Above, each worker draws all classes equally."""
OTHERS = "take partition=even"


@dataclass(frozen=True)
class Divisible:
    """The properties of a training set that partitions use: its number of samples, and its classes and archives if it has any."""

    workload: str
    num_samples: int
    labels: Indices | None = None
    archives: Indices | None = None

    def classes(self, partition: str) -> tuple[Indices, Indices]:
        """The existing classes, in order, and for each sample the index of its class. Raises ValueError without classes."""
        if self.labels is None:
            raise ValueError(f"partition={partition} goes by labels, but workload={self.workload} has none at hand: {OTHERS}")
        classes, labels = np.unique(self.labels, return_inverse=True)
        return classes, labels.reshape(-1).astype(np.int64)


class Partition(ABC):
    """Divides a training set among the workers. Frozen: its fields are keys of the config."""

    depends_on_workers: ClassVar[bool] = True
    """Whether the pools depend on the number of workers. A run cannot then continue with another number."""

    @abstractmethod
    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        """The samples of each worker. Raises ValueError if this division is impossible."""

    def pools(self, data: Divisible, num_workers: int, *, seed: int) -> tuple[Indices, ...]:
        """The samples of each worker, in ascending order. A single worker has all samples."""
        if data.num_samples < num_workers:
            raise ValueError(
                f"workload={data.workload} has {data.num_samples} training samples for {num_workers} workers, and data=owned gives each "
                "at least one: take fewer workers, or more samples"
            )
        pools = tuple(np.sort(pool) for pool in self.divided(data, num_workers, seed=seed))
        if empty := [rank for rank, pool in enumerate(pools) if not len(pool)]:
            raise ValueError(f"partition gives worker {empty[0]} no samples of workload={data.workload}: {OTHERS}, or take fewer workers")
        return pools


@dataclass(frozen=True)
class Even(Partition):
    """A random part for each worker, equally large (give or take one). So pools are alike."""

    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        return _cut(_chance(seed, num_workers).permutation(data.num_samples), num_workers)


@dataclass(frozen=True)
class Contiguous(Partition):
    """The samples sorted by label, cut into equally large pieces (give or take one) in rank order. So pools differ as much as possible."""

    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        _, labels = data.classes("contiguous")
        return _cut(np.argsort(labels, kind="stable"), num_workers)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Equally large pools. Worker i mixes classes in proportions q ~ Dir(α · 1): the smaller α, the fewer classes in each pool.

    Ringleader ASGD's experiments (arXiv 2509.22860) use this partition: whole numbers of each class by largest remainder. When a class is
    used up, samples of the class with the most remaining samples replace it.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not MIN_ALPHA <= checks.number("partition.alpha", self.alpha) <= MAX_ALPHA:
            raise ValueError(f"partition.alpha must be between {MIN_ALPHA:g} and {MAX_ALPHA:g}, not {self.alpha}")

    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        classes, labels = data.classes("dirichlet")
        chance = _chance(seed, num_workers)
        by_class = [chance.permutation(np.flatnonzero(labels == index)) for index in range(len(classes))]
        remaining = np.array([len(samples) for samples in by_class])
        pools = []
        for size in _sizes(data.num_samples, num_workers):
            counts = np.minimum(_round_to_sum(chance.dirichlet(np.full(len(classes), float(self.alpha))) * size, size), remaining)
            while short := size - int(counts.sum()):
                fullest = int(np.argmax(remaining - counts))
                counts[fullest] += min(short, int((remaining - counts)[fullest]))
            pools.append(np.concatenate([samples[n - t : n] for samples, n, t in zip(by_class, remaining, counts, strict=True)]))
            remaining = remaining - counts
        return pools


@dataclass(frozen=True, kw_only=True)
class ByClass(Partition):
    """Each worker has samples of k classes, consecutive in rank order. The owners of a class have equally many of its samples.

    Pools are as large as their classes. With as many workers as classes, and k = 1, each worker has one class.
    """

    classes: int
    """k"""

    def __post_init__(self) -> None:
        checks.whole("partition.classes", self.classes)

    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        classes, labels = data.classes("by_class")
        count = len(classes)
        if self.classes > count:
            raise ValueError(f"partition.classes={self.classes} is more than the {count} classes of workload={data.workload}: lower it")
        if self.classes * num_workers < count:
            raise ValueError(
                f"partition.classes={self.classes} for each of {num_workers} workers leaves some of the {count} classes of "
                f"workload={data.workload} to nobody: give at least {-(-count // num_workers)}"
            )
        chance = _chance(seed, num_workers)
        pools: list[list[Indices]] = [[] for _ in range(num_workers)]
        owners: list[list[int]] = [[] for _ in range(count)]
        for place in range(num_workers * self.classes):
            owners[place % count].append(place // self.classes)
        for index, ranks in enumerate(owners):
            for rank, piece in zip(ranks, _cut(chance.permutation(np.flatnonzero(labels == index)), len(ranks)), strict=True):
                pools[rank].append(piece)
        return [np.concatenate(pieces) for pieces in pools]


@dataclass(frozen=True)
class ByFile(Partition):
    """Worker i has the training samples of the i-th archive of `workload.path`. The pools do not depend on the number of workers."""

    depends_on_workers: ClassVar[bool] = False

    def divided(self, data: Divisible, num_workers: int, *, seed: int) -> Sequence[Indices]:
        if data.archives is None:
            raise ValueError(
                f"partition=by_file takes an archive for each worker, but workload={data.workload} has none: take workload=arrays and "
                "'workload.path=[a.npz, b.npz, …]', or another partition"
            )
        count = int(data.archives.max()) + 1
        if count != num_workers:
            raise ValueError(f"workload.path names {count} archives, but the cluster has {num_workers} workers: give one for each")
        return [np.flatnonzero(data.archives == rank) for rank in range(num_workers)]


def _chance(seed: int, num_workers: int) -> np.random.Generator:
    return np.random.default_rng([seed, num_workers, STREAM])


def _sizes(num_samples: int, num_workers: int) -> list[int]:
    """Equal parts. If the samples cannot be divided equally, the first parts are larger by one."""
    least, more = divmod(num_samples, num_workers)
    return [least + (rank < more) for rank in range(num_workers)]


def _cut(order: Indices, num_parts: int) -> list[Indices]:
    """Consecutive pieces of equal size."""
    return np.split(order, np.cumsum(_sizes(len(order), num_parts))[:-1])


def _round_to_sum(quotas: NDArray[np.float64], total: int) -> Indices:
    """The quotas as whole numbers with this sum, by largest remainder."""
    rounded = np.floor(quotas).astype(np.int64)
    rounded[np.argsort(rounded - quotas, kind="stable")[: total - int(rounded.sum())]] += 1
    return rounded
