"""Compare predictions with measurements: python evaluate.py [--folder FOLDER], from predictions.csv and results.csv to tables.md."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, median

import numpy as np
import yaml
from cases import CLUSTERS, HERE, METHODS, Row, chosen, read_rows

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.results.comparison.findings import wasserstein

SHARES = ("compute", "communication", "server", "waiting")
BARS = {"padded": (0.02, 0.05), "links": (0.04, 0.10), "quotas": (0.05, 0.12), "containers": (0.04, 0.12)}
"""What the median of the errors and their 95th percentile should not exceed."""
BARS_OF_THIRD = (0.04, 0.12)
KINDS = {"padded": "padded", "quotas": "CPU quotas", "containers": "CPU quotas of containers", "links": "capped links"}
ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
ROUNDS = {1: "", **{number: f", {ordinal} round" for number, ordinal in enumerate(ORDINALS, 2)}}


def mean(rows: Sequence[Row], column: str) -> float:
    """Of a column's numbers."""
    return fmean(float(row[column]) for row in rows)


def contributions(rows: Sequence[Row]) -> dict[int, int]:
    """Applied contributions by their staleness, of all runs together."""
    counts: Counter[int] = Counter()
    for row in rows:
        for entry in row["contributions_by_staleness"].split():
            value, count = entry.split(":")
            counts[int(value)] += int(count)
    return dict(counts)


@dataclass(frozen=True)
class Case:
    """A method on a cluster: the rows that predict it, and those of its measured runs."""

    cluster: str
    method: str
    predicted: Sequence[Row]
    measured: Sequence[Row]

    @property
    def rates(self) -> tuple[float, float]:
        """Updates a second, predicted and measured."""
        return mean(self.predicted, "updates_per_second"), mean(self.measured, "updates_per_second")

    @property
    def error(self) -> float:
        """Of the predicted rate, relative to the measured one."""
        one, other = self.rates
        return one / other - 1

    @property
    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest measured rate."""
        rates = [float(row["updates_per_second"]) for row in self.measured]
        return min(rates), max(rates)

    @property
    def spread(self) -> float:
        """Their distance, relative to the mean."""
        low, high = self.extremes
        return (high - low) / self.rates[1]

    @property
    def components(self) -> dict[str, float]:
        """Predicted less measured shares of the workers' time, in percentage points."""
        return {name: 100 * (mean(self.predicted, name) - mean(self.measured, name)) for name in SHARES}

    @property
    def staleness(self) -> tuple[float, float]:
        """The means, predicted and measured."""
        return mean(self.predicted, "mean_staleness"), mean(self.measured, "mean_staleness")

    @property
    def staleness_holds(self) -> bool:
        """Whether they are within 5 %, or 0.05 where the measured one is below 0.5."""
        one, other = self.staleness
        return abs(one - other) <= (0.05 if other < 0.5 else 0.05 * other)

    @property
    def distance(self) -> float:
        """The Wasserstein distance of the distributions of staleness, relative to the measured mean; 0 if nothing is stale in either."""
        distance = wasserstein(contributions(self.predicted), contributions(self.measured))
        return distance / self.staleness[1] if distance else 0.0


def interval(case: Case, folder: Path) -> tuple[float, float] | None:
    """Where the measured rate is with a probability of 90 %, as the calibration says; None if nothing was tried when it was made."""
    (cluster,) = chosen([case.cluster])
    described, name = cluster.described(case.method)
    with contextlib.chdir(HERE):
        held = parse_cluster(yaml.safe_load((folder / described / "cluster" / f"{name}.yaml").read_text())).calibrated
    if held is None or not held.tried:
        return None
    return case.rates[0] / held.spread, case.rates[0] * held.spread


def covered(of: Sequence[Case], folder: Path, number: int) -> str:
    """How many measured rates of a round are within the intervals, and how far each method is off on average."""
    its = [case for case in of if chosen([case.cluster])[0].round == number]
    if not its:
        return ""
    known = [(case, between) for case in its if (between := interval(case, folder))]
    inside = sum(low <= case.rates[1] <= high for case, (low, high) in known)
    widths = [high / case.rates[0] for case, (_, high) in known]
    biases = {method: fmean(case.error for case in its if case.method == method) for method in {case.method for case in its}}
    said = ", ".join(f"`{method}` {100 * bias:+.1f} %" for method, bias in sorted(biases.items(), key=lambda item: -abs(item[1])))
    return (
        f"{ROUNDS[number].removeprefix(', ').capitalize()}: {inside} of {len(known)} measured rates are within the 90 % intervals "
        f"(factors {min(widths):.2f} to {max(widths):.2f}). "
        f"Mean error by method: {said}.\n\n"
    )


