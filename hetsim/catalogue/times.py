"""The seconds of a named GPU for a named model: published measurements, or estimates that are marked as such."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hetsim import checks
from hetsim.catalogue import curves
from hetsim.catalogue.curves import Table
from hetsim.catalogue.estimates import Law
from hetsim.catalogue.tables import PRECISIONS, Catalogue, Gpu, MeasuredStep, Model

FITS = "lambda"
"""The family of sources whose batches are the largest that fit."""

Series = tuple[str, str, str]
"""Source, model and precision."""


@dataclass(frozen=True)
class Times:
    """A GPU's seconds by batch size, and how they are known."""

    gpu: Gpu
    series: Series
    table: Table
    num_measured: int
    """The number of measured batch sizes: 0 for an estimate, 1 for a single point, more for a curve."""
    error: float
    """The relative error; 0 if measured. Eight of ten such estimates are right when divided or multiplied by at most 1 + error."""
    num_pairs: int
    max_samples: int | None
    """The largest share that fits into memory; None if no published batch shows it."""

    def __str__(self) -> str:
        source, model, precision = self.series
        title = f"{self.gpu.name} with {model} in {precision}"
        if not self.num_measured:
            return f"{title}: estimated, ± {100 * self.error:.0f} % (leave-one-out over {self.num_pairs} pairs)"
        if self.num_measured == 1:
            return f"{title}: measured at {self.table[-1][0]} samples ({source}), and on a line from there"
        return f"{title}: measured at {self.num_measured} batch sizes ({source})"


@lru_cache(maxsize=2)
def fit_law(catalogue: Catalogue) -> Law:
    """Fit the law to all rows, once for each catalogue, because the fit takes as long as composing a config."""
    return Law(catalogue.rows, catalogue.sources)


@dataclass(frozen=True)
class Choice:
    """Looks up times in one catalogue."""

    catalogue: Catalogue

    @property
    def law(self) -> Law:
        """The law, fitted to all rows."""
        return fit_law(self.catalogue)

    def times(self, gpus: Sequence[str], model: str, precision: str | None = None) -> list[Times]:
        """The times of these GPUs, all from one series, so from the same program in one precision.

        It is the series that has measured most of the GPUs, and among these the one with the most batch sizes.
        """
        named_gpus, named_model = [self.catalogue.gpu(name) for name in gpus], self.catalogue.model(model)
        series = self._series({gpu.name for gpu in named_gpus}, named_model, precision)
        return [self._times(gpu, series) for gpu in named_gpus]

    def _series(self, gpus: Collection[str], model: Model, precision: str | None) -> Series:
        if precision is not None:
            checks.choice("precision", precision, PRECISIONS)
        measured: dict[Series, list[MeasuredStep]] = {}
        for row in self.catalogue.rows:
            if row.model == model.name and precision in (None, row.precision):
                measured.setdefault(row.series, []).append(row)
        if not measured:
            having = sorted({row.precision for row in self.catalogue.rows if row.model == model.name})
            raise ValueError(f"nobody measured {model.name} in {precision}: take precision {' or '.join(having)}")

        def order(series: Series) -> tuple[int, int, int]:
            steps = measured[series]
            return len({row.gpu for row in steps} & {*gpus}), sum(row.gpu in gpus for row in steps), len(steps)

        return max(sorted(measured), key=order)

    def _times(self, gpu: Gpu, series: Series) -> Times:
        steps = [row for row in self.catalogue.rows if row.series == series]
        table = curves.measured_curve(row for row in steps if row.gpu == gpu.name)
        fits = self.max_samples(gpu, series)
        if len(table) > 1:
            return Times(gpu, series, table, len(table), 0.0, 0, fits)
        share = self.law.share[series[1]]
        if table:
            return Times(gpu, series, curves.line(*table[0], share), 1, 0.0, 0, fits)
        if all(row.gpu != gpu.name for row in self.catalogue.rows):
            raise ValueError(
                f"nobody measured {gpu.name}, with any model: give its time, such as gpus: {{count: 1, seconds_per_sample: 2.5 ms}}"
            )
        batch = self.law.usual_batch[series]
        seconds = self.law.seconds(MeasuredStep(gpu.name, series[1], series[2], batch, 0.0, series[0], ""))
        error, num_pairs = self.law.error(series[1])
        return Times(gpu, series, curves.line(batch, seconds, share), 0, error, num_pairs, fits)

    def max_samples(self, gpu: Gpu, series: Series) -> int | None:
        """How many samples fit: proportional to memory, from the largest batches of other GPUs, and at least the largest measured batch."""
        alike = [row for row in self.catalogue.rows if (row.model, row.precision) == series[1:]]
        largest: dict[str, int] = {}
        for row in alike:
            if self.catalogue.sources[row.source].family == FITS:
                largest[row.gpu] = max(row.batch, largest.get(row.gpu, 0))
        memory = {name: other_gpu.memory_bytes for name in largest if (other_gpu := self.catalogue.gpus[name]).memory_bytes}
        largest_measured = max((row.batch for row in alike if row.gpu == gpu.name), default=0)
        if gpu.name in largest:
            return largest_measured
        if not memory or not gpu.memory_bytes:
            return None
        return max(largest_measured, int(gpu.memory_bytes * statistics.median(largest[name] / size for name, size in memory.items())), 1)
