"""Train what won, and the best plain methods, in real processes: python measure.py [--quick] [--data-root FOLDER] [--folder FOLDER]

It appends what measured.csv has not yet. Nine processes on a padded cluster; times are stretched, so that padding hides the computing
of a few cores. --quick does nothing: processes take a while to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from common import Runs, arguments, rows
from evaluate import Results
from real import STRETCH, in_processes, stretched
from train import HERE, Trial
from training import cluster

SPEEDS = "half 1:20"
SEEDS = range(3)
FOUND = ("loss", "accuracy", "num_updates", "late")


def measure(trial: Trial, data_root: str, stretch: float) -> dict[str, object]:
    """Train in real processes for the stretched time; losses on the training set, accuracies on the test set."""
    simulated = trial.experiment(data_root)
    experiment = replace(
        simulated,
        cluster=stretched(cluster(trial.speeds, trial.num_nodes), stretch),
        budget=replace(simulated.budget, seconds=stretch * trial.seconds),
        evaluate_every_seconds=stretch * trial.seconds,
        stop_when_diverged=False,
    )
    summary, late = in_processes(experiment, f"{trial.composition}, seed {trial.seed}")
    final = summary["final"]
    return {"loss": final["train_loss"], "accuracy": final["test_accuracy"], "num_updates": summary["num_updates"], "late": late}


def wanted(results: Results, seeds: Sequence[int]) -> list[Trial]:
    """What the search found and the best plain method, each at its tuned setting, where speeds differ most."""
    found = []
    for regime in results.regimes():
        if regime.speeds == SPEEDS:
            shown = [results.winner(regime), results.best_plain(regime)]
            found += [replace(results.chosen(regime, made), seed=seed) for made in shown for seed in seeds]
    return sorted(found, key=lambda one: one.seed)


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    if asked.quick:
        return
    runs = Runs(asked.folder / "measured.csv", [*asdict(Trial(0, 0, "", ""))], FOUND)
    results = Results(rows(asked.folder / "results.csv"))
    for trial in wanted(results, SEEDS):
        runs.row(asdict(trial), lambda trial=trial: measure(trial, asked.data_root, STRETCH))


if __name__ == "__main__":
    main()
