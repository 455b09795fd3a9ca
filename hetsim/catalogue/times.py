"""The seconds of a named GPU for a named model: published measurements, or estimates that are marked as such."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hetsim import checks
from hetsim.catalogue import curves
from hetsim.catalogue.curves import Table
from hetsim.catalogue.estimates import Law
from hetsim.catalogue.tables import FITS, OWN, PRECISIONS, PURE_HALF, SHARDED, SUPERSEDED, Catalogue, Gpu, MeasuredStep, Model

SHARDS = 8
"""The number of GPUs over which the sources with sharded states divided them."""
STATES, STATES_IN_HALF = 16, 8
"""The bytes of a parameter that plain DDP with AdamW keeps on every GPU: weight, gradient and two moments, in float32 or in pure half."""
REACHED = 0.7
"""The share of a data sheet's peak that no estimate exceeds. Of 50 measured steps, at most one does."""
NEAR_RANGE, FAR_RANGE = (0.4, 1.6), (0.35, 3.0)
"""Nine of ten sources that are left out take these times the seconds that the others predict (`benchmarks/catalogue.py`)."""
SPREAD = (
    f"may take {NEAR_RANGE[0]:g} to {NEAR_RANGE[1]:g} times these seconds, as nine of ten sources do ({FAR_RANGE[0]:g} to {FAR_RANGE[1]:g} "
    f"times where a batch is over {curves.NEAR} times smaller or larger than a measured one); a step contains no loading of data"
)
"""How far a user's own program may be from the catalogue."""

SLICE_ERROR = 0.17
"""The error of a MIG slice's share of speed, if a batch fills it.

A slice of 3 sevenths has 4 eighths of the memory's bandwidth, which are 17 % more. A slice of 1, 2 or 4 sevenths has as many eighths of
the bandwidth, which are 13 % less, and 14 of 108 multiprocessors for each seventh, which are 9 % less.
"""

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
    """The relative error; 0 for a measured curve. Eight of ten such times are right when divided or multiplied by at most 1 + error."""
    num_pairs: int
    max_samples: int | None
    """The largest share that fits into memory; None if no published batch shows it."""
    largest_measured: int = 0
    """The largest measured batch size; 0 for an estimate."""
    twin: str = ""
    """The GPU of the same chip that was measured instead; empty for none."""
    notes: tuple[str, ...] = ()
    """What else limits these times."""

    def __str__(self) -> str:
        source, model, precision = self.series
        if not self.num_measured:
            known = f"estimated, ± {100 * self.error:.0f} % (leave-one-out over {self.num_pairs} pairs)"
        else:
            at = f"{self.largest_measured} samples" if self.num_measured == 1 else f"{self.num_measured} batch sizes"
            known = f"as {self.twin}, the same chip, measured at {at} ({source})" if self.twin else f"measured at {at} ({source})"
            if self.error:
                known += f", ± {100 * self.error:.0f} %{' at other batch sizes' if self.num_measured == 1 and not self.twin else ''}"
        return "; ".join([f"{self.gpu.name} with {model} in {precision}: {known}", *self.notes])


@lru_cache(maxsize=2)
def fit_law(catalogue: Catalogue) -> Law:
    """Fit the law to all rows, once for each catalogue, because the fit takes as long as composing a config."""
    return Law(catalogue)


