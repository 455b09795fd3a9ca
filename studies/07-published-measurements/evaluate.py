"""Choose the rule for each series on the other seven, predict the held-out one, and report the errors.

python evaluate.py [--folder FOLDER]    # from results.csv: predictions.csv, second_server_compared.csv, tables.md,
                                        # and second_server.csv and more_servers.csv if they are missing
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from predict import HALVES, HERE, MOST, ONE, OWN, SCALED, SERVER_OF_P100, SHARED, THIRDS, Ends, Series, measured
from rules import (
    INNER,
    HeldOut,
    Numbers,
    Rule,
    Simulated,
    errors,
    least,
    leave_one_out,
    mean_value_analysis,
    quantile,
    scores,
    uncertainty,
)
from servers import compared

PREDICTED_ON = "2026-11-22"


def percent(values: Numbers) -> str:
    """Mean, median and largest, as cells of a table."""
    return " | ".join(f"{100 * found:.2f} %" for found in (np.mean(values), np.median(values), np.max(values)))


def table_of_rules(series: Sequence[Series], groups: dict[str, list[Rule]]) -> list[str]:
    """A row for each set of rules and each criterion of choice. `in view`: the best one's, chosen with all points in view."""
    head = [
        "| rule | chosen by the others' | mean | median | worst | mean, in view | choices for the eight series |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = []
    for name, rules in groups.items():
        in_view = min(np.mean([errors(rule.predict(one.ends), one) for one in series]) for rule in rules)
        for by, criterion in (("mean", np.mean), ("median", np.median)) if len(rules) > 1 else (("–", np.mean),):
            found = leave_one_out(series, rules, criterion)
            apart = np.concatenate([errors(found[one.ends].rates, one) for one in series])
            chosen = [one.rule for one in found.values()]
            choices = "; ".join(f"{label} ×{chosen.count(label)}" for label in dict.fromkeys(chosen)) if len(rules) > 1 else "–"
            lines.append(f"| {name} | {by} | {percent(apart)} | {100 * in_view:.2f} % | {choices} |")
    return head + lines


def tables_of_errors(series: Sequence[Series], found: dict[Ends, HeldOut]) -> list[list[str]]:
    """By series, with how many points are in their interval; and by number of workers."""
    by_series = ["| series | mean | median | worst | in the interval | interval ± |", "|---|---|---|---|---|---|"]
    every, inside = [], 0
    for one in series:
        ours = found[one.ends]
        every.append(errors(ours.rates, one))
        covered = int(np.sum(np.abs(np.log(np.array(one.rates) / ours.rates))[INNER] <= math.log(ours.factor)))
        inside += covered
        by_series.append(
            f"| {one.ends.gpu} {one.ends.model} | {percent(every[-1])} | {covered} of {MOST - 2} | {100 * (ours.factor - 1):.1f} % |"
        )
    whole = np.concatenate(every)
    width = np.mean([one.factor - 1 for one in found.values()])
    by_series.append(f"| all | {percent(whole)} | {inside} of {len(whole)} | {100 * width:.1f} % |")
    by_workers = ["| workers | mean | median | worst |", "|---|---|---|---|"]
    by_workers += [f"| {2 + k} | {percent(column)} |" for k, column in enumerate(np.array(every).T)]
    return [by_series, by_workers]


def write_predictions(path: Path, series: Sequence[Series], found: dict[Ends, HeldOut]) -> None:
    """The 48 points, each with its measurement, its interval, and the two closed forms."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        intervals = ["measured", "predicted", "low", "high", "relative_error", "covered"]
        writer.writerow(["gpu", "model", "num_workers", "rule", *intervals, "least", "mean_value_analysis"])
        for one in series:
            ours = found[one.ends]
            for workers in range(2, MOST):
                rate, truth = float(ours.rates[workers - 1]), one.rates[workers - 1]
                low, high = rate / ours.factor, rate * ours.factor
                numbers = [f"{truth:.6g}", f"{rate:.5g}", f"{low:.5g}", f"{high:.5g}", f"{rate / truth - 1:.4f}", int(low <= truth <= high)]
                closed = (f"{float(form(one.ends)[workers - 1]):.5g}" for form in (least, mean_value_analysis))
                writer.writerow([one.ends.gpu, one.ends.model, workers, ours.rule, *numbers, *closed])


def write_second_server(path: Path, series: Sequence[Series], simulated: Simulated) -> None:
    """What two servers do, for series of which no such measurement was seen.

    An interval has the width of the errors of all eight series with one server, and reaches down to a split of two to one.
    """
    spread = quantile(scores(simulated.rule(OWN), series))
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Predicted on {PREDICTED_ON} from measurements with one server, before any comparison. Steps/s.\n")
        writer = csv.writer(file, lineterminator="\n")
        two = ["two_servers", "low", "high", "gain", "if_one_has_two_thirds"]
        writer.writerow(["gpu", "model", "num_workers", "one_server_measured", "one_server_predicted", *two])
        for one in series:
            ends = one.ends
            if (OWN, ends.gpu, ends.model, HALVES) not in simulated.rates:
                continue
            factor = math.exp(spread * uncertainty(ends))
            alone, halves, thirds = (simulated.rates[OWN, ends.gpu, ends.model, servers] for servers in (ONE, HALVES, THIRDS))
            for workers, (truth, before, rate, unequal) in enumerate(zip(one.rates, alone, halves, thirds, strict=True), start=1):
                numbers = [truth, before, rate, unequal / factor, rate * factor, rate / before, unequal]
                writer.writerow([ends.gpu, ends.model, workers, *(f"{number:.4g}" for number in numbers)])


def table_of_servers(path: Path) -> list[str]:
    """The committed predictions for two servers."""
    lines = ["| series | workers | one server, measured | two servers | interval | if one has two thirds |", "|---|---|---|---|---|---|"]
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if row["num_workers"] in ("1", "4", "8"):
                series = f"{row['gpu']} {row['model']}"
                interval = f"{row['low']} … {row['high']}"
                lines.append(
                    f"| {series} | {row['num_workers']} | {row['one_server_measured']} | {row['two_servers']} | {interval} "
                    f"| {row['if_one_has_two_thirds']} |"
                )
    return lines


def table_of_one_server(series: Sequence[Series], simulated: Simulated) -> list[str]:
    """K80 workers at the server calibrated with P100 workers: 2 … 8 workers from one K80 and the other series."""
    lines = ["| series | mean | median | worst |", "|---|---|---|---|"]
    every = []
    for one in series:
        rates = simulated.rates.get((SERVER_OF_P100, one.ends.gpu, one.ends.model, ONE))
        if rates is not None:
            every.append(np.abs(np.array(rates) / np.array(one.rates) - 1)[1:])
            lines.append(f"| {one.ends.gpu} {one.ends.model} | {percent(every[-1])} |")
    return [*lines, f"| all | {percent(np.concatenate(every))} |"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all that follows from results.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.csv is")
    folder = parser.parse_args(arguments).folder
    series, simulated = measured(), Simulated(folder)
    constant, exponential, own = Rule("min(N·x₁, x₈)", least), Rule("MVA", mean_value_analysis), simulated.rule(OWN)
    shared, scaled = simulated.rules(SHARED), simulated.rules([OWN, *SCALED])
    groups = {
        "`min(N·x₁, x₈)`": [constant],
        "mean-value analysis": [exponential],
        "own noise": [own],
        "**one of the three above**": [constant, exponential, own],
        "shared noise": shared,
        "own noise, scaled": scaled,
        "any of all": [constant, exponential, *scaled, *shared],
    }
    found = leave_one_out(series, groups["**one of the three above**"])
    write_predictions(folder / "predictions.csv", series, found)
    if not (folder / "second_server.csv").exists():  # a prediction is not revised
        write_second_server(folder / "second_server.csv", series, simulated)
    tables = [table_of_rules(series, groups), *tables_of_errors(series, found)]
    tables += [table_of_servers(folder / "second_server.csv"), table_of_one_server(series, simulated)]
    tables += compared(folder, simulated)
    text = "\n\n".join("\n".join(table) for table in tables) + "\n"
    (folder / "tables.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
