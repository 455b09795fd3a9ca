"""Fit the numbers of a cluster to readings: lines, tables, noise, and their errors on held-out readings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.calibration.noise import Noise
from hetsim.calibration.readings import Reading
from hetsim.cluster.compute_times import interpolate

AS_GOOD = 0.005
"""A line is preferred to a table unless the table's error is smaller by at least this."""
LEAST_SECONDS = 1e-9
LEAST_COLD = 0.02
"""The smallest extra time after a pause that counts, as a fraction of a gradient or a message."""
LEAST_FIRST = 0.05
"""The smallest extra time of a first gradient that counts, as a fraction of a gradient."""
SHORTEST_COOLING = 1e-4
"""The minimum time in seconds until caches are cold."""
LEAST_GAIN = 0.01
"""The part of the squared extra times by which another time constant must be nearer than the one of sleeps."""
NUM_COOLINGS, NUM_SEARCHES = 50, 3
"""The number of time constants to try between two limits, and how often: each time nearer to the best one."""


@dataclass(frozen=True)
class FittedLine:
    """y = constant + slope · x, both at least zero."""

    constant: float
    slope: float

    def __call__(self, x: float) -> float:
        """y at x."""
        return self.constant + self.slope * x

    @classmethod
    def fit(cls, points: Mapping[int, float]) -> FittedLine:
        """The line with the least squared relative errors."""
        from scipy.optimize import nnls

        x, y = np.array(list(points), dtype=float), np.array(list(points.values()), dtype=float)
        (constant, slope), _ = nnls(np.stack([1 / y, x / y], axis=1), np.ones_like(x))
        return cls(float(constant), float(slope))


@dataclass(frozen=True)
class GradientTimes:
    """The times of a node's gradients: a line, or a table if that predicts better, and their errors."""

    line: FittedLine
    table: tuple[tuple[int, float], ...]
    error_of_line: float
    """The mean relative error at the held-out sizes."""
    error_of_table: float
    noise: Noise
    """The noise: gradients' times divided by the mean of their size."""
    sizes: tuple[int, int]
    """The smallest and the largest measured batch."""
    means: tuple[tuple[int, float], ...] = ()
    """The mean seconds of each measured size, including held-out sizes."""

    @property
    def takes_table(self) -> bool:
        """Whether the table is clearly better."""
        return self.error_of_table < self.error_of_line - AS_GOOD

    @property
    def error(self) -> float:
        """The error of the line or the table, whichever is used."""
        return self.error_of_table if self.takes_table else self.error_of_line

    def seconds(self, samples: int) -> float:
        """The seconds of a gradient with this number of samples."""
        return interpolate(self.table, samples) if self.takes_table else self.line(samples)

    @classmethod
    def fit(cls, readings: Iterable[Reading], fitted: Sequence[int]) -> GradientTimes:
        """Fit to the readings of these sizes. The other sizes are held out."""
        readings = list(readings)
        by_size = means(readings, "cpu_seconds")
        points = {size: mean for size, mean in by_size.items() if size in fitted}
        others = {size: mean for size, mean in by_size.items() if size not in fitted} or points
        line, table = FittedLine.fit(points), _rising_table(points)
        return cls(
            line=line,
            table=table,
            error_of_line=fmean(abs(line(size) / mean - 1) for size, mean in others.items()),
            error_of_table=fmean(abs(interpolate(table, size) / mean - 1) for size, mean in others.items()),
            noise=Noise.fit([max(reading.cpu_seconds, LEAST_SECONDS) / by_size[reading.size] for reading in readings]),
            sizes=(min(by_size), max(by_size)),
            means=tuple(by_size.items()),
        )

    def steady(self, readings: Sequence[Reading], *, slower: float) -> GradientTimes:
        """The same times at the level and with the noise of these readings, if they are faster. Others made these `slower` times as long.

        A process that has paused for seconds computes more slowly at first: the system has taken its memory from the caches and maps.
        Under a quota, this lasts for most of a phase.
        """
        if not readings:
            return self
        mean_of_size = dict(self.means)
        factors = [reading.cpu_seconds / slower / mean_of_size.get(reading.size, self.seconds(reading.size)) for reading in readings]
        factor = fmean(factors)
        if not 0 < factor < 1:
            return self
        return replace(
            self,
            line=FittedLine(factor * self.line.constant, factor * self.line.slope),
            table=tuple((size, factor * seconds) for size, seconds in self.table),
            noise=Noise.fit([max(ratio, LEAST_SECONDS) / factor for ratio in factors]),
            means=tuple((size, factor * seconds) for size, seconds in self.means),
        )

    def first(self, longer: Sequence[float]) -> float:
        """The median of the extra times of first gradients; 0 if it is negligible."""
        least = LEAST_FIRST * fmean(seconds for _, seconds in self.means)
        return extra if longer and (extra := median(longer)) > least else 0.0

    def as_row(self, file: str | None = None) -> dict[str, Any]:
        """The keys of a row of `cluster.nodes`. Measured noise is written to `file`."""
        row: dict[str, Any] = {}
        if self.takes_table:
            row["table"] = [[size, four_digits(seconds)] for size, seconds in self.table]
        else:
            row |= {
                "seconds_per_sample": max(four_digits(self.line.slope), LEAST_SECONDS),
                "overhead_seconds": four_digits(self.line.constant),
            }
        return row | self.noise.as_row(file)


