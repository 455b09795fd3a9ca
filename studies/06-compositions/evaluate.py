"""The tables of 06 from results.csv, convolutions.csv, measured.csv and language.csv: python evaluate.py [--folder FOLDER]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np
from common import Interval, Row, arguments, change, gain, interval, ratio, rows, signed, table, where, write_tables
from compositions import OF_THE_PAPERS, PLAIN, SPLITS, VERSIONS, Composition, named
from convolutions import SHOWN
from language import Judged, comparison
from train import FIRST, HERE, Trial, best_setting, here, scores, tuned_here, winner

LEVELS = (("loss", ".3f"), ("accuracy", ".3f"), ("worst_class", ".2f"), ("num_updates", ".0f"))
SETTING = ("composition", "momentum", "rate")


@dataclass(frozen=True)
class Results:
    """All runs: what was chosen on some seeds, judged on others."""

    table: Sequence[Row]

    def regimes(self) -> list[Trial]:
        """In the order of the runs."""
        names = ("num_samples", "num_nodes", "speeds", "data")
        found = dict.fromkeys(tuple(row[name] for name in names) for row in self.table)
        return [Trial(int(num_samples), int(num_nodes), speeds, data) for num_samples, num_nodes, speeds, data in found]

    @cached_property
    def _scores(self) -> dict[Trial, dict[Trial, float]]:
        return {regime: scores(self.table, regime) for regime in self.regimes()}

    @cached_property
    def _fresh(self) -> dict[Trial, list[Row]]:
        return {regime: where(here(self.table, regime), stage="fresh") for regime in self.regimes()}

    def winner(self, regime: Trial) -> str:
        """What the search has found here."""
        return winner(self.table, regime)

    def best_plain(self, regime: Trial) -> str:
        """Of the plain methods at their tuned settings, the best on the tuning seeds."""
        found = self._scores[regime]
        return min(map(str, PLAIN.values()), key=lambda made: found[self.chosen(regime, made)])

    def chosen(self, regime: Trial, composition: str) -> Trial:
        """A composition at the setting that was best on the tuning seeds."""
        return best_setting(self._scores[regime], composition)

    def when_chosen(self, regime: Trial, composition: str) -> float:
        """The geometric mean of the losses on the tuning seeds."""
        return math.exp(self._scores[regime][self.chosen(regime, composition)])

    def runs(self, regime: Trial, composition: str) -> list[Row]:
        """At the setting that was chosen, on the seeds that chose nothing."""
        one = self.chosen(regime, composition)
        found = where(self._fresh[regime], **{name: getattr(one, name) for name in SETTING})
        return sorted(found, key=lambda row: int(row["seed"]))

    def numbers(self, regime: Trial, composition: str, name: str) -> list[float]:
        return [float(row[name]) for row in self.runs(regime, composition)]

    def ratio(self, regime: Trial, ours: str, theirs: str, name: str = "loss") -> Interval:
        """By pairs of runs of the same seed."""
        return ratio(*(self.numbers(regime, made, name) for made in (ours, theirs)))

    def difference(self, regime: Trial, ours: str, theirs: str, name: str = "accuracy") -> Interval:
        pairs = zip(*(self.numbers(regime, made, name) for made in (ours, theirs)), strict=True)
        return interval([one - other for one, other in pairs])

    def time_to_their_loss(self, regime: Trial, ours: str, theirs: str) -> list[float | None]:
        """In which share of the time ours has the loss that theirs ends with."""
        pairs = zip(self.runs(regime, ours), self.runs(regime, theirs), strict=True)
        return [reached(curve(one), float(other["loss"])) for one, other in pairs]

    def compositions(self) -> list[str]:
        """Those that were tuned in every regime."""
        return tuned_here(self.table, self.regimes()[0])


def curve(row: Row) -> list[tuple[float, float]]:
    """Shares of the time, and the training losses at them."""
    pairs = (pair.split(":") for pair in row["losses"].split())
    return [(float(share), float(loss)) for share, loss in pairs]


def reached(points: Sequence[tuple[float, float]], loss: float) -> float | None:
    """When a curve first has this loss, its logarithm interpolated; None: never."""
    for (start, before), (end, after) in pairwise(points):
        if after <= loss:
            return start + (end - start) * (math.log(before / loss) / math.log(before / after) if before > loss else 0.0)
    return None


def world(regime: Trial) -> list[str]:
    return [regime.data, regime.speeds]


def code(composition: str) -> str:
    return f"`{named(composition)}`"


def winners(results: Results) -> str:
    """What each search has found, against the best plain method and those of the papers."""
    body = []
    for regime in results.regimes():
        ours, plain = results.winner(regime), results.best_plain(regime)
        times = [each for each in results.time_to_their_loss(regime, ours, plain) if each is not None]
        time = f"{100 * float(np.mean(times)):.0f} % ({len(times)} of {len(results.runs(regime, ours))})" if times else "never"
        papers = [change(results.ratio(regime, ours, str(PLAIN[name]))) for name in OF_THE_PAPERS]
        choice = f"{signed(100 * (results.when_chosen(regime, ours) / results.when_chosen(regime, plain) - 1), 0)} %"
        cells = [
            code(ours),
            code(plain),
            choice,
            change(results.ratio(regime, ours, plain)),
            gain(results.difference(regime, ours, plain)),
            time,
        ]
        body.append([*world(regime), *cells, *papers])
    head = [
        "found by the search",
        "best plain method",
        "loss over its, when chosen",
        "fresh",
        "accuracy over its",
        "time to its final loss",
    ]
    return table(["data", "speeds", *head, *(f"loss over `{name}`" for name in OF_THE_PAPERS)], body)


def everywhere(results: Results) -> str:
    """Each composition in each regime, tuned there, over the best plain method of the regime."""
    regimes = results.regimes()
    body = []
    for made in results.compositions():
        cells = ["–" if made == (plain := results.best_plain(one)) else change(results.ratio(one, made, plain)) for one in regimes]
        body.append([code(made), *cells, beaten(results, made)])
    head = ["composition", *(f"{one.data}, {one.speeds}" for one in regimes), "ahead of all three papers' methods"]
    return table(head, body)


def beaten(results: Results, made: str) -> str:
    """In how many regimes it ends below the methods of all papers, and in how many significantly."""
    counts = [0, 0]
    for regime in results.regimes():
        found = [results.ratio(regime, made, str(PLAIN[name])) for name in OF_THE_PAPERS if str(PLAIN[name]) != made]
        counts[0] += all(each.mean < 1 for each in found)
        counts[1] += all(each.high < 1 for each in found)
    return f"{counts[0]} of {len(results.regimes())}, significantly {counts[1]}"


def levels(results: Results) -> str:
    """What the losses, accuracies and accuracies of the worst class are, and with which rate and momentum."""
    regimes = results.regimes()
    body = []
    for made in results.compositions():
        cells = []
        for regime in regimes:
            loss, accuracy, worst = (float(np.mean(results.numbers(regime, made, name))) for name in ("loss", "accuracy", "worst_class"))
            one = results.chosen(regime, made)
            cells.append(f"{loss:.3f}, {accuracy:.3f}, {worst:.2f} ({one.rate:g}, {one.momentum:g})")
        body.append([code(made), *cells])
    return table(["loss, accuracy, worst class (rate, momentum)", *(f"{one.data}, {one.speeds}" for one in regimes)], body)


def axes(results: Results) -> str:
    """The least loss of any trial with a choice, over the least of all trials of the regime: on the seed that chose."""
    regimes = results.regimes()
    body = []
    for axis, choices in (("versions", VERSIONS), ("split", tuple(SPLITS))):
        for choice in choices:
            body.append([f"`{choice}`", *(least(results, replace(one, seed=FIRST), axis, choice) for one in regimes)])
    return table(["with", *(f"{one.data}, {one.speeds}" for one in regimes)], body)


def least(results: Results, regime: Trial, axis: str, choice: str) -> str:
    found = where(here(results.table, regime), seed=FIRST)
    losses = [float(row["loss"]) for row in found if getattr(Composition.of(row["composition"]), axis) == choice]
    return f"{min(losses) / min(float(row['loss']) for row in found):.2f} ({len(losses)})" if losses else "–"


def convolutions(results: Results) -> str:
    """LeNet on CIFAR-10: each composition over `hetgrad`."""
    body = []
    base = str(PLAIN["hetgrad"])
    for regime, made in product(results.regimes(), SHOWN):
        one = results.chosen(regime, made)
        cells = ["–"] * 2
        if made != base:
            cells = [change(results.ratio(regime, made, base)), gain(results.difference(regime, made, base))]
        means = [f"{np.mean(results.numbers(regime, made, name)):{digits}}" for name, digits in LEVELS]
        body.append([*world(regime), code(made), *cells, *means, f"{one.rate:g}, {one.momentum:g}"])
    head = ["composition", "loss over `hetgrad`'s", "accuracy over its", "loss", "accuracy", "worst class", "versions", "rate, momentum"]
    return table(["data", "speeds", *head], body)


def measured(results: Results, table_of: Sequence[Row]) -> str:
    """Real runs beside the simulated ones of the same seeds."""
    body = []
    for regime in results.regimes():
        real = here(table_of, regime)
        for made in dict.fromkeys(row["composition"] for row in real):
            found = where(real, composition=made)
            simulated = [where(results.runs(regime, made), seed=row["seed"])[0] for row in found]
            both = [[float(row[name]) for row in side] for side in (found, simulated) for name in ("loss", "num_updates", "accuracy")]
            loss, updates, accuracy, their_loss, their_updates, their_accuracy = both
            late = f"{100 * max(float(row['late']) for row in found):.0f} %"
            means = [f"{np.mean(each):.3f}" for each in (their_loss, loss, their_accuracy, accuracy)]
            cells = [*means, between(loss, their_loss), between(updates, their_updates), late, len(found)]
            body.append([*world(regime), code(made), *cells])
    head = [
        "loss, simulated",
        "loss, real",
        "accuracy, simulated",
        "accuracy, real",
        "loss, real over simulated",
        "versions",
        "late at most",
        "seeds",
    ]
    return table(["data", "speeds", "composition", *head], body)


def between(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """A change in per cent, with its interval if there are several seeds."""
    found = ratio(ours, theirs)
    return change(found) if len(ours) > 1 else f"{signed(100 * (found.mean - 1), 0)} %"


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"))
    tables = [part(results) for part in (winners, everywhere, levels, axes)]
    if others := rows(folder / "convolutions.csv"):
        tables.append(convolutions(Results(others)))
    if real := rows(folder / "measured.csv"):
        tables.append(measured(results, real))
    if spoken := rows(folder / "language.csv"):
        tables.append(comparison(Judged(spoken)))
    write_tables(folder, tables)


if __name__ == "__main__":
    main()
