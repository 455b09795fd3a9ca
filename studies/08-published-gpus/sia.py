"""Sia's steps: from a GPU's three batch sizes alone and two of each of the placements 2, 11 and 22 to all placements and batch sizes.

A placement has a digit for each node: the GPUs of the job on it. A gradient of b samples takes C(b) seconds on one GPU. In a placement
it takes s times as long, and an all-reduce takes R seconds; a step is that of `method=ddp` (simulated.py).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.optimize import least_squares
from simulated import Numbers, simulated_step, step_seconds

CALIBRATED = ("2", "11", "22")
"""The placements that a series is calibrated on, besides one GPU."""
PIPELINE = "gpt_pmp"
"""GPT with a pipeline: its step takes the same time, whatever the number of pipelines."""
PRIOR_OF_SLOWDOWN, PRIOR_OF_REDUCTION, FIRST_GUESS = 1.0, 0.02, 0.3
"""Weights of log(s) and of log(R / C / 0.3) beside errors of the calibrated steps, which have weight 1."""


class Point(NamedTuple):
    """A measured step."""

    placement: str
    batch: float
    seconds: float


class Placement(NamedTuple):
    """The GPUs of the fullest node, the nodes, and all GPUs."""

    most: int
    nodes: int
    gpus: int

    @classmethod
    def read(cls, digits: str) -> Placement:
        """From one digit for each node."""
        counts = [int(digit) for digit in digits]
        return cls(max(counts), len(counts), sum(counts))

    @property
    def mean(self) -> float:
        """Between the fullest node and the average one: their geometric mean."""
        return float(np.sqrt(self.most * self.gpus / self.nodes))


class Law(NamedTuple):
    """How s and R grow with the number of GPUs, beyond the calibrated placements.

    In one box R is that of two GPUs times (n − 1)^box: a bus that all GPUs share has about 1, a switch about 0.3. Between boxes R is that
    of placement 22 times (n/2) to the power card · log(R22/R11), as a shared network card makes it, and times (nodes − 1)^nodes.
    log(s) grows with (n − 1)^slowdown.
    """

    box: float
    card: float
    slowdown: float
    nodes: float


LAWS = [Law(*each) for each in product((1 / 4, 1 / 3, 1 / 2, 2 / 3), (1 / 4, 1 / 2, 3 / 4), (1 / 5, 1 / 3, 1 / 2), (0.0, -1 / 3))]


class Loss(NamedTuple):
    """Logarithms of s and of R over C at the smallest batch."""

    slowdown: float
    reduction: float


@dataclass(frozen=True)
class Series:
    """What a prediction may see of an application on a kind of GPU."""

    app: str
    gpu: str
    points: tuple[Point, ...]

    def steps(self, placement: str) -> tuple[Numbers, Numbers]:
        """Batch sizes and seconds of the calibrated points of a placement."""
        chosen = sorted((point.batch, point.seconds) for point in self.points if point.placement == placement)
        batches, seconds = zip(*chosen, strict=True) if chosen else ((), ())
        return np.array(batches), np.array(seconds)

    def alone(self, batches: ArrayLike) -> Numbers:
        """C(b): monotone cubic between the points of one GPU, in logarithms; constant outside of them."""
        sizes, seconds = self.steps("1")
        at = np.log(np.clip(np.asarray(batches, float), sizes[0], sizes[-1]))
        return np.asarray(np.exp(PchipInterpolator(np.log(sizes), np.log(seconds))(at)))

    @cached_property
    def unit(self) -> float:
        """The seconds of one GPU at the smallest batch."""
        return float(self.steps("1")[1][0])

    @cached_property
    def losses(self) -> dict[str, Loss]:
        """s and R of each calibrated placement."""
        return {placement: self._loss(placement) for placement in CALIBRATED if len(self.steps(placement)[0])}

    def _loss(self, placement: str) -> Loss:
        batches, seconds = self.steps(placement)
        compute = self.alone(batches)

        def residuals(loss: Numbers) -> Numbers:
            found = step_seconds(np.exp(loss[0]) * compute, np.exp(loss[1]) * self.unit)
            return np.array([*np.log(found / seconds), PRIOR_OF_SLOWDOWN * loss[0], PRIOR_OF_REDUCTION * (loss[1] - np.log(FIRST_GUESS))])

        fits = [least_squares(residuals, [0.0, np.log(guess)]) for guess in (0.05, 0.5, 2, 5)]
        return Loss(*min(fits, key=lambda fit: fit.cost).x)

    def loss(self, placement: Placement, law: Law) -> Loss:
        """Of any placement, from the calibrated ones."""
        two = self.losses["2"]
        apart, pairs = self.losses.get("11", two), self.losses.get("22", two)
        if placement.nodes == 1:
            others = placement.most - 1
            slowdown, reduction = two.slowdown * others**law.slowdown, two.reduction + law.box * np.log(others)
        else:
            doublings = np.log2(placement.mean)
            part = doublings if doublings <= 1 else (placement.most - 1) ** law.slowdown
            slowdown = apart.slowdown + (pairs.slowdown - apart.slowdown) * part
            growth = pairs.reduction - apart.reduction
            if doublings <= 1:
                reduction = apart.reduction + growth * doublings
            else:
                reduction = pairs.reduction + law.card * np.clip(growth, 0, 1.5) * np.log(placement.mean / 2)
            reduction += law.nodes * np.log(placement.nodes - 1)
        return Loss(float(np.clip(slowdown, -0.7, 1.6)), float(reduction))

    def residual(self, batches: ArrayLike) -> Numbers:
        """What the calibrated placements have in common beyond their s and R, as a logarithm, interpolated in that of the batch size."""
        found = []
        for placement, loss in self.losses.items():
            sizes, seconds = self.steps(placement)
            modelled = step_seconds(np.exp(loss.slowdown) * self.alone(sizes), np.exp(loss.reduction) * self.unit)
            found.append(np.interp(np.log(np.asarray(batches, float)), np.log(sizes), np.log(seconds / modelled)))
        return np.asarray(np.mean(found, axis=0)) if found else np.zeros(np.shape(batches))

    def predict(self, keys: Sequence[tuple[str, float]], law: Law, *, simulate: bool) -> Numbers:
        """Seconds of a step of each placement and batch size; simulated, or by the closed form."""
        batches = np.array([batch for _, batch in keys])
        alone, residual = self.alone(batches), np.exp(self.residual(batches))
        places = [Placement.read(placement) for placement, _ in keys]
        losses = {place: self.loss(place, law) for place in set(places) if place.gpus > 1}
        found = []
        for place, compute, factor in zip(places, alone, residual, strict=True):
            if place.gpus == 1:
                found.append(compute)
                continue
            gradient, reduction = np.exp(losses[place].slowdown) * compute, np.exp(losses[place].reduction) * self.unit
            step = simulated_step(float(gradient), float(reduction), place.gpus) if simulate else float(step_seconds(gradient, reduction))
            found.append(step * factor)
        return np.array(found)


def pollux(series: Series) -> Callable[[Sequence[tuple[str, float]]], Numbers]:
    """Pollux's throughput model, fitted to the same points (Qiao et al., OSDI '21, section 3.2).

        T_grad = α + β m
        T_sync = 0 for one GPU, α_l + β_l (K − 2) in one node, α_n + β_n (K − 2) in several
        T_iter = (T_grad^γ + T_sync^γ)^(1/γ) with 1 ≤ γ ≤ 10

    Errors are those of logarithms; β_l is 0, as for all that Pollux has not explored.
    """
    batches, seconds = (np.array([getattr(point, name) for point in series.points]) for name in ("batch", "seconds"))
    places = [Placement.read(point.placement) for point in series.points]

    def times(numbers: Numbers, batches: Numbers, places: Sequence[Placement]) -> Numbers:
        gradient, more = numbers[0] + numbers[1] * batches, np.array([max(place.gpus - 2, 0) for place in places])
        inside = np.array([place.nodes == 1 for place in places])
        sync = np.where(inside, numbers[2], numbers[3] + numbers[4] * more) * np.array([place.gpus > 1 for place in places])
        largest = np.maximum(gradient, sync)
        power = numbers[5]
        return np.asarray(largest * ((gradient / largest) ** power + (sync / largest) ** power) ** (1 / power))

    def numbers(free: Numbers) -> Numbers:
        return np.array([*np.exp(free[:5]), 1 + 9 / (1 + np.exp(-free[5]))])

    sizes, alone = series.steps("1")
    slope = max((alone[-1] - alone[0]) / (sizes[-1] - sizes[0]), 1e-9)
    fits = [
        least_squares(
            lambda free: np.log(times(numbers(free), batches, places) / seconds),
            [*np.log([max(alone[0] - slope * sizes[0], 1e-4), slope, guess * alone[0], guess * alone[0], 1e-2 * guess * alone[0]]), power],
            bounds=([-30.0] * 5 + [-20.0], [30.0] * 5 + [20.0]),
        )
        for guess in (0.05, 0.5, 2)
        for power in (-2.0, 0.0, 2.0)
    ]
    fitted = numbers(min(fits, key=lambda fit: fit.cost).x)
    return lambda keys: times(fitted, np.array([batch for _, batch in keys]), [Placement.read(place) for place, _ in keys])


def read(path: Path) -> dict[tuple[str, str], list[Point]]:
    """The measured steps of placements, by application and GPU."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8")
    found: dict[tuple[str, str], list[Point]] = {}
    for row in csv.DictReader(text.splitlines()):
        if row["kind"] == "placements":
            point = Point(row["placement"], float(row["local_bsz"]), float(row["step_time"]))
            found.setdefault((row["app"], row["gpu"]), []).append(point)
    return found


