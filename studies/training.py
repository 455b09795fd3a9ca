"""Training in virtual time for studies: clusters of a spread of speeds, data shared and owned, methods, and rates tuned by the same budget.

Time is virtual: a node of speed 1 takes 1 ms for a sample, and a model of 100 kB goes to a worker or back in 0.9 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from common import Interval, Row, Runs, change, gain, interval, ratio, table, text, where
from tqdm import tqdm

from hetsim.cluster import Cluster, Network, NodeSpec, Server
from hetsim.cluster.distributions import Distribution
from hetsim.coordination.base import Coordination
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.curve import Point
from hetsim.runtime.recording.recorder import Recorder
from hetsim.sim import Simulation
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.data.digits import Digits
from hetsim.workloads.data.npz import NpzArrays
from hetsim.workloads.data.torchvision import CIFAR10, MNIST
from hetsim.workloads.partition import ByClass, Contiguous, Even, Partition
from hetsim.workloads.task import OptimizerRecipe, Recipe, Workload

BATCH = 256
"""B, for any number of nodes."""
SEEDS = range(5)
TUNING_SEEDS = (100, 101)
"""Of the runs that choose a rate, which count for nothing else."""
MOST = 10.0
"""Of a loss: one that is larger, or not finite, counts as this."""
STRAGGLER = 10.0
"""How many times as long one node takes."""
PARTITIONS: Mapping[str, Partition | None] = {"shared": None, "iid": Even(), "skewed": ByClass(classes=5), "by speed": Contiguous()}
"""Whose the samples are: of all; each worker's own, alike; half of the classes each, whatever its speed; classes that go with speed."""
MODELS = {"mlp": "mlp", "lenet": "lenet", "cifar10": "lenet"}
"""By the first word of a workload: of images of MNIST, but for `cifar10`."""
NAMES = {"lenet": "LeNet, MNIST", "cifar10": "LeNet, CIFAR-10"}
"""In tables and figures, of those that are not an MLP on MNIST."""
FOUND = (
    *("loss", "accuracy", "loss_halfway", "accuracy_halfway", "loss_at_time", "accuracy_at_time", "worst_class"),
    *("samples_per_second", "staleness_mean", "staleness_sd", "staleness_max", "mean_delays", "batch_sizes", "weight_shares"),
)


class CachedMNIST(MNIST):
    """MNIST, read once in a process."""

    def read(self) -> Arrays:
        return _mnist(self.data_root)


class CachedCIFAR10(CIFAR10):
    """CIFAR-10, from cifar10.npz.xz if the folder has that, in place of torchvision's files, read once in a process."""

    def check(self) -> None:
        if not _archive(self.data_root).is_file():
            super().check()

    def read(self) -> Arrays:
        return _cifar10(self.data_root)


def _archive(data_root: str) -> Path:
    return Path(data_root) / "cifar10.npz.xz"


@cache
def _cifar10(data_root: str) -> Arrays:
    archive = _archive(data_root)
    return (NpzArrays(model="lenet", path=str(archive)) if archive.is_file() else CIFAR10(model="lenet", data_root=data_root)).read()


@cache
def _mnist(data_root: str) -> Arrays:
    return MNIST(model="mlp", data_root=data_root).read()


