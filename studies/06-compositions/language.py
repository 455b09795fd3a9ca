"""Compare all methods on a small language model: python language.py [--quick] [--limit-seconds SECONDS] [--folder FOLDER]

It appends the runs that language.csv lacks. --limit-seconds starts no run after this time; call it again for the rest.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np
import yaml
from common import Row, Runs, interval, signed, table, where
from training import MOST, speeds

import hetsim
from hetsim.trust.shipped import configs

HERE = Path(__file__).resolve().parent
SECONDS = 1.2
"""Of virtual time, in which `hetgrad` makes 100 versions; every run ends at its first version after it."""
BATCH, NUM_WORKERS = 64, 8
STEP = 3.0
"""From a rate of a grid to the next. A grid is the shipped rate and both its neighbours, and continues where the best is at an end."""
MOST_FURTHER = 3
"""Rates by which it may continue."""
TUNING_SEED = 100
SEEDS = range(5)
"""Of what is reported: they have chosen nothing."""
IDENTITY = ("method", "steps", "seed")
"""The rates are the shipped ones times STEP to the power of `steps`."""
FOUND = ("loss", "bits", "accuracy", "num_updates", "samples", "staleness_mean")
GLOBAL, LOCAL = "learning_rate", "local_learning_rate"
WARM_UP = "coordination.warm_up=5"
RUN = (
    "workload=tiny_lm",
    f"batch_size={BATCH}",
    "budget.epochs=null",
    "evaluate_every_epochs=null",
    "stop_when_diverged=true",
    "trace=none",
    "pictures=false",
    "backend.processes=1",
)
CLUSTER = {
    "name": "1:4",
    "nodes": [
        {"count": 1, "seconds_per_sample": 1e-3 / speed, "overhead_seconds": 0.0, "noise": {"distribution": "lognorm", "s": 0.1}}
        for speed in speeds("1:4", NUM_WORKERS)
    ],
    "network": {"latency_seconds": 1e-4, "bytes_per_second": 125e6, "sharing": "none"},
    "server": {"seconds_per_update": 1e-4},
}
"""As `training.cluster` describes it."""


@dataclass(frozen=True)
class Entrant:
    """A method, what differs from its shipped config, and the rates that are tuned, by a common factor."""

    method: str
    words: tuple[str, ...] = ()
    tuned: tuple[str, ...] = (GLOBAL,)
    optimizer: str = "sgd"
    """Of the steps that follow gradients: the workers' own, in methods with local steps."""
    stated: float | None = None
    """The rate of 0 steps, where the method's config has none."""

    @property
    def name(self) -> str:
        """The method, and its optimizer where that is not the method's own."""
        return f"{self.method} + {self.optimizer}" if any("optimizer=" in word for word in self.words) else self.method

    def rates(self, steps: int) -> dict[str, float]:
        """The rates by key, this number of grid steps above the shipped ones."""
        shipped = yaml.safe_load((configs() / "method" / f"{self.method}.yaml").read_text(encoding="utf-8"))
        return {key: STEP**steps * (self.stated or shipped[key]) for key in self.tuned}

    def run(self, steps: int, seed: int, seconds: float) -> dict[str, object]:
        """Train in virtual time; what FOUND names: loss on the training set, bits per character and accuracy on the test set."""
        rates = [f"{key}={rate:.3g}" for key, rate in self.rates(steps).items()]
        times = [f"budget.seconds={seconds}", f"evaluate_every_seconds={seconds}", f"seed={seed}"]
        with TemporaryDirectory() as folder:
            made = hetsim.run(f"method={self.method}", *self.words, *rates, *RUN, *times, cluster=CLUSTER, folder=f"{folder}/run")
            summary = made.summary
        final = summary["final"]
        diverged = summary["seconds"] < seconds
        loss, bits = (MOST if diverged else least(final[name]) for name in ("train_loss", "test_bits_per_character"))
        samples = round(summary["samples_per_second"] * summary["seconds"])
        others = {name: summary[name] for name in ("num_updates", "staleness_mean")}
        return {"loss": loss, "bits": bits, "accuracy": final["test_accuracy"], "samples": samples, **others}


def least(value: float | None) -> float:
    """A loss, at most MOST."""
    return MOST if value is None or not math.isfinite(value) else min(value, MOST)


