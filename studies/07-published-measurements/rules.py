"""Rules from the two ends of a series to the points in between, and the choice of one for a series by the other series."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from predict import MOST, ONE, Candidate, Ends, Series, Servers
from scipy.optimize import brentq

Numbers = NDArray[np.float64]
INNER = slice(1, MOST - 1)
"""2 … 7 workers: what is predicted, and never seen of the series that is predicted."""
LEVEL = 0.9
"""Of the intervals."""


@dataclass(frozen=True)
class Rule:
    """From a series' two ends to its rates with 1 … 8 workers."""

    label: str
    predict: Callable[[Ends], Numbers]


def least(ends: Ends) -> Numbers:
    """min(N·x₁, x₈): computing and service take constant times."""
    return np.minimum(ends.rates[0] * np.arange(1.0, MOST + 1), np.float64(ends.rates[1]))


def mean_value_analysis(ends: Ends) -> Numbers:
    """Exact for exponential service (Reiser and Lavenberg, 1980): a worker that arrives meets the mean queue of N−1."""

    def rates(service: float) -> Numbers:
        queue, found = 0.0, []
        for workers in range(1, MOST + 1):
            response = service * (1 + queue)
            rate = workers / (1 / ends.rates[0] - service + response)
            queue = rate * response
            found.append(rate)
        return np.array(found)

    return rates(float(brentq(lambda service: rates(service)[-1] - ends.rates[1], 0.0, 1 / ends.rates[0])))


class Simulated:
    """The throughputs of results.csv, and the times of one server that each was simulated with."""

    def __init__(self, folder: Path) -> None:
        self.rates: dict[tuple[Candidate, str, str, Servers], list[float]] = {}
        self.service_seconds: dict[tuple[Candidate, str, str], float] = {}
        with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                candidate = Candidate(row["rule"], float(row["compute"]), float(row["service"]))
                key = (candidate, row["gpu"], row["model"], Servers(int(row["num_servers"]), float(row["largest_share"])))
                self.rates.setdefault(key, []).append(float(row["steps_per_second"]))
                self.service_seconds[key[:3]] = float(row["service_seconds"])

    def rule(self, candidate: Candidate) -> Rule:
        """This candidate for the noise."""

        def predict(ends: Ends) -> Numbers:
            return np.array(self.rates[candidate, ends.gpu, ends.model, ONE])

        return Rule(f"{candidate.rule} {candidate.compute:g}, {candidate.service:g}", predict)

    def rules(self, candidates: Sequence[Candidate]) -> list[Rule]:
        """Those that were simulated."""
        there = {key[0] for key in self.rates}
        return [self.rule(candidate) for candidate in candidates if candidate in there]


@dataclass(frozen=True)
class HeldOut:
    """A series predicted from its ends and the other series."""

    rule: str
    rates: Numbers
    factor: float
    """The interval is from rate/factor to rate·factor."""


def uncertainty(ends: Ends) -> float:
    """How unsteady a series is at its ends: the scale of its interval."""
    return math.hypot(*ends.deviations)


def errors(rates: Numbers, series: Series) -> Numbers:
    """|predicted/measured − 1| with 2 … 7 workers."""
    return np.asarray(np.abs(rates / np.array(series.rates) - 1)[INNER])


def scores(rule: Rule, series: Sequence[Series]) -> Numbers:
    """|log(measured/predicted)| over the series' uncertainty, at every point with 2 … 7 workers."""
    return np.concatenate([np.abs(np.log(np.array(one.rates) / rule.predict(one.ends)))[INNER] / uncertainty(one.ends) for one in series])


def quantile(values: Numbers) -> float:
    """The conformal one: of n exchangeable values and a new one, the new one is below it with probability LEVEL."""
    return float(np.sort(values)[min(math.ceil((len(values) + 1) * LEVEL), len(values)) - 1])


def held_out(ends: Ends, others: Sequence[Series], rules: Sequence[Rule], criterion: Callable[[Numbers], np.floating]) -> HeldOut:
    """The rule with the least error on the other series, and its interval from their errors."""
    assert ends not in [other.ends for other in others]
    rule = min(rules, key=lambda one: criterion(np.concatenate([errors(one.predict(other.ends), other) for other in others])))
    return HeldOut(rule.label, rule.predict(ends), math.exp(quantile(scores(rule, others)) * uncertainty(ends)))


def leave_one_out(
    series: Sequence[Series], rules: Sequence[Rule], criterion: Callable[[Numbers], np.floating] = np.mean
) -> dict[Ends, HeldOut]:
    """Each series predicted from its ends and the others."""
    return {one.ends: held_out(one.ends, [other for other in series if other is not one], rules, criterion) for one in series}
