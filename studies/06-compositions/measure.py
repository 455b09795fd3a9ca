"""Train what won, and the best plain methods, in real processes: python measure.py [--quick] [--data-root FOLDER] [--folder FOLDER]

It appends what measured.csv has not yet. Nine processes on a padded cluster; times are stretched, so that padding hides the computing
of a few cores. --quick does nothing: processes take a while to start.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from common import Runs, arguments, rows
from evaluate import Results
from train import HERE, Trial
from training import cluster

from hetsim.cluster import Cluster
from hetsim.dist.backend import Processes

STRETCH = 40.0
"""How many times longer everything takes than in the simulation."""
SPEEDS = "half 1:20"
SEEDS = range(1)
FOUND = ("loss", "accuracy", "num_updates", "late")
LATE = 0.25
"""Of the run: one in which results were later than this in all is made again, as something else used the machine."""
ATTEMPTS = 4


def stretched(it: Cluster, by: float) -> Cluster:
    """The same cluster, on which everything takes so many times as long."""
    nodes = tuple(replace(node, seconds_per_sample=by * node.seconds_per_sample) for node in it.nodes)
    network = replace(it.network, latency_seconds=by * it.network.latency_seconds, bytes_per_second=it.network.bytes_per_second / by)
    return replace(it, nodes=nodes, network=network, server=replace(it.server, seconds_per_update=by * it.server.seconds_per_update))


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
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            summary = Processes(emulate="pad").run(experiment, Path(folder), config="")
        assert summary is not None
        final = summary["final"]
        late = sum(summary["emulation"][kind]["late_seconds"] for kind in ("gradient", "message")) / summary["seconds"]
        print(f"{trial.composition}, seed {trial.seed}: {100 * late:.0f} % late", flush=True)
        if late <= LATE:
            return {"loss": final["train_loss"], "accuracy": final["test_accuracy"], "num_updates": summary["num_updates"], "late": late}
    raise SystemExit(f"results were late in {ATTEMPTS} runs: let nothing else use the machine, and start again; it goes on where it was")


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
