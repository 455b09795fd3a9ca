"""The tables of 03 from results.csv: python evaluate.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import arguments, change, gain, rows, table, write_tables
from real import beside
from train import CONVOLUTIONS, GRID, HERE
from training import BATCH, WORLD, Results, convolutions, noise, world

METHODS = tuple(GRID.methods)
PAIRS = (("hetgrad", "static"), ("hetgrad", "ssgd"))


def weighting(results: Results) -> str:
    """What weighting by samples changes, at equal epochs: the same split, the same time."""
    body = []
    for one in results.regimes():
        tuned, common = (change(results.ratio(one, "hetgrad", "static", "loss", tuned=tuned)) for tuned in (True, False))
        points = [gain(results.difference(one, "hetgrad", "static", "accuracy", tuned=tuned)) for tuned in (True, False)]
        halfway = change(results.ratio(one, "hetgrad", "static", "loss_halfway"))
        body.append([*world(one), tuned, common, halfway, *points])
    head = ["loss, tuned", "loss, common rate", "loss, tuned, halfway", "accuracy, tuned", "accuracy, common rate"]
    return table([*WORLD, *head], body)


def splitting(results: Results) -> str:
    """Against equal batches: at equal epochs, and at the time that hetgrad's epochs take if nobody waits."""
    body = []
    for one in results.regimes():
        speed = change(results.ratio(one, "hetgrad", "ssgd", "samples_per_second"))
        same = change(results.ratio(one, "hetgrad", "static", "samples_per_second"))
        epochs = [change(results.ratio(one, method, "ssgd", "loss")) for method in ("static", "hetgrad")]
        time = change(results.ratio(one, "hetgrad", "ssgd", "loss_at_time"))
        points = gain(results.difference(one, "hetgrad", "ssgd", "accuracy_at_time"))
        body.append([*world(one), speed, same, *epochs, time, points])
    head = ["samples/s of `hetgrad` over `ssgd`", "over `static`", "loss of `static` over `ssgd`", "`hetgrad` over `ssgd`"]
    return table([*WORLD, *head, "loss at equal time", "accuracy at equal time"], body)


def mechanism(results: Results) -> str:
    """Splits, noise, and whose data count; the rates that were chosen, and accuracies."""
    body = []
    for one in results.regimes():
        split = results.shares(one, "hetgrad")
        cells = [f"{split[0]} … {split[-1]}", f"{noise(split):.2f}"]
        for method in ("static", "hetgrad"):
            of = results.by_worker(one, method, "weight_shares")
            cells.append(f"{100 * of[0]:.1f} … {100 * of[-1]:.1f} %")
        cells += [
            results.rates(one, METHODS),
            results.means(one, METHODS, "accuracy", ".3f"),
            results.means(one, METHODS, "worst_class", ".2f"),
        ]
        body.append([*world(one), *cells])
    head = ["slowest's samples … fastest's", "noise of the unweighted mean", "weights with `static`", "with `hetgrad`"]
    of = "(" + ", ".join(f"`{method}`" for method in METHODS) + ")"
    return table([*WORLD, *head, f"tuned rates {of}", f"accuracy {of}", f"of the worst class {of}"], body)


def main(given: Sequence[str] | None = None) -> None:
    folder: Path = arguments(__doc__, HERE, given).folder
    found = rows(folder / "results.csv")
    results, others = (Results(found, grid.common) for grid in (GRID, CONVOLUTIONS))
    assert all(sum(results.shares(one, "hetgrad")) == BATCH for one in results.regimes())
    tables = [part(results) for part in (weighting, splitting, mechanism)]
    if others.regimes(convolutions=True):
        tables.append(convolutions(others, PAIRS))
    write_tables(folder, tables + beside(results, folder, PAIRS))


if __name__ == "__main__":
    main()