@dataclass(frozen=True)
class Choice:
    """Looks up times in one catalogue."""

    catalogue: Catalogue

    @property
    def law(self) -> Law:
        """The law, fitted to all rows."""
        return fit_law(self.catalogue)

    def times(self, gpus: Sequence[str], model: str, precision: str | None = None, source: str | None = None) -> list[Times]:
        """The times of these GPUs, all from one series, so from the same program in one precision.

        It is a series of the user's own rows of these GPUs, or else the one that has measured most of their chips, then most of the GPUs,
        then most batch sizes. Raises ValueError if a GPU cannot hold the model.
        """
        named_gpus, named_model = [self.catalogue.gpu(name) for name in gpus], self.catalogue.model(model)
        series = self.series(named_gpus, named_model, precision, source)
        self._check_memory(named_gpus, series)
        return [self._times(gpu, series) for gpu in named_gpus]

    def series(self, gpus: Sequence[Gpu], model: Model, precision: str | None = None, source: str | None = None) -> Series:
        """The series from which these GPUs get their times. Raises ValueError if nobody measured the model so."""
        if precision is not None:
            checks.choice("precision", precision, PRECISIONS)
        measured: dict[Series, list[MeasuredStep]] = {}
        for row in self.catalogue.rows:
            if row.model == model.name and precision in (None, row.precision) and source in (None, row.source):
                measured.setdefault(row.series, []).append(row)
        if not measured and source is not None:
            having = sorted({row.source for row in self.catalogue.rows if row.model == model.name and precision in (None, row.precision)})
            raise ValueError(f"source {checks.shown(source)} has not measured {model.name} so: take source {' or '.join(having)}")
        if not measured:
            having = sorted({row.precision for row in self.catalogue.rows if row.model == model.name})
            raise ValueError(f"nobody measured {model.name} in {precision}: take precision {' or '.join(having)}")
        names = {gpu.part_of or gpu.name for gpu in gpus}

        def order(series: Series) -> tuple[int, ...]:
            steps = measured[series]
            cards = names & {row.gpu for row in steps}
            dies = {self.catalogue.gpus[row.gpu].die for row in steps}
            traits = self._traits(series[0])
            of_chip = sum(self.catalogue.gpus[name].die in dies for name in names)
            own, batches = len(cards) * (series[0] == OWN), sum(row.gpu in names for row in steps)
            return own, SHARDED not in traits, of_chip, not {SUPERSEDED, PURE_HALF} & {*traits}, len(cards), batches, len(steps)

        return max(sorted(measured), key=order)

    def _times(self, gpu: Gpu, series: Series) -> Times:
        if gpu.part_of:
            return self._times_of_slice(gpu, series)
        law, model = self.law, self.catalogue.models[series[1]]
        rows: dict[str, list[MeasuredStep]] = {}
        for row in self.catalogue.rows:
            if row.series == series and self.catalogue.gpus[row.gpu].die == gpu.die:
                rows.setdefault(row.gpu, []).append(row)
        card = gpu.name if gpu.name in rows else max(rows, key=lambda name: len(rows[name]), default="")
        num_measured = num_pairs = largest_measured = 0
        fits, notes = self.max_samples(gpu, series), self._notes(gpu, series)
        if card:
            factor = law.card_factors[gpu.name] / law.card_factors[card]
            table = tuple((batch, factor * seconds) for batch, seconds in curves.measured_curve(rows[card]))
            num_measured, largest_measured = len(table), table[-1][0]
            error = 0.0 if card == gpu.name else law.twin_error
        elif all(row.gpu != gpu.name for row in self.catalogue.rows):
            raise ValueError(
                f"nobody measured {gpu.name}, with any model: give its time, such as gpus: {{count: 1, seconds_per_sample: 2.5 ms}}"
            )
        else:
            batch = fits or law.usual_batch[series]
            table = ((batch, law.seconds(MeasuredStep(gpu.name, series[1], series[2], batch, 0.0, series[0], ""))),)
            error, num_pairs = law.pair_error(series[1])
        share = 1.0 if card else REACHED
        least = (model.flops or 0.0) / (gpu.peak(series[2]) or math.inf) / share
        if card != gpu.name:
            slowest = tuple((batch, max(seconds, batch * least)) for batch, seconds in table)
            notes += (f"at {100 * share:.0f} % of its peak",) * (slowest != table)
            table = slowest
        if len(table) == 1:
            (batch, seconds) = table[0]
            table = curves.line(batch, seconds, min(law.fixed.seconds(*series[:2]), max(0.0, seconds - batch * least)))
            error = math.expm1(math.hypot(math.log1p(error), math.log1p(law.shape_error(series[1]))))
        return Times(gpu, series, table, num_measured, error, num_pairs, fits, largest_measured, "" if card == gpu.name else card, notes)

    def _times_of_slice(self, gpu: Gpu, series: Series) -> Times:
        """The times of the whole GPU. What depends on the batch is divided by the slice's share of the multiprocessors."""
        whole, fixed = self._times(self.catalogue.gpus[gpu.part_of], series), self.law.fixed.seconds(*series[:2])
        return replace(
            whole,
            gpu=gpu,
            table=tuple((batch, seconds + max(seconds - fixed, 0.0) * (7 / gpu.sevenths - 1)) for batch, seconds in whole.table),
            error=math.expm1(math.hypot(math.log1p(whole.error), math.log1p(SLICE_ERROR))),
            max_samples=self.max_samples(gpu, series),
            twin=whole.twin or whole.gpu.name,
            notes=(*whole.notes, f"at {gpu.sevenths}/7 of its speed, and faster with batches that do not fill the whole GPU"),
        )

    def _traits(self, source: str) -> list[str]:
        return self.catalogue.sources[source].traits.split()

    def _notes(self, gpu: Gpu, series: Series) -> tuple[str, ...]:
        notes: tuple[str, ...] = ()
        if SHARDED in self._traits(series[0]):
            share = max(self._communication(row) for row in self.catalogue.rows if row.series == series)
            notes += (f"measured with FSDP, whose communication is at most {100 * share:.1f} % of a step",)
        if gpu.memory_bytes is None:
            notes += ("its memory is unknown, so it takes as many samples as the smallest GPU that was measured",)
        return notes

    def _communication(self, row: MeasuredStep) -> float:
        """The share of a step that sends 16-bit weights twice and gradients once around the machine, beside no computing."""
        sent = 3 * 2 * (self.catalogue.models[row.model].parameters or 0) * (SHARDS - 1) / SHARDS
        return sent / (self.catalogue.gpus[row.gpu].inside or math.inf) / row.seconds

    def _check_memory(self, gpus: Sequence[Gpu], series: Series) -> None:
        small = dict.fromkeys(gpu for gpu in gpus if self.max_samples(gpu, series) == 0)
        if small:
            names = " and ".join(f"{gpu.name} ({(gpu.memory_bytes or 0) / 1e9:g} GB)" for gpu in small)
            states = f"{self._states(*series[:2]) / 1e9:.3g} GB of weights, gradients and states"
            raise ValueError(
                f"{series[1]} is too large for {names}: plain DDP with AdamW keeps {states} on every GPU, and a sample needs room: "
                f"leave {'it' if len(small) == 1 else 'them'} out, or take a smaller model"
            )

    def max_samples(self, gpu: Gpu, series: Series) -> int | None:
        """How many samples fit beside the states: in proportion to the rest of the memory, from the largest batches of other GPUs.

        At least the largest batch that was measured on it without sharding. None if only the user's own rows could show it.
        """
        alike = [row for row in self.catalogue.rows if (row.model, row.precision) == series[1:]]
        measured = max((row.batch for row in alike if row.gpu == gpu.name and SHARDED not in self._traits(row.source)), default=0)
        fitting = [row for row in alike if FITS in self._traits(row.source)]
        largest: dict[str, MeasuredStep] = {}
        for row in sorted(fitting or alike, key=lambda row: row.batch):
            if row.source != OWN:
                largest[row.gpu] = row
        if measured and fitting and gpu.name in largest:
            return measured
        if gpu.memory_bytes is None:
            return min((row.batch for row in largest.values()), default=None)
        room = gpu.memory_bytes - self._states(*series[:2])
        rooms = {name: self._room(self.catalogue.gpus[name], row) for name, row in largest.items()}
        densities = [row.batch / rooms[name] for name, row in largest.items() if rooms[name] > 0]
        if not measured and room <= 0:
            return 0
        least = 0 if fitting else 1  # other sources may have stopped before the largest batch
        return max(measured, least, int(room * statistics.median(densities))) if densities else None

    def _states(self, source: str, model: str) -> float:
        """The bytes of a model's weights, gradients and AdamW's states."""
        of_parameter = STATES_IN_HALF if PURE_HALF in self._traits(source) else STATES
        return of_parameter * float(self.catalogue.models[model].parameters or 0)

    def _room(self, gpu: Gpu, row: MeasuredStep) -> float:
        """The memory beside the states in a measurement, in bytes."""
        return (gpu.memory_bytes or 0.0) - self._states(row.source, row.model) / (SHARDS if SHARDED in self._traits(row.source) else 1)
