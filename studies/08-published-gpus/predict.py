"""Predict published measurements that nobody here has seen, and cross-validate each rule where there are answers.

python predict.py [--quick] [--folder FOLDER] [--published FOLDER]

predictions-*.csv have the keys and a value for each; results.csv has the cross-validated errors by rule and group. Files that may not be
shipped are read from `--published`; without it Gavel's and DiLoCo's alone are predicted.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import diloco
import numpy as np
import scaling
import sia
from common import text

HERE = Path(__file__).parent
SHIPPED = HERE / "published"
FEW = 8
"""Predictions of a quick run."""
Rows = list[Mapping[str, object]]


def errors(data: str, rule: str, group: str, predicted: Iterable[float], measured: Iterable[float]) -> dict[str, object]:
    """A row of results.csv."""
    found = np.abs(np.array(list(predicted)) / np.array(list(measured)) - 1)
    return {
        "data": data,
        "rule": rule,
        "group": group,
        "points": len(found),
        "median": float(np.median(found)),
        "p95": float(np.quantile(found, 0.95)),
        "mean": float(found.mean()),
        "worst": float(found.max()),
    }


@cache
def known(published: Path) -> tuple[list[sia.Answered], sia.Choice]:
    """Sia's series with answers, and which law is best for them."""
    found = sia.answered(published)
    return found, sia.Choice(found)


def sia_errors(published: Path) -> Rows:
    """Of each series, from its few points, by the law that is best for other GPUs; and Pollux's model fitted to the same points."""
    series, choice = known(published)
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for each in series:
        app, gpu = each.series.app, each.series.gpu
        values = {
            "hetsim": each.series.predict(each.keys, choice.law(without=gpu), simulate=False),
            "Pollux": sia.pollux(each.series)(each.keys),
        }
        for rule, predicted in values.items():
            for (placement, _), value, seconds in zip(each.keys, predicted, each.seconds, strict=True):
                for group in ("all", gpu, "one or two nodes" if len(placement) < 3 else "more nodes", f"{app} {gpu}"):
                    pairs.setdefault((rule, group), []).append((float(value), float(seconds)))
    laws = {gpu: choice.law(without=gpu) for gpu in ("aws", "azure", "rtx")}
    print("sia: laws without a GPU", laws, "and for all", choice.law())
    return [errors("sia", rule, group, *zip(*found, strict=True)) for (rule, group), found in pairs.items()]


def lambda_errors(published: Path) -> Rows:
    """What a second GPU gains, from other machines with the same model and precision."""
    rates = scaling.Lambda(published / "lambda_one_and_two_gpus.csv")
    pairs: dict[str, list[tuple[float, float]]] = {}
    for key, gpus in rates.rates:
        gain = rates.measured_gain(key) if gpus == 1 else None
        if gain is not None:
            for group in ("all", key.model):
                pairs.setdefault(group, []).append((rates.usual_gain(key)[0], gain))
    return [errors("lambda", "gain of a second GPU", group, *zip(*found, strict=True)) for group, found in pairs.items()]


def gavel_errors(published: Path) -> Rows:
    """What a second GPU gains, from other batch sizes of the same model."""
    rates = scaling.read_gavel(published / "gavel_throughputs.csv")
    pairs: dict[str, list[tuple[float, float]]] = {}
    for (gpu, job, scale), rate in rates.items():
        if scale == 2 and rate and rates[gpu, job, 1]:
            usual = scaling.usual_gain(rates, gpu, job) * rates[gpu, job, 1]
            for group in ("all", gpu):
                pairs.setdefault(group, []).append((usual, rate))
    return [errors("gavel", "gain of a second GPU", group, *zip(*found, strict=True)) for group, found in pairs.items()]


def diloco_errors(published: Path) -> Rows:
    """Of each run that another run resembles, without it."""
    found = diloco.left_out(diloco.read(published / "diloco_measured_calibration.csv"))
    groups: dict[str, list[tuple[float, float]]] = {}
    for run, value in found:
        for group in ("all", f"{run.algorithm} H={run.period} {run.bandwidth}"):
            groups.setdefault(group, []).append((value, run.round))
    return [errors("diloco", "hetsim", group, *zip(*pairs, strict=True)) for group, pairs in groups.items()]


PREDICTED: dict[str, Callable[[Path], Rows]] = {
    "sia": lambda published: sia.predictions(published, known(published)[1].law()),
    "lambda": scaling.lambda_predictions,
    "gavel": scaling.gavel_predictions,
    "diloco": diloco.predictions,
}
VALIDATED = {"sia": sia_errors, "lambda": lambda_errors, "gavel": gavel_errors, "diloco": diloco_errors}
NEEDED = {
    "sia": "sia_step_times.csv.gz",
    "lambda": "lambda_to_predict.csv",
    "gavel": "gavel_to_predict.csv",
    "diloco": "diloco_to_predict.csv",
}


def write(path: Path, rows: Rows) -> None:
    """As CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: text(value) for name, value in row.items()} for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all predictions that the data allow, and the errors of the rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first few predictions of each file that is shipped")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the predictions and results.csv go")
    parser.add_argument("--published", type=Path, default=SHIPPED, help="the folder of the published measurements")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    found: Rows = []
    for name, predicted in PREDICTED.items():
        if not (asked.published / NEEDED[name]).exists():
            print(f"{name}: not shipped, give its folder by --published")
            continue
        rows = predicted(asked.published)
        write(asked.folder / f"predictions-{name}.csv", rows[:FEW] if asked.quick else rows)
        found += VALIDATED[name](asked.published)
    write(asked.folder / "results.csv", found)


if __name__ == "__main__":
    main()
