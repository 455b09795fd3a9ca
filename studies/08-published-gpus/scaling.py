"""Lambda's and Gavel's throughputs: from one and two GPUs to more, by the step of `method=ddp` on a table of all-reduces.

One GPU gives C, two give R, or a slowdown s below 1 if two were more than twice as fast. R grows with the number of GPUs as in Sia's
measurements of RTX 2080 Ti (in one box) and of T4 (one on each host).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from common import rows
from scipy.optimize import brentq
from simulated import simulated_step, step_seconds

BOX, HOSTS = 0.4, 0.2
"""Exponents of (GPUs − 1) in the growth of R beyond two GPUs: in one box, and with one GPU on each host."""
MOST_LOST = 50.0
"""An all-reduce of two GPUs takes less than this many times their step."""


@dataclass(frozen=True)
class Pair:
    """Seconds of a step with one GPU and with two."""

    one: float
    two: float

    @property
    def slowdown(self) -> float:
        """Of a gradient: below 1 if two GPUs were more than twice as fast, and 1 else."""
        return min(self.two / self.one, 1.0)

    @property
    def reduction(self) -> float:
        """R of two GPUs: with it, the step takes as long as measured."""
        compute = self.one * self.slowdown
        excess: Callable[[float], float] = lambda seconds: float(step_seconds(compute, seconds)) - self.two  # noqa: E731
        return float(brentq(excess, 0.0, MOST_LOST * self.two)) if excess(0.0) < 0 else 0.0

    def step(self, gpus: int, exponent: float, *, simulate: bool) -> float:
        """Seconds of a step with so many GPUs."""
        compute, reduction = self.one * self.slowdown, self.reduction * (gpus - 1) ** exponent
        return simulated_step(compute, reduction, gpus) if simulate else float(step_seconds(compute, reduction))


class System(NamedTuple):
    """One of Lambda's machines without its number of GPUs, a model and a precision."""

    name: str
    model: str
    precision: str


SAME_GPU = {
    "LambdaCloud_1080Ti": "1080Ti",
    "LambdaCloud_H100_80GB_SXM5_v1": "H100_80GB_SXM5_v1",
    "LambdaCloud_V10016G": "p3.2xlarge",
    "p3.8xlarge": "p3.2xlarge",
    "p3.16xlarge": "p3.2xlarge",
    "p3.2xlarge": "LambdaCloud_V100_16GB_v1",
    "LambdaCloud_V100_16GB_v1": "V100",
}
"""Where a machine was measured with neither one GPU nor two, the one of the same GPU that was."""
NOISE = 0.03
"""Of the logarithm of a gain, beside what differs between machines."""
QUARTILES = 1.35
"""Standard deviations between the quartiles of a normal distribution."""


def system(name: str) -> str:
    """`4xA6000` and `LambdaCloud_4xA6000` are `A6000` and `LambdaCloud_A6000`."""
    return re.sub(r"(^|_)\d+x", r"\1", name)


class Lambda:
    """The throughputs with one GPU and with two, and what follows for more."""

    def __init__(self, path: Path) -> None:
        self.rates: dict[tuple[System, int], float] = {}
        for row in rows(path):
            key = System(system(row["system"]), row["model"], row["precision"])
            self.rates[key, int(row["gpus"])] = float(row["throughput"])

    def nearest(self, key: System) -> System:
        """This machine, or the next one of the same GPU that was measured with one GPU or with two."""
        while not {(key, 1), (key, 2)} & self.rates.keys():
            key = key._replace(name=SAME_GPU[key.name])
        return key

    def measured_gain(self, key: System) -> float | None:
        """Of a second GPU, over the first: near 2."""
        one, two = (self.rates.get((key, gpus)) for gpus in (1, 2))
        return None if one is None or two is None else two / one / self.times(key)

    def usual_gain(self, key: System) -> tuple[float, float]:
        """The median over other machines of the same model and precision, and how much its logarithm differs between machines."""
        others = [each for each, gpus in self.rates if gpus == 1 and each[1:] == key[1:] and each.name != key.name]
        gains = [gain for each in others if (gain := self.measured_gain(each)) is not None]
        low, middle, high = statistics.quantiles((math.log(gain) for gain in gains), n=4)
        return math.exp(middle), (high - low) / QUARTILES

    def gain(self, key: System) -> float:
        """The measured one, drawn to the usual one as far as it may be noise."""
        (usual, deviation), measured = self.usual_gain(key), self.measured_gain(key)
        if measured is None:
            return usual
        weight = deviation**2 / (deviation**2 + NOISE**2)
        return float(measured**weight * usual ** (1 - weight))

    def times(self, key: System) -> int:
        """By how much a rate of two GPUs is too high: SSD's newer script multiplies the rate of all GPUs by their number."""
        return 2 if key.model == "ssd" and key.name.endswith("_v1") else 1

    def throughput(self, key: System, gpus: int, *, simulate: bool) -> float:
        """Of so many GPUs: that of two, and less by what the longer all-reduce costs."""
        counted_twice, key = self.times(key) > 1, self.nearest(key)
        gain, two = self.gain(key), self.rates.get((key, 2))
        two = self.rates[key, 1] * gain if two is None else two / self.times(key)
        step = Pair(gain / two, 2 / two).step(gpus, BOX, simulate=simulate)
        return gpus / step * (gpus if counted_twice else 1)


def lambda_predictions(published: Path, *, simulate: bool = True) -> list[Mapping[str, object]]:
    """The throughput for each key of `lambda_to_predict.csv`."""
    known = Lambda(published / "lambda_one_and_two_gpus.csv")
    keys = rows(published / "lambda_to_predict.csv")
    return [
        {
            **key,
            "throughput": known.throughput(
                System(system(key["system"]), key["model"], key["precision"]), int(key["gpus"]), simulate=simulate
            ),
        }
        for key in keys
    ]


Gavel = dict[tuple[str, str, int], float]
"""Steps per second of all GPUs together, by GPU, job and scale factor."""


def read_gavel(path: Path) -> Gavel:
    """The measured rates; 0 where a job did not fit."""
    return {(row["gpu"], row["job"], int(row["scale_factor"])): float(row["steps_per_second"]) for row in rows(path)}


def usual_gain(rates: Gavel, gpu: str, job: str) -> float:
    """Of a second GPU: the median over other jobs of the same model on this GPU."""
    model = job.split(" (")[0]
    return statistics.median(
        rate / rates[kind, each, 1]
        for (kind, each, scale), rate in rates.items()
        if scale == 2 and kind == gpu and each.split(" (")[0] == model and each != job and rates[kind, each, 1]
    )


def gavel_rate(rates: Gavel, gpu: str, job: str, scale: int, *, simulate: bool) -> float:
    """Steps per second of so many GPUs together."""
    one, two = rates[gpu, job, 1], rates.get((gpu, job, 2))
    if not one:
        return 0.0
    if not two:
        two = one * usual_gain(rates, gpu, job)
    pair = Pair(1 / one, 2 / two)
    exponent = HOSTS if gpu.endswith("unconsolidated") else BOX
    return scale / pair.step(scale, exponent, simulate=simulate)


def gavel_predictions(published: Path, *, simulate: bool = True) -> list[Mapping[str, object]]:
    """Steps per second for each key of `gavel_to_predict.csv`."""
    rates = read_gavel(published / "gavel_throughputs.csv")
    keys = rows(published / "gavel_to_predict.csv")
    return [
        {**key, "steps_per_second": gavel_rate(rates, key["gpu"], key["job"], int(key["scale_factor"]), simulate=simulate)} for key in keys
    ]