def speeds(regime: str, num: int) -> list[float]:
    """Of the nodes, the slowest first: 1:r is a geometric progression, `half 1:r` are two kinds, a straggler takes ten times as long."""
    if regime == "straggler":
        return [1 / STRAGGLER] + [1.0] * (num - 1)
    kind, _, most = regime.rpartition("1:")
    if kind == "half ":
        return [1.0] * (num // 2) + [float(most)] * (num - num // 2)
    return [float(most) ** (rank / (num - 1)) for rank in range(num)]


def cluster(regime: str, num: int) -> Cluster:
    """So many nodes of these speeds, each step with a noise of 10 %, on 1 Gbit/s, and a server that takes 0.1 ms for an update."""
    noise = Distribution("lognorm", {"s": 0.1})
    nodes = tuple(NodeSpec(seconds_per_sample=1e-3 / speed, noise=noise) for speed in speeds(regime, num))
    network = Network(latency_seconds=1e-4, bytes_per_second=125e6, sharing="none")
    return Cluster(name=regime, nodes=nodes, network=network, server=Server(seconds_per_update=1e-4))


@dataclass(frozen=True)
class Run:
    """What identifies a run: its world, method, learning rate and seed."""

    workload: str
    num_nodes: int
    speeds: str
    data: str
    method: str
    epochs: int
    rate: float = 0.0
    seed: int = 0

    def load(self, data_root: str) -> Workload:
        """digits, or a model and how many samples of MNIST or CIFAR-10, as `mlp 10000`, `lenet 10000` and `cifar10 10000`."""
        if self.workload == "digits":
            return Digits(model="mlp")
        model, _, count = self.workload.partition(" ")
        images = CachedCIFAR10 if model == "cifar10" else CachedMNIST
        return images(model=MODELS[model], data_root=data_root, num_samples=int(count))

    def cluster(self) -> Cluster:
        """Its nodes and links."""
        return cluster(self.speeds, self.num_nodes)

    @property
    def schedule(self) -> Recipe | None:
        """Of the rate."""
        return None

    @property
    def local_optimizer(self) -> OptimizerRecipe | None:
        """Of the workers' local steps, in methods that take some."""
        return None

    @property
    def num_samples(self) -> int:
        """Of the training set."""
        return 1437 if self.workload == "digits" else int(self.workload.partition(" ")[2])

    @property
    def ideal_seconds(self) -> float:
        """How long the epochs take if no node ever waits: the equal time at which methods are compared, as none needs less."""
        return self.epochs * self.num_samples * 1e-3 / sum(speeds(self.speeds, self.num_nodes))


class Delays(Recorder):
    """How many versions old each worker's contributions were."""

    def __init__(self, num_workers: int) -> None:
        self.of: list[list[int]] = [[] for _ in range(num_workers)]

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        for contribution in applied:
            self.of[contribution.rank].append(contribution.staleness)


def experiment(run: Run, coordination: Coordination, data_root: str, *, momentum: float) -> Experiment:
    """The run as hetsim takes it: evaluated after half of the epochs, at their end, and at each multiple of the equal time."""
    partition = PARTITIONS[run.data]
    return Experiment(
        method=run.method.partition(" ")[0],
        coordination=coordination,
        cluster=run.cluster(),
        workload=run.load(data_root),
        optimizer=OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": run.rate, "momentum": momentum}), run.schedule),
        local_optimizer=run.local_optimizer,
        budget=Budget(epochs=run.epochs),
        batch_size=BATCH,
        seed=run.seed,
        data="shared" if partition is None else "owned",
        partition=partition,
        evaluate_every_epochs=run.epochs / 2,
        evaluate_every_seconds=run.ideal_seconds,
        trace="none",
        pictures=False,
    )


def train(run: Run, coordination: Coordination, data_root: str, *, momentum: float) -> dict[str, object]:
    """Train in virtual time; what FOUND names, losses on the training set, accuracies on the test set."""
    points: list[Point] = []
    delays = Delays(run.num_nodes)
    one = replace(experiment(run, coordination, data_root, momentum=momentum), watch=points.append)
    summary = Simulation(one, [delays]).run()
    halfway = next(point for point in points if point.samples >= run.num_samples * run.epochs / 2)
    in_time = next((point for point in points if point.seconds >= run.ideal_seconds), points[-1])
    found: dict[str, object] = {}
    for name, point in (("", points[-1]), ("_halfway", halfway), ("_at_time", in_time)):
        loss = point.evaluation.train_loss
        assert loss is not None
        found[f"loss{name}"] = min(loss, MOST) if math.isfinite(loss) else MOST
        found[f"accuracy{name}"] = point.evaluation.test_accuracy
    return found | {
        "worst_class": min(value for value in summary["class_accuracy"] if value is not None),
        **{name: summary[name] for name in ("samples_per_second", "staleness_mean", "staleness_max")},
        "staleness_sd": float(np.std(np.concatenate(delays.of))),
        "mean_delays": " ".join(text(float(np.mean(each))) for each in delays.of),
        "batch_sizes": " ".join(map(str, summary["batch_sizes"])),
        "weight_shares": " ".join(map(text, summary["weight_shares"])),
    }


@dataclass(frozen=True)
class Grid:
    """The methods that a study compares, the rates that each is tuned with in each regime, and one rate for all."""

    methods: Mapping[str, Callable[[int], Coordination]]
    """By name, from the number of nodes."""
    rates: Sequence[float]
    common: float
    momentum: float

    def fill(self, runs: Runs, regimes: Sequence[Run], data_root: str, *, seeds: Sequence[int] = SEEDS) -> None:
        """Make the runs that are missing: for each regime and method every rate with the tuning seeds, then the best and the common one."""

        def row(run: Run) -> Row:
            coordination = self.methods[run.method](run.num_nodes)
            return runs.row(asdict(run), lambda: train(run, coordination, data_root, momentum=self.momentum))

        try:
            for regime in regimes:
                regime.load(data_root).check()
        except ValueError as error:
            raise SystemExit(f"{error} (here by --data-root FOLDER)") from None
        bar = tqdm(total=len(regimes) * len(self.methods), disable=None)
        for regime in regimes:
            for method in self.methods:
                one = replace(regime, method=method)
                for rate in self.rates:
                    for seed in TUNING_SEEDS:
                        row(replace(one, rate=rate, seed=seed))
                best = tuned_rate(list(runs.rows.values()), one)
                for rate in dict.fromkeys((best, self.common)):
                    for seed in seeds:
                        row(replace(one, rate=rate, seed=seed))
                bar.update()
        bar.close()


@dataclass(frozen=True)
class Results:
    """The runs of a grid: comparisons of two methods in a regime, by pairs of runs of the same seed."""

    table: Sequence[Row]
    common: float

    def runs(self, regime: Run, method: str, *, tuned: bool = True) -> list[Row]:
        """Those that count, by seed, at the tuned rate or at the common one."""
        rate = tuned_rate(self.table, replace(regime, method=method)) if tuned else self.common
        found = where(_of(self.table, replace(regime, method=method)), rate=rate)
        return sorted((row for row in found if int(row["seed"]) not in TUNING_SEEDS), key=lambda row: int(row["seed"]))

    def numbers(self, regime: Run, method: str, name: str, *, tuned: bool = True) -> list[float]:
        """A column of them."""
        return [float(row[name]) for row in self.runs(regime, method, tuned=tuned)]

    def ratio(self, regime: Run, ours: str, theirs: str, name: str, *, tuned: bool = True) -> Interval:
        """Of losses and throughputs."""
        return ratio(*(self.numbers(regime, method, name, tuned=tuned) for method in (ours, theirs)))

    def difference(self, regime: Run, ours: str, theirs: str, name: str, *, tuned: bool = True) -> Interval:
        """Of accuracies."""
        pairs = zip(*(self.numbers(regime, method, name, tuned=tuned) for method in (ours, theirs)), strict=True)
        return interval([one - other for one, other in pairs])

    def shares(self, regime: Run, method: str) -> list[int]:
        """The last b_i of the first seed, the slowest node's first."""
        return [int(share) for share in self.runs(regime, method)[0]["batch_sizes"].split()]

    def by_worker(self, regime: Run, method: str, name: str) -> list[float]:
        """A mean over the seeds for each worker, from the slowest to the fastest: of mean_delays or weight_shares."""
        return [float(value) for value in np.mean([[float(w) for w in row[name].split()] for row in self.runs(regime, method)], axis=0)]

    def means(self, regime: Run, methods: Iterable[str], name: str, digits: str) -> str:
        """A mean over the seeds for each method, in one cell."""
        return ", ".join(f"{np.mean(self.numbers(regime, method, name)):{digits}}" for method in methods)

    def rates(self, regime: Run, methods: Iterable[str]) -> str:
        """The tuned ones, in one cell."""
        return ", ".join(f"{tuned_rate(self.table, replace(regime, method=method)):g}" for method in methods)

    def regimes(self, *, convolutions: bool = False) -> list[Run]:
        """In the order of the runs: of the MLP, or of the others."""
        names = [field.name for field in fields(Run) if field.name not in ("method", "rate", "seed")]
        found = dict.fromkeys(tuple(row[name] for name in names) for row in self.table)
        return [
            Run(workload, int(num_nodes), speeds, data, method="", epochs=int(epochs))
            for workload, num_nodes, speeds, data, epochs in found
            if (_model(workload) in NAMES) == convolutions
        ]


def world(one: Run) -> list[str]:
    """A regime, as the first cells of a table's row."""
    return [one.data, one.speeds, str(one.num_nodes), str(one.epochs)]


def convolutions(results: Results, pairs: Iterable[tuple[str, str]]) -> str:
    """Pairs of methods on models that are not the MLP: losses, accuracies, and throughputs; `results` has their common rate."""
    body = []
    for one, (ours, theirs) in product(results.regimes(convolutions=True), pairs):
        cells = [change(results.ratio(one, ours, theirs, "loss", tuned=tuned)) for tuned in (True, False)]
        cells += [change(results.ratio(one, ours, theirs, "loss_at_time"))]
        cells += [gain(results.difference(one, ours, theirs, name)) for name in ("accuracy", "accuracy_at_time")]
        cells += [change(results.ratio(one, ours, theirs, "samples_per_second"))]
        levels = [results.rates(one, (ours, theirs)), *(results.means(one, (ours, theirs), name, ".3f") for name in ("loss", "accuracy"))]
        body.append([NAMES[_model(one.workload)], one.data, one.speeds, str(one.epochs), f"`{ours}` over `{theirs}`", *cells, *levels])
    losses = ["loss, tuned", "loss, common rate", "loss, tuned, equal time"]
    others = ["accuracy, tuned", "accuracy, equal time", "samples/s", "tuned rates", "losses", "accuracies"]
    return table(["model", "data", "speeds", "epochs", "methods", *losses, *others], body)


def _model(workload: str) -> str:
    return workload.partition(" ")[0]


WORLD = ("data", "speeds", "nodes", "epochs")


def noise(shares: Sequence[int]) -> float:
    """The variance of an unweighted mean of means over that of the mean of all samples: mean of b times mean of 1/b."""
    return float(np.mean(shares) * np.mean([1 / share for share in shares]))


def tuned_rate(table: Sequence[Row], one: Run) -> float:
    """The rate with the least final loss, by its geometric mean over the tuning seeds."""
    losses: dict[float, list[float]] = {}
    for row in _of(table, one):
        if int(row["seed"]) in TUNING_SEEDS:
            losses.setdefault(float(row["rate"]), []).append(math.log(float(row["loss"])))
    return min(losses, key=lambda rate: float(np.mean(losses[rate])))


def _of(table: Sequence[Row], one: Run) -> list[Row]:
    """The runs of a method in a regime, at any rate and of any seed."""
    return where(table, **{field.name: getattr(one, field.name) for field in fields(one) if field.name not in ("rate", "seed")})
