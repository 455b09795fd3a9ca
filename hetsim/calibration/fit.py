"""From readings to numbers of a cluster: lines, tables, noise, and how well they predict what they were not fitted to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.calibration.noise import Noise
from hetsim.calibration.readings import Reading
from hetsim.cluster.compute_times import interpolated

AS_GOOD = 0.005
"""A line is preferred to a table whose error is smaller by less than this."""
LEAST_SECONDS = 1e-9
LEAST_COLD = 0.02
"""Of what a gradient or a message takes: less is no coldness."""
LEAST_FIRST = 0.05
"""Of what a gradient takes: a first one that takes less than this longer is as others."""
SHORTEST_COOLING = 1e-4
"""Seconds after which caches are cold, at least."""


@dataclass(frozen=True)
class Line:
    """y = constant + slope · x, both at least zero."""

    constant: float
    slope: float

    def __call__(self, x: float) -> float:
        """Its y at x."""
        return self.constant + self.slope * x

    @classmethod
    def fitted(cls, points: Mapping[int, float]) -> Line:
        """The line with the least squares of relative errors."""
        from scipy.optimize import nnls

        x, y = np.array(list(points), dtype=float), np.array(list(points.values()), dtype=float)
        (constant, slope), _ = nnls(np.stack([1 / y, x / y], axis=1), np.ones_like(x))
        return cls(float(constant), float(slope))


@dataclass(frozen=True)
class Steps:
    """The times of a node's gradients: a line, or a table where that predicts better; and how well."""

    line: Line
    table: tuple[tuple[int, float], ...]
    error_of_line: float
    """The mean relative error at the sizes that were held out."""
    error_of_table: float
    noise: Noise
    """Of the times of gradients over the mean of their size."""
    sizes: tuple[int, int]
    """The smallest and the largest batch that was measured."""
    means: tuple[tuple[int, float], ...] = ()
    """The mean seconds of each size that was measured, those that were held out among them."""

    @property
    def takes_table(self) -> bool:
        """Whether the table is clearly better."""
        return self.error_of_table < self.error_of_line - AS_GOOD

    @property
    def error(self) -> float:
        """Of what was taken."""
        return self.error_of_table if self.takes_table else self.error_of_line

    def seconds(self, samples: int) -> float:
        """The seconds of a gradient of this number of samples."""
        return interpolated(self.table, samples) if self.takes_table else self.line(samples)

    @classmethod
    def fitted(cls, readings: Iterable[Reading], fitted: Sequence[int]) -> Steps:
        """To the readings of these sizes; the others are held out."""
        readings = list(readings)
        by_size = means(readings, "cpu_seconds")
        points = {size: mean for size, mean in by_size.items() if size in fitted}
        others = {size: mean for size, mean in by_size.items() if size not in fitted} or points
        line, table = Line.fitted(points), _rising(points)
        return cls(
            line=line,
            table=table,
            error_of_line=fmean(abs(line(size) / mean - 1) for size, mean in others.items()),
            error_of_table=fmean(abs(interpolated(table, size) / mean - 1) for size, mean in others.items()),
            noise=Noise.fitted([max(reading.cpu_seconds, LEAST_SECONDS) / by_size[reading.size] for reading in readings]),
            sizes=(min(by_size), max(by_size)),
            means=tuple(by_size.items()),
        )

    def first(self, readings: Sequence[Reading]) -> float:
        """The median of how much longer first gradients took; 0 if that is hardly anything."""
        longer = [reading.cpu_seconds - self.seconds(reading.size) for reading in readings]
        least = LEAST_FIRST * fmean(seconds for _, seconds in self.means)
        return extra if longer and (extra := median(longer)) > least else 0.0

    def as_row(self, file: str | None = None) -> dict[str, Any]:
        """The keys of a row of `cluster.nodes`; `file` is where measured noise is written."""
        row: dict[str, Any] = {}
        if self.takes_table:
            row["table"] = [[size, shown(seconds)] for size, seconds in self.table]
        else:
            row |= {"seconds_per_sample": max(shown(self.line.slope), LEAST_SECONDS), "overhead_seconds": shown(self.line.constant)}
        return row | self.noise.as_row(file)