def of_adam(method: str, stated: float = 0.01) -> Entrant:
    """A method whose gradients AdamW follows."""
    return Entrant(method, ("optimizer=adamw",), ("optimizer.lr",), "adamw", stated)


ENTRANTS = (
    Entrant("ssgd"),
    Entrant("hetgrad"),
    Entrant("od_sgd", (WARM_UP,), (GLOBAL, LOCAL)),
    Entrant("asgd"),
    Entrant("softsync"),
    Entrant("dbs_sgd"),
    of_adam("hetgrad"),
    Entrant("hetgrad", ("optimizer=muon",), ("optimizer.lr",), "muon", 0.01),
    Entrant("muloco", (), (LOCAL,), "muon"),
    Entrant("ringmaster_lmo", ("admission.max_delay=8",), optimizer="lmo"),
    Entrant("diloco", (), (LOCAL,), "adamw"),
    Entrant("sparse_loco", (), (LOCAL,), "adamw"),
    Entrant("streaming_diloco", (), (LOCAL,), "adamw"),
    Entrant("decoupled_diloco", (), (LOCAL,), "adamw"),
    Entrant("acco"),
    of_adam("acco"),
    Entrant("mla", (), (LOCAL,)),
    Entrant("heloco", (), (LOCAL,)),
    Entrant("cgad", (), (GLOBAL,)),
    Entrant("async_local_sgd", ("optimizer.buffer_size=8",), (LOCAL,)),
    Entrant("async_local_sgd", ("optimizer.buffer_size=8", "local_optimizer=adamw"), (LOCAL,), "adamw", 0.003),
    Entrant("local_sgd", (), (LOCAL,)),
    Entrant("halos", ("coordination.num_regions=2",), (LOCAL,)),
    Entrant("dana"),
    Entrant("fedbuff", ("admission.size=6",), (LOCAL,)),
    Entrant("fedasync", (), (LOCAL,)),
    Entrant("gap_aware"),
    Entrant("ringmaster_stops", ("admission.max_delay=8",)),
    Entrant("rennala_stops", ("admission.batch=6",)),
    Entrant("dc_asgd_adaptive"),
    Entrant("delay_adaptive"),
    Entrant("staleness_aware"),
    Entrant("ssp"),
    Entrant("backup", ("admission.spares=2",)),
    Entrant("pipe_sgd", (WARM_UP,)),
    Entrant("abs_sgd", (WARM_UP,)),
    Entrant("ssd_sgd", (WARM_UP,), (GLOBAL, LOCAL)),
    Entrant("cd_sgd", (WARM_UP,), (GLOBAL, LOCAL)),
    Entrant("ata"),
    Entrant("lb_bsp"),
    Entrant("omnilearn"),
    Entrant("optperf"),
    Entrant("dbs"),
    Entrant("static"),
    Entrant("malenia"),
    Entrant("mindflayer"),
    Entrant("rennala", ("admission.batch=6",)),
    Entrant("ringmaster", ("admission.max_delay=8",)),
    Entrant("dc_asgd"),
    Entrant("rescaled_asgd"),
    Entrant("ringleader"),
    Entrant("ddp"),
)
PLAIN = ("ssgd", "hetgrad", "od_sgd", "asgd", "softsync", "dbs_sgd")
"""As in the rest of the study."""


class OutOfTime(Exception):
    """The limit for this call is over, and runs are missing."""


@dataclass
class Comparison:
    """Makes the runs that are missing."""

    runs: Runs
    seconds: float = SECONDS
    ends: float = math.inf
    """On a clock that only advances: no run begins later."""

    def loss(self, entrant: Entrant, steps: int, seed: int = TUNING_SEED) -> float:
        identity = {"method": entrant.name, "steps": steps, "seed": seed}
        return float(self.runs.row(identity, lambda: self._run(entrant, steps, seed))["loss"])

    def _run(self, entrant: Entrant, steps: int, seed: int) -> Mapping[str, object]:
        if monotonic() > self.ends:
            raise OutOfTime
        return entrant.run(steps, seed, self.seconds)

    def tune(self, entrants: Sequence[Entrant]) -> None:
        """A grid for each, which continues where its best rate is at an end."""
        for entrant in entrants:
            for steps in (0, -1, 1):
                self.loss(entrant, steps)
            for _ in range(MOST_FURTHER):
                best = chosen(self.runs.rows.values(), entrant.name)
                for steps in (best - 1, best + 1):
                    self.loss(entrant, steps)

    def judge(self, entrants: Sequence[Entrant], seeds: Iterable[int]) -> None:
        """Each at its best rate, seed by seed."""
        for seed in seeds:
            for entrant in entrants:
                self.loss(entrant, chosen(self.runs.rows.values(), entrant.name), seed)


