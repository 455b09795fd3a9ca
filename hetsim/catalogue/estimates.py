"""Estimate the seconds of a step for an unmeasured pair of GPU and model, and the error of such estimates.

The law is additive in logarithms, fitted by ridge regression to all rows:

    log seconds = GPU + GPU in half precision + GPU with the programs of the source + series + log of the size of the batch

The size is on the line of the model's measured batch curves (`curves`): share + (1 − share) · batch / usual batch of the series.
Larger GPUs were mostly measured with larger batches. So a power of the batch size, fitted to all rows, would absorb a part of their
speed. Its estimates of two GPUs at one batch size would be too similar.

The error is measured by leaving out all rows of a pair of GPU and model, in any precision and from any source.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hetsim.catalogue import curves
from hetsim.catalogue.tables import MeasuredStep, Source

RIDGE = {"gpu": 0.01, "half": 0.3, "programs": 0.3, "pair": 0.3, "series": 1e-6}
"""The strength with which each effect is drawn to zero."""
COVERED = 0.8
"""The share of left-out pairs whose error is at most the reported one."""
ENOUGH = 8
"""A model with at least this number of left-out pairs has its own error."""
LAWS = {
    "GPU": {"gpu"},
    "GPU, precision": {"gpu", "half"},
    "GPU, programs": {"gpu", "programs"},
    "GPU, precision, programs": {"gpu", "half", "programs"},
}
"""The effects of a GPU in the compared laws. The last law is used."""
CHOSEN: Collection[str] = LAWS["GPU, precision, programs"]

Effect = tuple[str, ...]


class Law:
    """The fitted law."""

    def __init__(self, rows: Sequence[MeasuredStep], sources: Mapping[str, Source], of_gpu: Collection[str] = CHOSEN) -> None:
        self._rows, self._sources, self._of_gpu = rows, sources, of_gpu
        by_series: dict[tuple[str, str, str], list[int]] = {}
        for row in rows:
            by_series.setdefault(row.series, []).append(row.batch)
        self.usual_batch = {series: statistics.median_high(batches) for series, batches in by_series.items()}
        """The usual batch of each series: the median of its rows."""
        self.share = {model: curves.usual_share(rows, model) for model in {row.model for row in rows}}
        """For each model, the share of the seconds at the usual batch that does not depend on the batch size."""
        columns: dict[Effect, int] = {}
        entries = [[(columns.setdefault(effect, len(columns)), value) for effect, value in self._effects(row)] for row in rows]
        self._columns, self._matrix = columns, np.zeros((len(rows), len(columns)))
        for place, effects in enumerate(entries):
            for column, value in effects:
                self._matrix[place, column] = value
        logs = np.array([math.log(row.seconds / self._size(row)) for row in rows])
        numbers: dict[tuple[str, ...], int] = {}
        for row in rows:
            numbers[row.gpu, *row.series] = numbers.get((row.gpu, *row.series), 0) + 1
        weights = np.array([1 / numbers[row.gpu, *row.series] for row in rows])
        self._weighted = np.sqrt(weights)[:, None] * self._matrix
        right = np.sqrt(weights) * logs
        inverse = np.linalg.inv(self._weighted.T @ self._weighted + np.diag([RIDGE[effect[0]] for effect in columns]))
        self._solved = inverse @ (self._weighted.T @ right)
        self._shares = self._weighted @ inverse
        self._roots, self._residuals = np.sqrt(weights), right - self._weighted @ self._solved

    def _effects(self, row: MeasuredStep) -> list[tuple[Effect, float]]:
        effects: list[tuple[Effect, float]] = [(("series", *row.series), 1.0)]
        of_gpu = {"gpu": 1.0, "half": -1.0 if row.precision == "fp32" else 1.0}
        effects += [((name, row.gpu), value) for name, value in of_gpu.items() if name in self._of_gpu]
        if "programs" in self._of_gpu:
            effects.append((("programs", row.gpu, self._sources[row.source].family), 1.0))
        return [*effects, (("pair", row.gpu, row.model), 1.0)]

    def seconds(self, row: MeasuredStep) -> float:
        """The seconds of this step. The row's own `seconds` are not used."""
        log = math.fsum(self._solved[self._columns[effect]] * value for effect, value in self._effects(row) if effect in self._columns)
        return math.exp(log) * self._size(row)

    def _size(self, row: MeasuredStep) -> float:
        """The size of a batch, relative to the usual batch of its series."""
        share = self.share[row.model]
        return share + (1 - share) * row.batch / self.usual_batch[row.series]

    @cached_property
    def left_out_errors(self) -> dict[tuple[str, str], float]:
        """For each pair of GPU and model, the median relative error of its rows if all of them are left out.

        The pair's GPU and series must have other rows.
        """
        places: dict[tuple[str, str], list[int]] = {}
        gpus_of: dict[tuple[str, str, str], set[str]] = {}
        for place, row in enumerate(self._rows):
            places.setdefault((row.gpu, row.model), []).append(place)
            gpus_of.setdefault(row.series, set()).add(row.gpu)
        models_of: dict[str, int] = {}
        for gpu, _ in places:
            models_of[gpu] = models_of.get(gpu, 0) + 1
        medians = {}
        for (gpu, model), pair_places in places.items():
            errors = self._errors(pair_places)[[len(gpus_of[self._rows[place].series]) > 1 for place in pair_places]]
            if models_of[gpu] > 1 and len(errors):
                medians[gpu, model] = math.exp(float(np.median(np.abs(errors)))) - 1
        return medians

    def _errors(self, places: list[int]) -> NDArray[np.float64]:
        """The logarithmic errors of these rows by the law without them: (1 − their block of the hat matrix)⁻¹ · their residuals."""
        block = np.eye(len(places)) - self._shares[places] @ self._weighted[places].T
        return np.asarray(np.linalg.solve(block, self._residuals[places]) / self._roots[places])

    def error(self, model: str) -> tuple[float, int]:
        """The relative error that covers the share `COVERED` of the left-out pairs (of this model if it has enough), and their number."""
        of_model = [error for (_, name), error in self.left_out_errors.items() if name == model]
        errors = of_model if len(of_model) >= ENOUGH else list(self.left_out_errors.values())
        return (float(np.quantile(errors, COVERED)), len(errors)) if errors else (math.inf, 0)
