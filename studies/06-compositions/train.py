"""Search and tune in virtual time what is missing in results.csv: python train.py [--quick] [--data-root FOLDER] [--folder FOLDER]"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from common import Row, Runs, arguments, text, where
from compositions import MOMENTA, PILOT, PLAIN, SPLITS, UNTOUCHED, VERSIONS, Composition, corrections, weights
from tqdm import tqdm
from training import BATCH, MOST, PARTITIONS, CachedMNIST, cluster, speeds

from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.curve import Point
from hetsim.sim import Simulation
from hetsim.workloads.data.digits import Digits
from hetsim.workloads.data.torchvision import MNIST
from hetsim.workloads.task import Workload

HERE = Path(__file__).resolve().parent
RATES = {0.0: tuple(0.0125 * 2**k for k in range(6)), 0.9: tuple(0.00625 * 2**k for k in range(6))}
"""By momentum."""
FIRST, OTHERS = 100, (101, 102)
"""The seed on which all settings are tried, and those on which the best are tried again."""
SEEDS = range(5)
"""Of what is reported: they have chosen nothing."""
BEST = 4
"""Settings of a composition that are tried on the other seeds."""
TRIALS, FINALISTS = 72, 8
"""Settings that a search tries, as many as the grid of all plain methods has, and how many of them are tried on the other seeds."""
POINTS = 10
"""Evaluations of a run that is reported."""
FOUND = ("stage", "loss", "accuracy", "worst_class", "samples_per_second", "num_updates", "staleness_mean", "losses")


@dataclass(frozen=True)
class Trial:
    """What identifies a run: its world, composition, momentum, learning rate and seed."""

    num_samples: int
    """Of MNIST; 0: digits."""
    num_nodes: int
    speeds: str
    data: str
    composition: str = ""
    momentum: float = 0.0
    rate: float = 0.0
    seed: int = 0

    @property
    def seconds(self) -> float:
        """The time that four epochs take if no node ever waits; every run ends at its first version then."""
        return 4 * (self.num_samples or 1437) * 1e-3 / sum(speeds(self.speeds, self.num_nodes))

    def workload(self, data_root: str) -> Workload:
        """The MLP."""
        return CachedMNIST(model="mlp", data_root=data_root, num_samples=self.num_samples) if self.num_samples else Digits(model="mlp")

    def experiment(self, data_root: str, *, points: int = 1) -> Experiment:
        """Evaluated so many times."""
        made = Composition.of(self.composition)
        partition = PARTITIONS[self.data]
        return Experiment(
            method=made.versions,
            coordination=made.coordination(self.num_nodes, self.rate, self.momentum),
            cluster=cluster(self.speeds, self.num_nodes),
            workload=self.workload(data_root),
            optimizer=made.optimizer(self.rate, self.momentum),
            local_optimizer=made.local_optimizer(self.rate, self.momentum),
            budget=Budget(seconds=self.seconds),
            batch_size=BATCH,
            seed=self.seed,
            data="shared" if partition is None else "owned",
            partition=partition,
            evaluate_every_epochs=None,
            evaluate_every_seconds=self.seconds / points,
            stop_when_diverged=True,
            trace="none",
            pictures=False,
        )


def train(trial: Trial, data_root: str, stage: str) -> dict[str, object]:
    """Train in virtual time; what FOUND names, losses on the training set, accuracies on the test set."""
    points: list[Point] = []
    experiment = trial.experiment(data_root, points=POINTS if stage == "fresh" else 1)
    summary = Simulation(replace(experiment, watch=points.append)).run()
    losses = [loss_of(point) for point in points]
    diverged = points[-1].seconds < trial.seconds
    return {
        "stage": stage,
        "loss": MOST if diverged else losses[-1],
        "accuracy": points[-1].evaluation.test_accuracy,
        "worst_class": min(value for value in summary["class_accuracy"] if value is not None),
        **{name: summary[name] for name in ("samples_per_second", "num_updates", "staleness_mean")},
        "losses": " ".join(f"{point.seconds / trial.seconds:.3f}:{text(loss)}" for point, loss in zip(points, losses, strict=True)),
    }


def loss_of(point: Point) -> float:
    loss = point.evaluation.train_loss
    return MOST if loss is None or not math.isfinite(loss) else min(loss, MOST)


def suggested(asked: optuna.Trial, regime: Trial) -> Trial:
    """What Optuna asks for; an axis that another one rules out is not asked for."""
    versions = asked.suggest_categorical("versions", VERSIONS)
    split = asked.suggest_categorical("split", tuple(SPLITS))
    delays, means = UNTOUCHED, "means"
    if len(choices := corrections(versions)) > 1:
        delays = asked.suggest_categorical(f"delays of {versions}", choices)
    if len(choices := weights(versions, split, delays)) > 1:
        means = asked.suggest_categorical("weights", choices)
    made = Composition(versions, split, means, delays)
    momentum = asked.suggest_categorical("momentum", MOMENTA) if len(made.momenta) > 1 else made.momenta[0]
    rate = RATES[momentum][asked.suggest_int("rate", 0, len(RATES[momentum]) - 1)]
    return replace(regime, composition=str(made), momentum=momentum, rate=rate)


def suggestions(one: Trial) -> dict[str, Any]:
    """What Optuna would have suggested."""
    made = Composition.of(one.composition)
    named = {"versions": made.versions, "split": made.split, "weights": made.weights, f"delays of {made.versions}": made.delays}
    return {**named, "momentum": one.momentum, "rate": RATES[one.momentum].index(one.rate)}


@dataclass
class Tuning:
    """Makes the runs that are missing."""

    runs: Runs
    data_root: str
    trials: int = TRIALS
    rates: int = len(RATES[0.0])
    """How many of RATES."""
    further: int = 4
    """By how many rates they may continue."""
    others: Sequence[int] = OTHERS
    seeds: Sequence[int] = SEEDS

    def loss(self, trial: Trial, stage: str) -> float:
        return float(self.runs.row(asdict(trial), lambda: train(trial, self.data_root, stage))["loss"])

    def tune(self, regime: Trial, composition: str, stage: str) -> None:
        """A composition at all settings on one seed, and at the best few on the others; rates continue where the best is at an end."""
        self.best(self.settings(regime, composition), BEST, stage)
        for _ in range(self.further):
            one = best_setting(scores(self.runs.rows.values(), regime), composition)
            tried = where(here(self.runs.rows.values(), regime), composition=composition, momentum=one.momentum, seed=FIRST)
            rates = [float(row["rate"]) for row in tried]
            if min(rates) < one.rate < max(rates):
                return
            self.best([replace(one, rate=one.rate / 2 if one.rate == min(rates) else 2 * one.rate)], 1, stage)

    def settings(self, regime: Trial, composition: str) -> list[Trial]:
        """Every momentum and rate."""
        one = replace(regime, composition=composition)
        return [replace(one, momentum=m, rate=rate) for m in Composition.of(composition).momenta for rate in RATES[m][: self.rates]]

    def best(self, settings: Iterable[Trial], count: int, stage: str) -> None:
        """These on the first seed, and the best so many, of a composition so many, on the others."""
        ranked = sorted(settings, key=lambda one: self.loss(replace(one, seed=FIRST), stage))
        for one in ranked[:count]:
            for seed in self.others:
                self.loss(replace(one, seed=seed), stage)

    def search(self, regime: Trial) -> None:
        """TPE over all axes, which knows the trials of the plain methods; the first half of its own are drawn at random."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        plain = [one for made in PLAIN.values() for one in self.settings(regime, str(made))]
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=len(plain) + self.trials // 2))
        for one in plain:
            study.enqueue_trial(suggestions(one))
        tried: set[Trial] = set()
        while len(tried) < self.trials:
            asked = study.ask()
            one = suggested(asked, regime)
            study.tell(asked, math.log(self.loss(replace(one, seed=FIRST), "search")))
            if one.composition not in map(str, PLAIN.values()):
                tried.add(one)
        self.best(tried, FINALISTS, "search")

    def report(self, regime: Trial, compositions: Iterable[str]) -> None:
        """Each at its best setting, on seeds that have chosen nothing."""
        for composition in compositions:
            one = best_setting(scores(self.runs.rows.values(), regime), composition)
            for seed in self.seeds:
                self.loss(replace(one, seed=seed), "fresh")