def seen(points: Collection[Point]) -> tuple[Point, ...]:
    """The points that a prediction may see: three batch sizes of one GPU, and the smallest and the largest of placements 2, 11 and 22."""
    chosen: list[Point] = []
    for placement in ("1", *CALIBRATED):
        of_it = sorted(point for point in points if point.placement == placement)
        if not of_it:
            continue
        ends = [of_it[0], of_it[-1]]
        if placement == "1" and len(of_it) > 2:
            middle = np.log(of_it[0].batch * of_it[-1].batch) / 2
            ends.insert(1, min(of_it[1:-1], key=lambda point: abs(np.log(point.batch) - middle)))
        chosen += dict.fromkeys(ends)
    return tuple(chosen)


@dataclass(frozen=True)
class Answered:
    """A series, and the steps that it does not see."""

    series: Series
    asked: tuple[Point, ...]

    @property
    def keys(self) -> list[tuple[str, float]]:
        """What is predicted."""
        return [(point.placement, point.batch) for point in self.asked]

    @property
    def seconds(self) -> Numbers:
        """What was measured."""
        return np.array([point.seconds for point in self.asked])

    def median_error(self, law: Law) -> float:
        """Of the closed form with this law."""
        return float(np.median(np.abs(self.series.predict(self.keys, law, simulate=False) / self.seconds - 1)))


