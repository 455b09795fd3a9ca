"""Estimate the seconds of a step for an unmeasured pair of GPU and model, and the error of such estimates.

The law is additive in logarithms, fitted by ridge regression to all rows:

    log (seconds − fixed part) / batch = card + chip + pair of chip and model + series

The fixed part is that of the GPU's own batch curve, or else of the model's (`curves`), so it does not grow with the batches that large GPUs
were measured with. Cards of one chip differ by a factor: the median ratio in the series that measured both, or that of their float32 peaks.

The error of a pair of chip and model is measured without all its rows, in any precision and from any source. That of a card whose twin was
measured is measured without the series.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hetsim.catalogue.curves import FixedParts, seconds_per_sample
from hetsim.catalogue.tables import Catalogue, MeasuredStep

RIDGE = {"chip": 0.01, "pair": 0.3, "series": 1e-6}
"""The strength with which each effect is drawn to zero."""
COVERED = 0.8
"""The share of left-out measurements whose error is at most the reported one."""
ALIKE = 1.08
"""Cards of one chip whose seconds differ by at most this factor take the same: eight of ten left-out series scatter by as much."""
ENOUGH = 8
"""A model with at least this number of left-out pairs has its own error."""
Effect = tuple[str, ...]


class Law:
    """The fitted law."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._rows = rows = catalogue.rows
        self._gpus = catalogue.gpus
        self.fixed = FixedParts(rows)
        batches: dict[tuple[str, str, str], list[int]] = {}
        for row in rows:
            batches.setdefault(row.series, []).append(row.batch)
        self.usual_batch = {series: statistics.median_high(of_series) for series, of_series in batches.items()}
        """The usual batch of each series: the median of its rows."""
        self._fixed = {series: self.fixed.seconds(*series[:2]) for series in batches}
        self._slopes: dict[tuple[str, ...], dict[int, float]] = {}
        for row in rows:
            self._slopes.setdefault((row.gpu, *row.series), {})[row.batch] = self._slope(row)
        self.card_factors = self._card_factors()
        """The seconds of each card relative to those of the card of its chip with the most rows."""
        columns: dict[Effect, int] = {}
        entries = [[columns.setdefault(effect, len(columns)) for effect in self._effects(row)] for row in rows]
        self._columns, matrix = columns, np.zeros((len(rows), len(columns)))
        for place, effects in enumerate(entries):
            matrix[place, effects] = 1.0
        logs = np.array([math.log(self._slope(row) / self.card_factors[row.gpu]) for row in rows])
        numbers = Counter((row.gpu, *row.series) for row in rows)
        self._roots = np.sqrt([1 / numbers[row.gpu, *row.series] for row in rows])
        self._weighted = self._roots[:, None] * matrix
        inverse = np.linalg.inv(self._weighted.T @ self._weighted + np.diag([RIDGE[effect[0]] for effect in columns]))
        self._solved = inverse @ (self._weighted.T @ (self._roots * logs))
        self._shares = self._weighted @ inverse
        self._residuals = self._roots * logs - self._weighted @ self._solved

    def _slope(self, row: MeasuredStep) -> float:
        own_part = self.fixed.of_curves.get((row.gpu, *row.series))
        return seconds_per_sample(row.batch, row.seconds, self._fixed[row.series] if own_part is None else own_part)

    def _effects(self, row: MeasuredStep) -> tuple[Effect, ...]:
        chip = self._gpus[row.gpu].die
        return ("series", *row.series), ("chip", chip), ("pair", chip, row.model)

    def seconds(self, row: MeasuredStep) -> float:
        """The seconds of this step. The row's own `seconds` are not used."""
        log = math.fsum(self._solved[self._columns[effect]] for effect in self._effects(row) if effect in self._columns)
        return self._fixed[row.series] + math.exp(log) * self.card_factors[row.gpu] * row.batch

    def _card_factors(self) -> dict[str, float]:
        first: dict[str, str] = {}
        for name, _ in Counter(row.gpu for row in self._rows).most_common():
            first.setdefault(self._gpus[name].die, name)
        factors = {}
        for name, gpu in self._gpus.items():
            reference = first.get(gpu.die, name)
            ratios = self._ratios(name, reference)
            peaks = self._gpus[reference].peak("fp32"), gpu.peak("fp32")
            by_peaks = peaks[0] / peaks[1] if peaks[0] and peaks[1] else 1.0
            factors[name] = _card_factor(ratios) if ratios else by_peaks
        return factors

    def _ratios(self, name: str, reference: str) -> list[float]:
        """In each series that measured both cards, the ratio of their seconds per sample at the nearest batch sizes."""
        ratios = []
        for key, slopes in self._slopes.items():
            others = self._slopes.get((reference, *key[1:]))
            if key[0] == name and others is not None:
                batch, nearest = min(((a, b) for a in slopes for b in others), key=lambda pair: abs(math.log(pair[0] / pair[1])))
                ratios.append(slopes[batch] / others[nearest])
        return ratios

    @cached_property
    def twin_errors(self) -> list[float]:
        """The relative errors of cards in series that measured another card of the chip, by the factor of the other series."""
        errors = []
        for gpu, twin in combinations(self._gpus.values(), 2):
            ratios = self._ratios(gpu.name, twin.name) if gpu.die == twin.die else []
            others = [ratios[:place] + ratios[place + 1 :] for place in range(len(ratios))] if len(ratios) > 1 else []
            errors += [math.exp(abs(math.log(ratio / _card_factor(rest)))) - 1 for ratio, rest in zip(ratios, others, strict=False)]
        return errors

    @cached_property
    def left_out_errors(self) -> dict[tuple[str, str], float]:
        """For each pair of chip and model, the median relative error of its rows if all of them are left out.

        The pair's chip and series must have other rows.
        """
        places: dict[tuple[str, str], list[int]] = {}
        chips_of: dict[tuple[str, str, str], set[str]] = {}
        for place, row in enumerate(self._rows):
            chip = self._gpus[row.gpu].die
            places.setdefault((chip, row.model), []).append(place)
            chips_of.setdefault(row.series, set()).add(chip)
        models_of = Counter(chip for chip, _ in places)
        medians = {}
        for (chip, model), pair_places in places.items():
            if models_of[chip] > 1:
                logs = [
                    abs(math.log((self._fixed[row.series] + self._slope(row) * math.exp(-error) * row.batch) / row.seconds))
                    for row, error in zip((self._rows[place] for place in pair_places), self._errors(pair_places), strict=True)
                    if len(chips_of[row.series]) > 1
                ]
                if logs:
                    medians[chip, model] = math.exp(statistics.median(logs)) - 1
        return medians

    def _errors(self, places: list[int]) -> NDArray[np.float64]:
        """The logarithmic errors of these rows by the law without them: (1 − their block of the hat matrix)⁻¹ · their residuals."""
        block = np.eye(len(places)) - self._shares[places] @ self._weighted[places].T
        return np.asarray(np.linalg.solve(block, self._residuals[places]) / self._roots[places])

    def pair_error(self, model: str) -> tuple[float, int]:
        """The relative error that covers the share `COVERED` of the left-out pairs (of this model if it has enough), and their number."""
        of_model = [error for (_, name), error in self.left_out_errors.items() if name == model]
        errors = of_model if len(of_model) >= ENOUGH else list(self.left_out_errors.values())
        return _covering(errors), len(errors)

    @cached_property
    def twin_error(self) -> float:
        """The relative error that covers the share `COVERED` of the left-out series of cards whose chip was measured."""
        return _covering(self.twin_errors)

    def shape_error(self, model: str) -> float:
        """The relative error that covers the share `COVERED` of the left-out curves: the error of a batch size that was not measured."""
        return self._shape_errors[any(key[2] == model for key in self.fixed.curves)]

    @cached_property
    def _shape_errors(self) -> tuple[float, float]:
        """The errors of models without curves and with curves."""
        without, having = (self.fixed.left_out_errors(without_model=without_model) for without_model in (True, False))
        return _covering(without), _covering(having)


def _card_factor(ratios: list[float]) -> float:
    median = statistics.median(ratios)
    return median if max(median, 1 / median) > ALIKE else 1.0


def _covering(errors: list[float]) -> float:
    return float(np.quantile(errors, COVERED)) if errors else math.inf
