"""Train where DBS-SGD loses and gains most in real processes: python measure.py [--quick] [--data-root FOLDER] [--folder FOLDER]

It appends what measured.csv has not yet. Nine processes on a padded cluster; times are stretched, so that padding hides the computing
of a few cores. --quick does nothing: processes take a while to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product

from common import Runs, arguments, rows
from train import GRID, HERE, PAPERS
from training import STRETCH, Run, experiment, in_processes, stretched, tuned_rate

SEEDS = range(3)
FOUND = ("loss", "accuracy", "samples_per_second", "late")


def regimes() -> list[Run]:
    """Data of all where speeds differ, and data that go with two kinds of machines."""
    return [Run("mlp 10000", 8, speeds, data, method="", epochs=2) for speeds, data in (("1:20", "shared"), ("half 1:20", "by speed"))]


def measure(run: Run, data_root: str) -> dict[str, object]:
    """Train in real processes; losses on the training set, accuracies on the test set, samples/s of the time that is not stretched."""
    simulated = experiment(run, GRID.methods[run.method](run.num_nodes), data_root, momentum=GRID.momentum)
    made = replace(simulated, cluster=stretched(run.cluster(), STRETCH), evaluate_every_epochs=run.epochs, evaluate_every_seconds=None)
    summary, late = in_processes(made, f"{run.speeds} {run.data} {run.method}, seed {run.seed}")
    final, per_second = summary["final"], STRETCH * summary["samples_per_second"]
    return {"loss": final["train_loss"], "accuracy": final["test_accuracy"], "samples_per_second": per_second, "late": late}


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    if asked.quick:
        return
    found = rows(asked.folder / "results.csv")
    runs = Runs(asked.folder / "measured.csv", [*asdict(regimes()[0])], FOUND)
    for seed, one, method in product(SEEDS, regimes(), PAPERS):
        tuned = replace(one, method=method, rate=tuned_rate(found, replace(one, method=method)), seed=seed)
        runs.row(asdict(tuned), lambda tuned=tuned: measure(tuned, asked.data_root))


if __name__ == "__main__":
    main()
