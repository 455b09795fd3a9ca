"""The tables of 01 from results.csv: python evaluate.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import arguments, change, gain, rows, table, write_tables
from real import beside
from train import GRID, HERE
from training import WORLD, Results, convolutions, noise, world

METHODS = tuple(GRID.methods)


def against(results: Results, ours: str, theirs: str) -> str:
    """One method against another: losses at equal epochs and at equal time, accuracies, and samples per second."""
    body = []
    for one in results.regimes():
        cells = [change(results.ratio(one, ours, theirs, "loss", tuned=tuned)) for tuned in (True, False)]
        cells += [change(results.ratio(one, ours, theirs, f"loss_{when}")) for when in ("halfway", "at_time")]
        cells += [gain(results.difference(one, ours, theirs, "accuracy", tuned=tuned)) for tuned in (True, False)]
        body.append([*world(one), *cells, change(results.ratio(one, ours, theirs, "samples_per_second"))])
    head = [
        "loss, tuned",
        "loss, common rate",
        "loss, tuned, halfway",
        "loss, tuned, equal time",
        "accuracy, tuned",
        "accuracy, common rate",
    ]
    return table([*WORLD, *head, f"samples/s of `{ours}` over `{theirs}`"], body)


def weighted(results: Results) -> str:
    """DBS-SGD with its contributions weighted by samples, which the papers do not do."""
    body = []
    for one in results.regimes():
        cells = [change(results.ratio(one, "dbs_sgd weighted", theirs, "loss")) for theirs in ("dbs_sgd", "asgd", "softsync")]
        body.append([*world(one), *cells])
    return table([*WORLD, "weighted over plain `dbs_sgd`: loss, tuned", "over `asgd`", "over `softsync`"], body)


def mechanism(results: Results) -> str:
    """Delays, splits, noise, and whose data count."""
    body = []
    for one in results.regimes():
        split = results.shares(one, "dbs_sgd")
        cells = []
        for method in ("asgd", "dbs_sgd"):
            spread, most = (results.means(one, [method], name, ".1f") for name in ("staleness_sd", "staleness_max"))
            delays, counts = (results.by_worker(one, method, name) for name in ("mean_delays", "weight_shares"))
            cells += [f"{delays[0]:.1f} … {delays[-1]:.1f}", f"{spread}, {most}", f"{100 * counts[0]:.1f} … {100 * counts[-1]:.1f} %"]
        body.append([*world(one), *cells, f"{split[0]} … {split[-1]}", f"{noise(split):.2f}"])
    head = [f"{what} with `{method}`" for method in ("asgd", "dbs_sgd") for what in ("mean delay", "deviation, largest", "weights")]
    return table([*WORLD, *head, "samples", "noise of unequal means"], body)


def levels(results: Results) -> str:
    """What the ratios are of: rates, losses, accuracies."""
    body = []
    for one in results.regimes():
        cells = [
            results.means(one, METHODS, name, digits) for name, digits in (("loss", ".3f"), ("accuracy", ".3f"), ("worst_class", ".2f"))
        ]
        body.append([*world(one), results.rates(one, METHODS), *cells])
    return table([*WORLD, "tuned rates", "loss", "accuracy", "accuracy of the worst class"], body)


def main(given: Sequence[str] | None = None) -> None:
    folder: Path = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"), GRID.common)
    tables = [against(results, "dbs_sgd", "asgd"), against(results, "dbs_sgd", "softsync"), weighted(results)]
    tables += [mechanism(results), levels(results)]
    if results.regimes(convolutions=True):
        tables.append(convolutions(results, [("dbs_sgd", "asgd"), ("dbs_sgd", "softsync")]))
    write_tables(folder, tables + beside(results, folder, [("dbs_sgd", "asgd"), ("dbs_sgd", "softsync")]))


if __name__ == "__main__":
    main()
