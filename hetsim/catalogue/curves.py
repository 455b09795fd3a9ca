"""Batch curves of a GPU: measured points, or a straight line if only one batch size was measured or estimated.

A line has a fixed part in seconds, for launches and the host, and seconds per sample. The fixed part is that of the program's own curves of
the model, else of all curves of the model, else of all models. That of another program is at most the model's quickest published step. If a
GPU is left out, such a part predicts its curve better than a share of the seconds at the largest batch (`benchmarks/catalogue.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hetsim.catalogue.tables import MeasuredStep

Table = tuple[tuple[int, float], ...]
"""(samples, seconds), rising in samples."""
WIDTH = 1.9
"""The minimum ratio of a curve's largest to its smallest batch that determines a fixed part."""
SHARES = np.linspace(0.0, 0.95, 96)
NEAR = 8
"""A batch size is near a measured one if it is at most this many times smaller or larger."""
MOST_FIXED = 0.9
"""The largest share of a step that a fixed part from other curves may take."""


def measured_curve(rows: Iterable[MeasuredStep]) -> Table:
    """The seconds by batch size. Several measurements of a batch size are averaged geometrically."""
    by_batch: dict[int, list[float]] = {}
    for row in rows:
        by_batch.setdefault(row.batch, []).append(row.seconds)
    table = [(batch, statistics.geometric_mean(by_batch[batch])) for batch in sorted(by_batch)]
    while len(table) > 1 and table[-1][1] < table[-2][1]:  # a cluster's table continues as between its last two points
        del table[-2]
    return tuple(table)


def line(batch: int, seconds: float, fixed: float) -> Table:
    """A line through this point with this fixed part."""
    per_sample = seconds_per_sample(batch, seconds, fixed)
    return ((1, seconds - (batch - 1) * per_sample), (batch, seconds)) if batch > 1 else ((1, seconds), (2, seconds + per_sample))


def seconds_per_sample(batch: int, seconds: float, fixed: float) -> float:
    """The slope of the line through this point with this fixed part."""
    return (seconds - min(fixed, MOST_FIXED * seconds)) / batch


def fixed_part(curve: Table) -> float:
    """The fixed part in seconds of the line through a curve's largest batch that is nearest to the curve, in logarithms."""
    largest, last = curve[-1]
    batches, seconds = np.array([point[0] for point in curve[:-1]]), np.array([point[1] for point in curve[:-1]])
    lines = SHARES[:, None] + (1 - SHARES[:, None]) * batches / largest
    return last * float(SHARES[np.argmin((np.log(lines * last / seconds) ** 2).sum(axis=1))])


def curves(rows: Sequence[MeasuredStep]) -> dict[tuple[str, ...], Table]:
    """The measured curves that determine a fixed part, by GPU, source, model and precision."""
    by_gpu: dict[tuple[str, ...], list[MeasuredStep]] = {}
    for row in rows:
        by_gpu.setdefault((row.gpu, *row.series), []).append(row)
    by_key = {key: measured_curve(steps) for key, steps in by_gpu.items() if len(steps) > 1}
    return {key: curve for key, curve in by_key.items() if len(curve) > 1 and curve[-1][0] >= WIDTH * curve[0][0]}


class FixedParts:
    """The fixed parts of lines, from all curves or from those of other GPUs."""

    def __init__(self, rows: Sequence[MeasuredStep]) -> None:
        self.curves = curves(rows)
        self.of_curves = {key: fixed_part(curve) for key, curve in self.curves.items()}
        self._quickest: dict[str, dict[str, float]] = {}
        for row in rows:
            of_model = self._quickest.setdefault(row.model, {})
            of_model[row.gpu] = min(row.seconds, of_model.get(row.gpu, math.inf))

    def seconds(self, source: str, model: str, *, without_gpu: str = "", without_model: bool = False) -> float:
        """The fixed part of a step of this model by the programs of this source.

        Args:
            source: the name of the source.
            model: the name of the model.
            without_gpu: a GPU whose curves and steps are left out.
            without_model: whether the model's curves are left out.
        """
        parts = {key: part for key, part in self.of_curves.items() if key[0] != without_gpu and not (without_model and key[2] == model)}
        of_model = {key: part for key, part in parts.items() if key[2] == model}
        of_source = [part for key, part in of_model.items() if key[1] == source]
        quickest = min((seconds for gpu, seconds in self._quickest.get(model, {}).items() if gpu != without_gpu), default=math.inf)
        if of_source:
            return statistics.median(of_source)
        return min(statistics.median(of_model.values() or _median_by_model(parts) or [0.0]), quickest)

    def left_out_errors(self, *, without_model: bool) -> list[float]:
        """For each curve, the median relative error of the line through its largest batch, by the curves of other GPUs (and models).

        It is the error at the measured batch sizes that are near the largest one.
        """
        errors = []
        for key, curve in self.curves.items():
            if without_model or any(other[0] != key[0] and other[2] == key[2] for other in self.curves):
                fixed = self.seconds(key[1], key[2], without_gpu=key[0], without_model=without_model)
                (_, first), (largest, last) = line(*curve[-1], fixed)
                logs = [
                    abs(math.log((first + (last - first) * (batch - 1) / (largest - 1)) / seconds))
                    for batch, seconds in curve[:-1]
                    if largest <= NEAR * batch
                ]
                errors += [math.exp(statistics.median(logs)) - 1] if logs else []
        return errors


def _median_by_model(parts: Mapping[tuple[str, ...], float]) -> list[float]:
    by_model: dict[str, list[float]] = {}
    for key, part in parts.items():
        by_model.setdefault(key[2], []).append(part)
    return [statistics.median(of_model) for of_model in by_model.values()]
