"""Predict the throughput of asynchronous training with 2 … 7 workers from measurements with 1 and 8: a closed loop, simulated by hetsim.

python predict.py [--quick] [--folder FOLDER]    # results.csv: every series under every candidate for the noise; resumable
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from scipy.optimize import brentq
from tqdm import tqdm
from variables import Cost, fitted

from hetsim.cluster import Cluster, Network, NodeSpec, Server
from hetsim.cluster.distributions import Distribution
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.policies.admission import EveryGradient
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.sim import Simulation
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import OptimizerRecipe, Recipe

HERE = Path(__file__).parent
MEASURED = HERE / "async_ps_throughput.csv"
MOST = 8
"""The measured numbers of workers are 1 to this."""
WINDOW = 100
"""Steps in each window of which a standard deviation was reported."""


@dataclass(frozen=True)
class Ends:
    """What a prediction may see of a series: its measurements with 1 and with 8 workers."""

    gpu: str
    model: str
    rates: tuple[float, float]
    """Steps per second."""
    deviations: tuple[float, float]
    """Standard deviation of a window's rate over its mean."""

    @property
    def step_variations(self) -> tuple[float, float]:
        """The coefficient of variation of one step, if steps are independent: a window has the mean of 100."""
        alone, crowded = self.deviations
        return alone * WINDOW**0.5, crowded * WINDOW**0.5


@dataclass(frozen=True)
class Series:
    """A series with all of its measurements."""

    ends: Ends
    rates: tuple[float, ...]
    """Steps per second with 1 … 8 workers."""


@dataclass(frozen=True)
class Candidate:
    """A rule for the noise of computing and of service: `shared` numbers, or multiples of the series' `own` variations at its ends."""

    rule: str
    compute: float
    service: float

    def variations(self, ends: Ends) -> tuple[float, float]:
        """The coefficients of variation of computing and of service."""
        alone, crowded = ends.step_variations if self.rule == "own" else (1.0, 1.0)
        return self.compute * alone, self.service * crowded


OWN = Candidate("own", 1.0, 1.0)
SERVER_OF_P100 = Candidate("server of P100", 1.0, 1.0)
SCALED = [Candidate("own", scale, scale) for scale in (0.5, 0.75, 1.25, 1.5, 2.0)]
SHARED = [Candidate("shared", compute, service) for compute, service in product((0.0, 0.1, 0.2, 0.4), (0.0, 0.2, 0.4, 0.6, 0.8))]


class Servers(NamedTuple):
    """How many there are, and what the busiest has of the weights, and so of each update's service."""

    num: int
    largest_share: float


ONE, HALVES, THIRDS = Servers(1, 1.0), Servers(2, 0.5), Servers(2, 0.667)
NUMS_OF_SERVERS = (2, 3, 4)
"""With each server holding whole variables."""


@dataclass(frozen=True)
class Loop:
    """A worker computes and transfers alone for Z seconds, then queues for the server's S seconds; both noisy, with a mean of their own."""

    compute_seconds: float
    service_seconds: float
    variations: tuple[float, float]

    def throughput(self, num_workers: int, *, num_updates: int, servers: Servers = ONE) -> float:
        """Steps per second of all workers, simulated. Equal shards divide the time of an update, so unequal ones are given a longer one."""
        compute, service = (gamma(variation) for variation in self.variations)
        nodes = (NodeSpec(overhead_seconds=self.compute_seconds, noise=compute),) * num_workers
        update = self.service_seconds * servers.num * servers.largest_share
        server = Server(seconds_per_update=update, noise=service, shards=servers.num)
        experiment = Experiment(
            method="asgd",
            coordination=ParameterServer(admission=EveryGradient()),
            cluster=Cluster(
                name="measured",
                nodes=nodes,
                network=Network(latency_seconds=0, bytes_per_second=1e300, sharing="none"),
                server=server,
            ),
            workload=PhantomWorkload(num_parameters=1, num_samples=10**9),
            optimizer=OptimizerRecipe(Recipe("torch.optim.SGD")),
            budget=Budget(updates=num_updates),
            batch_size=num_workers,
        )
        return float(Simulation(experiment).run()["updates_per_second"])


def gamma(variation: float) -> Distribution | None:
    """Factors of mean 1 with this coefficient of variation."""
    return Distribution("gamma", {"a": variation**-2, "scale": variation**2}) if variation else None


def calibrated(ends: Ends, variations: tuple[float, float], *, num_updates: int) -> Loop:
    """The loop whose cycle alone takes as long as measured, Z + S = 1/x₁, and whose simulated throughput with 8 workers is x₈."""
    alone, crowded = ends.rates
    cycle = 1 / alone

    def loop(service: float) -> Loop:
        return Loop(cycle - service, service, variations)

    def excess(service: float) -> float:
        return loop(service).throughput(MOST, num_updates=num_updates) / crowded - 1

    if excess(0.0) <= 0:  # no queue slows it down
        return loop(0.0)
    return loop(brentq(excess, 0.0, min(cycle, 1.2 / crowded), xtol=1e-4 * cycle, rtol=1e-4))


def measured(path: Path = MEASURED) -> list[Series]:
    """All series of the file."""
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            rate, deviation = float(row["steps_per_second_mean"]), float(row["steps_per_second_sd"])
            rows.setdefault((row["gpu"], row["model"]), []).append((rate, deviation / rate))
    found = []
    for (gpu, model), points in rows.items():
        assert len(points) == MOST
        rates, deviations = zip(*points, strict=True)
        found.append(Series(Ends(gpu, model, (rates[0], rates[-1]), (deviations[0], deviations[-1])), rates))
    return found