def answered(published: Path) -> list[Answered]:
    """Every application and GPU whose steps were all published."""
    found = []
    for (app, gpu), points in read(published / "sia_step_times.csv.gz").items():
        if app != PIPELINE:
            series = Series(app, gpu, seen(points))
            found.append(Answered(series, tuple(point for point in points if point not in series.points)))
    return found


class Choice:
    """The law with the least median error, on average over the series of other GPUs; the first of equal ones."""

    def __init__(self, known: Sequence[Answered]) -> None:
        self.errors = {(law, each.series.gpu, each.series.app): each.median_error(law) for law in LAWS for each in known}

    def law(self, without: str | None = None) -> Law:
        """Chosen on all series but those of this GPU."""
        scores = {law: [] for law in LAWS}  # type: dict[Law, list[float]]
        for (law, gpu, _), error in self.errors.items():
            if gpu != without:
                scores[law].append(error)
        return min(LAWS, key=lambda law: float(np.mean(scores[law])))


def predictions(published: Path, law: Law, *, simulate: bool = True) -> list[Mapping[str, object]]:
    """Seconds of a step for each key of `sia_to_predict.csv`."""
    measured = read(published / "sia_calibration_a100_rtx6000.csv")
    with (published / "sia_to_predict.csv").open(encoding="utf-8", newline="") as file:
        keys = list(csv.DictReader(file))
    found: dict[tuple[str, ...], float] = {}
    for (app, gpu), points in measured.items():
        asked = [(key["placement"], float(key["local_bsz"])) for key in keys if (key["app"], key["gpu"]) == (app, gpu)]
        if app == PIPELINE:
            slope = np.mean([point.seconds / point.batch for point in points])
            values = [float(slope) * batch for _, batch in asked]
        else:
            values = list(Series(app, gpu, tuple(points)).predict(asked, law, simulate=simulate))
        found |= {(app, gpu, placement, f"{batch:g}"): value for (placement, batch), value in zip(asked, values, strict=True)}
    return [{**key, "step_time": found[key["app"], key["gpu"], key["placement"], f"{float(key['local_bsz']):g}"]} for key in keys]