def cases(folder: Path) -> list[Case]:
    """Those that were predicted and measured."""
    predictions, results = (read_rows(folder / name) for name in ("predictions.csv", "results.csv"))
    found = []
    for cluster in CLUSTERS:
        for method in METHODS:
            both = [[row for row in rows if (row["cluster"], row["method"]) == (cluster.name, method)] for rows in (predictions, results)]
            if all(both):
                found.append(Case(cluster.name, method, *both))
    return found


def order(of: Sequence[Case]) -> tuple[int, int]:
    """Of the pairs of methods on one cluster whose measured rates do not overlap, how many are predicted in their order, and all."""
    kept = whole = 0
    for one, other in combinations(of, 2):
        if one.cluster == other.cluster and (one.extremes[0] > other.extremes[1] or other.extremes[0] > one.extremes[1]):
            whole += 1
            kept += (one.rates[0] > other.rates[0]) == (one.rates[1] > other.rates[1])
    return kept, whole


def summary(name: str, of: Sequence[Case], bars: tuple[float, float] | None) -> str:
    """A row of the first table."""
    errors = [abs(case.error) for case in of]
    middle, high = median(errors), float(np.percentile(errors, 95))
    components = [abs(points) for case in of for points in case.components.values()]
    kept, whole = order(of)
    met = "" if bars is None else f" ({'met' if middle <= bars[0] else 'missed'}: {bars[0]:.0%})"
    met_high = "" if bars is None else f" ({'met' if high <= bars[1] else 'missed'}: {bars[1]:.0%})"
    cells = [
        name,
        f"{middle:.1%}{met}",
        f"{high:.1%}{met_high}",
        f"{max(errors):.1%}",
        f"{sum(abs(case.error) <= case.spread for case in of)} of {len(of)}",
        f"{sum(points <= 5 for points in components)} of {len(components)}",
        f"{sum(case.staleness_holds for case in of)} of {len(of)}",
        f"{sum(case.distance <= 0.15 for case in of)} of {len(of)}",
        f"{kept} of {whole}",
    ]
    return f"| {' | '.join(cells)} |".replace("%", " %")


def tables(of: Sequence[Case]) -> str:
    """Both tables, in Markdown."""
    head = (
        "| clusters | median error | 95th percentile | worst | within the repeats' spread | components within 5 points | mean staleness "
        "| Wasserstein ≤ 0.15 | pairs in order |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for number, (kind, called) in product(ROUNDS, KINDS.items()):
        names = [cluster.name for cluster in CLUSTERS if (cluster.kind, cluster.round) == (kind, number)]
        its = [case for case in of if case.cluster in names]
        if its:
            lines.append(summary(f"**{called}{ROUNDS[number]}**", its, BARS_OF_THIRD if number >= 3 else BARS[kind]))
            for name in names:
                if own := [case for case in its if case.cluster == name]:
                    lines.append(summary(f"`{name}`", own, None))
    head = "| cluster | method | predicted/s | measured/s | error | spread | compute | comm. | server | waiting | staleness | distance |"
    lines += ["", head, "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for case in of:
        (predicted, measured), (one, other) = case.rates, case.staleness
        mark = "" if abs(case.error) > case.spread else " (within)"
        points = " | ".join(f"{value:+.1f}" for value in case.components.values())
        lines.append(
            f"| `{case.cluster}` | `{case.method}` | {predicted:.4g} | {measured:.4g} | {100 * case.error:+.1f} %{mark} "
            f"| {100 * case.spread:.1f} % | {points} | {one:.2f}, {other:.2f} | {case.distance:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write tables.md, and print its first table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE)
    folder = parser.parse_args(arguments).folder
    found = cases(folder)
    text = "".join(covered(found, HERE, number) for number in ROUNDS if number >= 3) + tables(found)
    (folder / "tables.md").write_text(text, encoding="utf-8")
    print("\n\n".join(text.split("\n\n")[:-1]))


if __name__ == "__main__":
    main()