COLUMNS = ["rule", "compute", "service", "gpu", "model", "num_servers", "largest_share", "num_updates", "num_workers"]
"""What identifies a run."""
FOUND = ["compute_seconds", "service_seconds", "cv_compute", "cv_service", "steps_per_second"]
Key = tuple[str, ...]


class Results:
    """results.csv: a row for each run, written in groups of one series under one candidate; a group that is there is not run again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.groups: dict[Key, list[dict[str, str]]] = {}
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    self.groups.setdefault(tuple(row[name] for name in COLUMNS[:-1]), []).append(row)
        self.groups = {key: rows for key, rows in self.groups.items() if len(rows) == MOST and all(rows[-1].values())}
        self._write()

    def group(
        self, candidate: Candidate, ends: Ends, *, num_updates: int, servers: Servers = ONE, loop: Loop | None = None
    ) -> list[dict[str, str]]:
        """The rows for 1 … 8 workers: those of the file, or simulated now, calibrated first unless the loop is given."""
        identity = (candidate.rule, candidate.compute, candidate.service, ends.gpu, ends.model, *servers, num_updates)
        key = tuple(map(str, identity))
        if key not in self.groups:
            loop = loop or calibrated(ends, candidate.variations(ends), num_updates=num_updates)
            found = (f"{loop.compute_seconds:.6g}", f"{loop.service_seconds:.6g}", *(f"{variation:.4g}" for variation in loop.variations))
            rates = [loop.throughput(n, num_updates=num_updates, servers=servers) for n in range(1, MOST + 1)]
            self.groups[key] = [
                dict(zip(COLUMNS + FOUND, (*key, str(n), *found, f"{rate:.6g}"), strict=True)) for n, rate in enumerate(rates, start=1)
            ]
            self._write()
        return self.groups[key]

    def _write(self) -> None:
        partial = self.path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS + FOUND, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for rows in self.groups.values() for row in rows)
        partial.replace(self.path)


def second_server(results: Results, ends: Ends, *, num_updates: int) -> None:
    """Two servers that have half of the weights each, or one of them two thirds; the loop is as calibrated with one."""
    one = results.group(OWN, ends, num_updates=num_updates)[0]
    loop = Loop(float(one["compute_seconds"]), float(one["service_seconds"]), OWN.variations(ends))
    for servers in (HALVES, THIRDS):
        results.group(OWN, ends, num_updates=num_updates, servers=servers, loop=loop)


def with_the_server_of(results: Results, faster: Ends, slower: Ends, *, num_updates: int, servers: Servers = ONE) -> list[dict[str, str]]:
    """Slower workers at the server that the faster ones were calibrated with: of the slower series, the measurement alone is enough."""
    service = float(results.group(OWN, faster, num_updates=num_updates)[0]["service_seconds"])
    variations = (slower.step_variations[0], faster.step_variations[1])
    loop = Loop(1 / slower.rates[0] - service, service, variations)
    return results.group(SERVER_OF_P100, slower, num_updates=num_updates, servers=servers, loop=loop)


def dealt_out(cost: Cost, model: str, num_servers: int) -> Servers:
    """Servers that each have every `num_servers`-th variable of the model."""
    return Servers(num_servers, round(cost.largest_share(model, num_servers), 4))


def more_servers(results: Results, ends: dict[tuple[str, str], Ends], *, num_updates: int) -> None:
    """Variables dealt out whole: two to four servers for P100 workers, and two for K80 workers at the server of the P100s."""
    fast = {model: one for (gpu, model), one in ends.items() if gpu == "P100"}
    alone = {model: results.group(OWN, one, num_updates=num_updates)[0] for model, one in fast.items()}
    cost = fitted({model: float(row["service_seconds"]) for model, row in alone.items()})
    for model, one in fast.items():
        loop = Loop(float(alone[model]["compute_seconds"]), float(alone[model]["service_seconds"]), OWN.variations(one))
        for num in NUMS_OF_SERVERS:
            results.group(OWN, one, num_updates=num_updates, servers=dealt_out(cost, model, num), loop=loop)
        two = dealt_out(cost, model, 2)
        with_the_server_of(results, one, ends["K80", model], num_updates=num_updates, servers=two)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, and few candidates")
    parser.add_argument("--folder", type=Path, default=HERE, help="where results.csv is")
    asked = parser.parse_args(arguments)
    long, short = (400, 200) if asked.quick else (20_000, 4_000)
    candidates = [(OWN, long)] + [(one, short) for one in (SHARED[5:7] if asked.quick else [*SCALED, *SHARED])]
    asked.folder.mkdir(parents=True, exist_ok=True)
    results = Results(asked.folder / "results.csv")
    for (candidate, num_updates), series in tqdm(list(product(candidates, measured())), disable=None):
        results.group(candidate, series.ends, num_updates=num_updates)
    ends = {(series.ends.gpu, series.ends.model): series.ends for series in measured()}
    for (gpu, model), fast in ends.items():
        if gpu == "P100":
            second_server(results, fast, num_updates=long)
            with_the_server_of(results, fast, ends["K80", model], num_updates=long)
    more_servers(results, ends, num_updates=long)


if __name__ == "__main__":
    main()