def chosen(found: Iterable[Row], method: str) -> int:
    """The step with the least training loss on the tuning seed."""
    tried = where(found, method=method, seed=TUNING_SEED)
    return int(min(tried, key=lambda row: float(row["loss"]))["steps"])


@dataclass(frozen=True)
class Judged:
    """All runs: factors chosen on one seed, judged on others."""

    table: Sequence[Row]

    @cached_property
    def entrants(self) -> list[Entrant]:
        """Those that were judged."""
        return [one for one in ENTRANTS if self.judged(one.name)]

    def judged(self, method: str) -> dict[int, Row]:
        """The runs that count, by seed."""
        tried = where(self.table, method=method)
        found = where(tried, steps=chosen(tried, method)) if tried else []
        return {int(row["seed"]): row for row in found if int(row["seed"]) != TUNING_SEED}

    def numbers(self, method: str, name: str) -> list[float]:
        """A column of them."""
        return [float(row[name]) for row in self.judged(method).values()]

    @cached_property
    def best_plain(self) -> str:
        """On the tuning seed."""

        def loss(method: str) -> float:
            return min(float(row["loss"]) for row in where(self.table, method=method, seed=TUNING_SEED))

        return min((one.name for one in self.entrants if one.name in PLAIN), key=loss)

    def over(self, method: str, other: str) -> str:
        """Bits per character over another method's, by pairs of equal seeds, bold if the interval excludes 0."""
        ours, theirs = self.judged(method), self.judged(other)
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        if method == other or not pairs:
            return "–"
        found = interval([float(one["bits"]) - float(their["bits"]) for one, their in pairs])
        if len(pairs) == 1:
            return signed(found.mean, 2)
        shown = f"{signed(found.mean, 2)} ({signed(found.low, 2)} … {signed(found.high, 2)})"
        return shown if found.low <= 0 <= found.high else f"**{shown}**"


def comparison(results: Judged) -> str:
    """A row for each method, the best first."""

    def mean(method: str, name: str) -> float:
        return float(np.mean(results.numbers(method, name)))

    body = []
    for one in sorted(results.entrants, key=lambda one: mean(one.name, "bits")):
        rates = one.rates(chosen(results.table, one.name))
        rate = ", ".join(f"{'local ' if key == LOCAL else ''}{value:.3g}" for key, value in rates.items())
        same = f"hetgrad + {one.optimizer}"
        bits = results.numbers(one.name, "bits")
        cells = [f"{interval(bits):.2f}" if len(bits) > 1 else f"{bits[0]:.2f}", f"{mean(one.name, 'accuracy'):.3f}"]
        cells += [results.over(one.name, other) for other in (results.best_plain, same)]
        body.append(
            [f"`{one.name}`", *cells, f"{mean(one.name, 'num_updates'):.0f}", f"{mean(one.name, 'samples') / 1000:.1f}", rate, len(bits)]
        )
    head = ["method", "bits per character", "accuracy", f"bits over `{results.best_plain}`", "over `hetgrad` with the same optimizer"]
    return table([*head, "versions", "samples, thousands", "tuned rate", "seeds"], body)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE, help="where language.csv is")
    parser.add_argument("--quick", action="store_true", help="one method for a short time")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="begin no run after this time")
    parser.add_argument("--data-root", help="not used: the text ships with hetsim")
    asked = parser.parse_args(given)
    asked.folder.mkdir(parents=True, exist_ok=True)
    made = Comparison(Runs(asked.folder / "language.csv", IDENTITY, FOUND), ends=monotonic() + asked.limit_seconds)
    entrants, seeds = ENTRANTS, SEEDS
    if asked.quick:
        made.seconds, entrants, seeds = 0.05, ENTRANTS[1:2], range(2)
    try:
        made.tune(entrants)
        made.judge(entrants, seeds)
    except OutOfTime:
        raise SystemExit(f"stopped after {asked.limit_seconds:g} s with runs missing: run the same command again") from None


if __name__ == "__main__":
    main()
