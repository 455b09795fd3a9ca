"""Training in real processes for studies: on padded clusters, beside the simulation of the same seeds.

Times are stretched, so that padding hides the computing of a few cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from common import Row, Runs, change, gain, rows, table, where
from training import TUNING_SEEDS, Grid, Results, Run, experiment, tuned_rate

from hetsim.cluster import Cluster
from hetsim.distributed.backend import Processes
from hetsim.runtime.experiment import Experiment

STRETCH = 40.0
"""How many times longer everything takes in real processes than in the simulation."""
SEEDS = range(3)
LATE = 0.25
"""Of a real run: one in which results were later than this in all is made again, as something else used the machine."""
ATTEMPTS = 4
FOUND = ("loss", "accuracy", "samples_per_second", "late")


def stretched(it: Cluster, by: float) -> Cluster:
    """The same cluster, on which everything takes so many times as long."""
    nodes = tuple(replace(node, seconds_per_sample=by * node.seconds_per_sample) for node in it.nodes)
    network = replace(it.network, latency_seconds=by * it.network.latency_seconds, bytes_per_second=it.network.bytes_per_second / by)
    return replace(it, nodes=nodes, network=network, server=replace(it.server, seconds_per_update=by * it.server.seconds_per_update))


def in_processes(experiment: Experiment, label: str) -> tuple[dict[str, Any], float]:
    """The summary of a padded run in real processes, and by which part of its time results were late: of the first that is not by much."""
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            summary = Processes(emulate="pad").run(experiment, Path(folder), config="")
        assert summary is not None
        kinds = [kind for kind in summary["emulation"].values() if isinstance(kind, dict) and "late_seconds" in kind]
        late = sum(kind["late_seconds"] for kind in kinds) / summary["seconds"]
        print(f"{label}: {100 * late:.0f} % late", flush=True)
        if late <= LATE:
            return summary, late
    raise SystemExit(f"results were late in {ATTEMPTS} runs: let nothing else use the machine, and start again; it goes on where it was")


def fill(folder: Path, grid: Grid, regimes: Sequence[Run], methods: Sequence[str], data_root: str, *, by: float = STRETCH) -> None:
    """Append to measured.csv what it has not yet: methods at the rates that were tuned in results.csv, everything `by` times as long."""
    found = rows(folder / "results.csv")
    runs = Runs(folder / "measured.csv", [*asdict(regimes[0])], FOUND)
    for seed, one, method in product(SEEDS, regimes, methods):
        tuned = replace(one, method=method, rate=tuned_rate(found, replace(one, method=method)), seed=seed)
        runs.row(asdict(tuned), lambda tuned=tuned: measure(tuned, grid, data_root, by=by))  # type: ignore[misc]


def measure(run: Run, grid: Grid, data_root: str, *, by: float) -> dict[str, object]:
    """Train in real processes; losses on the training set, accuracies on the test set, samples/s of the time that is not stretched."""
    simulated = experiment(run, grid.methods[run.method](run.num_nodes), data_root, momentum=grid.momentum)
    made = replace(simulated, cluster=stretched(run.cluster(), by), evaluate_every_epochs=run.epochs, evaluate_every_seconds=None)
    summary, late = in_processes(made, f"{run.speeds} {run.data} {run.method}, seed {run.seed}")
    final = summary["final"]
    return {
        "loss": final["train_loss"],
        "accuracy": final["test_accuracy"],
        "samples_per_second": by * summary["samples_per_second"],
        "late": late,
    }


class Measured(Results):
    """Runs in real processes, of a method and regime at one rate."""

    def runs(self, regime: Run, method: str, *, tuned: bool = True) -> list[Row]:
        found = where(self.table, speeds=regime.speeds, data=regime.data, method=method)
        return sorted(found, key=lambda row: int(row["seed"]))


def beside(results: Results, folder: Path, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A table of pairs of methods in processes and in simulation, on the same seeds; none without measured.csv."""
    if not (found := rows(folder / "measured.csv")):
        return []
    real = Measured(found, results.common)
    seeds = {*map(str, TUNING_SEEDS), *(row["seed"] for row in real.table)}
    both = real, Results([row for row in results.table if row["seed"] in seeds], results.common)
    body = []
    for one, (ours, theirs) in product(real.regimes(), pairs):
        cells = [change(source.ratio(one, ours, theirs, "loss")) for source in both]
        cells += [gain(source.difference(one, ours, theirs, "accuracy")) for source in both]
        cells += [change(source.ratio(one, ours, theirs, "samples_per_second")) for source in both]
        body.append([one.data, one.speeds, f"`{ours}` over `{theirs}`", *cells])
    head = [f"{name}, {source}" for name in ("loss", "accuracy", "samples/s") for source in ("measured", "simulated")]
    return [table(["data", "speeds", "methods", *head], body)]