def here(table: Iterable[Row], regime: Trial) -> list[Row]:
    """The runs of a regime."""
    return where(table, num_samples=regime.num_samples, num_nodes=regime.num_nodes, speeds=regime.speeds, data=regime.data)


def scores(table: Iterable[Row], regime: Trial) -> dict[Trial, float]:
    """Settings that have all tuning seeds, and the mean log loss over these."""
    losses: dict[Trial, list[float]] = {}
    for row in here(table, regime):
        if int(row["seed"]) >= FIRST:
            one = replace(regime, composition=row["composition"], momentum=float(row["momentum"]), rate=float(row["rate"]))
            losses.setdefault(one, []).append(math.log(float(row["loss"])))
    most = max(map(len, losses.values()))
    return {one: float(np.mean(each)) for one, each in losses.items() if len(each) == most}


def best_setting(found: Mapping[Trial, float], composition: str) -> Trial:
    """Of a composition."""
    return min((one for one in found if one.composition == composition), key=lambda one: found[one])


def winner(table: Iterable[Row], regime: Trial) -> str:
    """The best composition that the search of this regime has found, which is no plain method."""
    found = scores([row for row in table if row["stage"] == "search"], regime)
    return min(found, key=lambda one: found[one]).composition


def tuned_here(table: Iterable[Row], regime: Trial) -> list[str]:
    """Compositions that had every setting tried, the plain methods first."""
    grids = [row["composition"] for row in here(table, regime) if row["stage"] in ("plain", "everywhere")]
    return [*map(str, PLAIN.values()), *(one for one in dict.fromkeys(grids) if one not in map(str, PLAIN.values()))]