@dataclass(frozen=True)
class Cold:
    """The extra time of gradients after a pause: at most `most`, because some caches are still warm."""

    most: float = 0.0
    cooling: float = 1.0

    def __call__(self, pause: float) -> float:
        """The extra seconds after a pause of this many seconds."""
        return self.most * -math.expm1(-pause / self.cooling)

    @classmethod
    def fit(cls, readings: Iterable[Reading]) -> Cold:
        """Fit by least squares. The result is zero if the extra time is negligible."""
        seconds = means(readings, "cpu_seconds")
        pauses = [pause for pause in seconds if pause]
        if len(pauses) < 2:
            return cls()
        longer = [seconds[pause] - seconds[0] for pause in pauses]
        if max(longer) < LEAST_COLD * seconds[0]:
            return cls()
        x = np.array([pauses]) / 1e6
        return cls._nearest(x, np.array(longer), x[0, 0] / 10, x[0, -1] / 3)

    def fit_training(self, longer: Sequence[tuple[float, float, float]], *, least: float) -> Cold:
        """The same in training. `longer` contains, for each gradient, the pauses before and in it and its extra seconds.

        After an exchange, caches are colder than after an equally long sleep. If the pauses vary little, they do not show how fast the
        extra time grows, so its shape is that of sleeps. An extra time of at most `least` seconds counts as zero.
        """
        if not longer:
            return self
        pauses_before, inside, seconds = np.array(longer).T
        pauses, cooling = np.stack([pauses_before, inside]), self.cooling if self.most else SHORTEST_COOLING
        asleep = self._nearest(pauses, seconds, cooling, cooling)
        free = self._nearest(pauses, seconds, SHORTEST_COOLING, max(2 * SHORTEST_COOLING, float(pauses.max())))
        gained = asleep._error(pauses, seconds) - free._error(pauses, seconds)
        chosen = free if gained > LEAST_GAIN * float((seconds**2).sum()) else asleep
        return chosen if chosen.most > least else Cold()

    @classmethod
    def fit_exchanges(cls, exchanges: Sequence[tuple[float, float, float]], alone: float) -> Cold:
        """Fit to messages. An exchange has two: the seconds before the first, the seconds between them, and the CPU-seconds of both.

        `alone` is the time of both messages right after others.
        """
        pauses_before, between, seconds = np.array(exchanges).T
        longer = seconds - alone
        if longer.mean() < LEAST_COLD * alone:
            return cls()
        pauses, longest = np.stack([pauses_before, between]), max(float(pauses_before.max()), float(between.max()), 2 * SHORTEST_COOLING)
        return cls._nearest(pauses, longer, SHORTEST_COOLING, longest)

    def _error(self, pauses: NDArray[np.float64], longer: NDArray[np.float64]) -> float:
        """The sum of squared errors. Each column of `pauses` makes one extra time together."""
        return float(((longer + self.most * np.expm1(-pauses / self.cooling).sum(axis=0)) ** 2).sum())

    @classmethod
    def _nearest(cls, pauses: NDArray[np.float64], longer: NDArray[np.float64], shortest: float, longest: float) -> Cold:
        """The least squares, with a time constant between these two. Each column of `pauses` makes one extra time together."""
        best: tuple[float, float, float] = (math.inf, 0.0, shortest)
        for _ in range(NUM_SEARCHES):
            coolings = np.geomspace(shortest, longest, NUM_COOLINGS)
            candidates = []
            for cooling in map(float, coolings):
                shape = -np.expm1(-pauses / cooling).sum(axis=0)
                most = max(0.0, float(shape @ longer) / max(float(shape @ shape), LEAST_SECONDS))
                candidates.append((float(((longer - most * shape) ** 2).sum()), most, cooling))
            place = candidates.index(min(candidates))
            shortest, longest = coolings[max(0, place - 1)], coolings[min(NUM_COOLINGS - 1, place + 1)]
            best = min(best, candidates[place])
        return cls(*best[1:])

    def as_row(self) -> dict[str, float]:
        """The keys of a row of `cluster.nodes`, and of `network.cpu`."""
        return {"cold_seconds": four_digits(self.most), "cooling_seconds": four_digits(self.cooling)} if self.most > LEAST_SECONDS else {}


def means(readings: Iterable[Reading], column: str) -> dict[int, float]:
    """The mean of this column by size."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for reading in readings:
        by_size[reading.size].append(getattr(reading, column))
    return {size: max(fmean(values), LEAST_SECONDS) for size, values in sorted(by_size.items())}


def busy_speeds(cores: int, inflation: Mapping[int, float], width: int = 1) -> list[float]:
    """The speed of each core while 1, 2 … `cores` cores are busy. The speed never rises.

    `inflation` is the factor on a gradient's time, by the number of busy cores. Between two numbers, the speed is linear. A single gradient
    keeps `width` cores busy, at full speed. If that is several, the factor with more threads than cores shows how they share the cores, and
    does not count.
    """
    counted = {min(count, cores): ratio for count, ratio in sorted(inflation.items(), reverse=True) if width == 1 or count <= cores}
    speed_at = {count: min(1.0, 1 / ratio) for count, ratio in counted.items()} | {min(width, cores): 1.0}
    speeds = np.interp(range(1, cores + 1), sorted(speed_at), [speed_at[count] for count in sorted(speed_at)])
    return [four_digits(speed) for speed in np.minimum.accumulate(speeds)]


def _rising_table(points: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """The table, adjusted so that it does not fall between its last two points."""
    table = sorted(points.items())
    if len(table) > 1 and table[-1][1] < table[-2][1]:
        table[-1] = (table[-1][0], table[-2][1])
    return tuple(table)


def four_digits(number: float) -> float:
    """The number with four digits."""
    return float(f"{number:.4g}")