@dataclass(frozen=True)
class Cold:
    """What gradients take longer after a pause: `most`, but for what is still warm."""

    most: float = 0.0
    cooling: float = 1.0

    def __call__(self, pause: float) -> float:
        """The extra seconds after a pause, in seconds."""
        return self.most * -math.expm1(-pause / self.cooling)

    @classmethod
    def fitted(cls, readings: Iterable[Reading]) -> Cold:
        """By least squares; nothing if gradients are hardly longer."""
        from scipy.optimize import curve_fit

        seconds = means(readings, "cpu_seconds")
        pauses = [pause for pause in seconds if pause]
        if len(pauses) < 2:
            return cls()
        longer = [seconds[pause] - seconds[0] for pause in pauses]
        if max(longer) < LEAST_COLD * seconds[0]:
            return cls()
        x, y = np.array(pauses) / 1e6, np.array(longer) / max(longer)
        (most, cooling), _ = curve_fit(
            lambda pause, most, cooling: most * -np.expm1(-pause / cooling), x, y, p0=(1.0, x[len(x) // 2]),
            bounds=((0.0, x[0] / 10), (np.inf, x[-1] / 3)),
        )  # fmt: skip
        return cls(float(most) * max(longer), float(cooling))

    def in_training(self, longer: Sequence[tuple[float, float]], *, least: float) -> Cold:
        """This shape, with the size that gradients show after exchanges: seconds of each pause, and how much longer the gradient took.

        After an exchange more is cold than after as long a sleep. At most `least` seconds is no coldness.
        """
        if not longer:
            return self
        pauses, seconds = np.array(longer).T
        shape = Cold(1.0, self.cooling if self.most else SHORTEST_COOLING)
        parts = np.array([shape(float(pause)) for pause in pauses])
        most = float(parts @ seconds) / float(parts @ parts)
        return Cold(most, shape.cooling) if most > least else Cold()

    @classmethod
    def of_exchanges(cls, exchanges: Sequence[tuple[float, float, float]], alone: float) -> Cold:
        """Of messages, two in each exchange: seconds before the first one, those between them, and the CPU-seconds of both.

        `alone` is what both take right after others.
        """
        from scipy.optimize import curve_fit

        before, between, seconds = np.array(exchanges).T
        longer = seconds - alone
        mean = float(longer.mean())
        if mean < LEAST_COLD * alone:
            return cls()
        pauses, longest = np.stack([before, between]), max(float(before.max()), float(between.max()), 2 * SHORTEST_COOLING)

        def both(pauses: NDArray[np.float64], most: float, cooling: float) -> NDArray[np.float64]:
            total: NDArray[np.float64] = -most * np.expm1(-pauses / cooling).sum(axis=0)
            return total

        bounds = ((0.0, SHORTEST_COOLING), (np.inf, longest))
        (most, cooling), _ = curve_fit(both, pauses, longer / mean, p0=(0.5, (SHORTEST_COOLING * longest) ** 0.5), bounds=bounds)
        return cls(float(most) * mean, float(cooling))

    def as_row(self) -> dict[str, float]:
        """The keys of a row of `cluster.nodes`, and of `network.cpu`."""
        return {"cold_seconds": shown(self.most), "cooling_seconds": shown(self.cooling)} if self.most else {}


def means(readings: Iterable[Reading], column: str) -> dict[int, float]:
    """The mean of this column by size."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for reading in readings:
        by_size[reading.size].append(getattr(reading, column))
    return {size: max(fmean(values), LEAST_SECONDS) for size, values in sorted(by_size.items())}


def busy_speeds(cores: int, inflation: Mapping[int, float], width: int = 1) -> list[float]:
    """The speed of each core while 1, 2 … `cores` of them are busy, by how much longer the same gradient takes then. It never rises.

    `inflation` is by the number of cores that are busy at the same time; between two numbers the speed is linear.
    A gradient alone keeps `width` of them busy, at full speed.
    """
    known = {min(width, cores): 1.0} | {min(count, cores): min(1.0, 1 / ratio) for count, ratio in sorted(inflation.items(), reverse=True)}
    speeds = np.interp(range(1, cores + 1), sorted(known), [known[count] for count in sorted(known)])
    return [shown(speed) for speed in np.minimum.accumulate(speeds)]


def alone_of(busy: float, beside: float) -> float:
    """What gradients take beside others relative to alone, if they were so for this part of the time and took `busy` on average."""
    return max(1.0, 1 + (busy - 1) / beside) if beside > 0 else 1.0


def _rising(points: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """A table that does not fall between its last two points."""
    table = sorted(points.items())
    if len(table) > 1 and table[-1][1] < table[-2][1]:
        table[-1] = (table[-1][0], table[-2][1])
    return tuple(table)


def shown(number: float) -> float:
    """With four digits."""
    return float(f"{number:.4g}")