def regimes() -> list[Trial]:
    """Three kinds of clusters of eight nodes, with data of all and data of one's own."""
    worlds = product(("1:4", "straggler", "half 1:20"), ("shared", "by speed"))
    return [Trial(5000, 8, speeds, data) for speeds, data in worlds]


def fill(tuning: Tuning, all_regimes: Sequence[Trial]) -> None:
    """Tune the plain methods and search in each regime; then tune what won anywhere in all of them, and the pilot's; then report."""
    table = tuning.runs.rows
    for regime in tqdm(all_regimes, desc="searches", disable=None):
        for made in PLAIN.values():
            tuning.tune(regime, str(made), "plain")
        tuning.search(regime)
    winners = dict.fromkeys([*(winner(table.values(), regime) for regime in all_regimes), str(PILOT)])
    for regime in tqdm(all_regimes, desc="winners everywhere", disable=None):
        for composition in winners:
            tuning.tune(regime, composition, "everywhere")
        tuning.report(regime, tuned_here(list(table.values()), regime))


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    runs = Runs(asked.folder / "results.csv", [*asdict(regimes()[0])], FOUND)
    if asked.quick:
        small = [replace(one, num_samples=0) for one in regimes() if one.speeds == "1:4"]
        fill(Tuning(runs, asked.data_root, trials=12, rates=3, further=0, others=OTHERS[:1], seeds=range(2)), small)
    else:
        try:
            MNIST(model="mlp", data_root=asked.data_root).check()
        except ValueError as error:
            raise SystemExit(f"{error} (here by --data-root FOLDER)") from None
        fill(Tuning(runs, asked.data_root), regimes())


if __name__ == "__main__":
    main()
