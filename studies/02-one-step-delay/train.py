"""Make what is missing in results.csv: python train.py [--quick] [--data-root FOLDER] [--folder FOLDER]

Runs of time alone, training in virtual time at rates tuned by one budget, and the decisive runs again in padded processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import product

import numpy as np
from cases import BARE, DECAYED, HERE, METHODS, Run
from common import Row, Runs, arguments, where
from tqdm import tqdm
from training import FOUND, SEEDS, TUNING_SEEDS

Setting = tuple[float, float, float]
"""Momentum, rate, local rate."""
RATIOS = (0.1, 0.3, 1.0, 3.0)
SPEEDS = ("1:1", "1:2", "1:4", "straggler")
STEPS = (0.0125, 0.018, 0.025, 0.035, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56)
VARIANTS = tuple(method for method in METHODS if "," in method)
"""With a compensation."""
MAIN = ("ssgd", "asgd", "od_sgd", "pipe_sgd")
MEASURED_SEEDS = range(3)
"""Of the runs in processes."""
LOCAL = (0.025, 0.05, 0.1, 0.2, 0.5)
"""Local rates beside a rate of LOCAL_RATE."""
LOCAL_RATE = 0.05


def settings(method: str) -> tuple[Setting, ...]:
    """Twelve for each method, chosen so that the best is inside; OD-SGD's are four rates with three local ones."""
    bare = method.endswith(BARE)
    momentum, scale = (0.0, 4.0) if bare else (0.9, 1.0)
    if method.startswith("asgd"):
        return tuple((0.0, rate, 0.0) for rate in STEPS[::2]) + tuple((0.9, rate / 10, 0.0) for rate in STEPS[::2])
    if method.startswith("od_sgd"):
        times = (0.5, 1.0, 2.0) if bare else (1.0, 2.0, 4.0)
        rates = (0.1, 0.2, 0.4, 0.8) if bare else (0.0125, 0.025, 0.05, 0.1)
        return tuple((momentum, rate, rate * time) for rate, time in product(rates, times))
    return tuple((momentum, scale * rate, 0.0) for rate in STEPS)


def common(method: str) -> Setting:
    """As hetsim ships the method: 0.1 for all, and a local rate of twice that."""
    return (0.0 if method.startswith("asgd") or method.endswith(BARE) else 0.9, 0.1, 0.2 if method.startswith("od_sgd") else 0.0)


def with_setting(run: Run, setting: Setting, seed: int) -> Run:
    """The run at this setting."""
    return replace(run, momentum=setting[0], rate=setting[1], local_rate=setting[2], seed=seed)


def tuned_in(run: Run) -> Run:
    """The regime in which a method is tuned for this one: of synchronous methods only the clock differs where only speeds and links do."""
    run = replace(run, backend="sim")
    return run if run.method.startswith("asgd") else replace(run, speeds="1:1", links="private", ratio=1.0)


def tuned(table: Sequence[Row], run: Run) -> Setting:
    """The setting with the least final loss, by its geometric mean over the tuning seeds."""
    losses: dict[Setting, list[float]] = {}
    for row in of(table, tuned_in(run)):
        if int(row["seed"]) in TUNING_SEEDS:
            key = (float(row["momentum"]), float(row["rate"]), float(row["local_rate"]))
            losses.setdefault(key, []).append(math.log(float(row["loss"])))
    return min(losses, key=lambda key: float(np.mean(losses[key])))


def of(table: Sequence[Row], run: Run) -> list[Row]:
    """The runs of a method in a regime, at any setting and of any seed."""
    free = ("momentum", "rate", "local_rate", "seed")
    return where(table, **{field.name: getattr(run, field.name) for field in fields(run) if field.name not in free})


def world(speeds: str, ratio: float, *, data: str = "shared", epochs: int = 4, links: str = "private", workload: str = "mlp 10000") -> Run:
    """A regime in which methods are trained."""
    return Run(workload, 8, speeds, data, method="", epochs=epochs, links=links, ratio=ratio)


def regimes() -> Mapping[Run, Sequence[str]]:
    """Where methods are trained, and which."""
    centre = world("1:1", 1.0)
    bare = tuple(method + BARE for method in ("ssgd", "od_sgd", "pipe_sgd"))
    others = [
        world(*each) for each in (("1:4", 1.0), ("straggler", 1.0), ("1:1", 0.1), ("1:1", 0.3), ("1:1", 3.0), ("1:4", 0.3), ("1:4", 3.0))
    ]
    return {
        centre: (*MAIN, *bare, *VARIANTS),
        **dict.fromkeys(others, MAIN),
        world("1:1", 1.0, links="ring"): ("ssgd", "od_sgd", "pipe_sgd"),
        world("1:1", 1.0, data="skewed"): MAIN,
        world("1:1", 1.0, epochs=12): (*MAIN, *(method + DECAYED for method in MAIN[:3])),
        world("1:1", 1.0, epochs=30, workload="digits lenet"): MAIN,
        world("1:1", 1.0, epochs=6, workload="cifar10 10000"): MAIN[:3],
    }


def timings(*, speeds: Sequence[str], ratios: Sequence[float], slices: bool) -> Iterator[Run]:
    """Time alone: every ratio, link and spread of speeds; with other noise, and with other numbers of equal nodes."""
    one = Run("phantom", 8, "1:1", "shared", method="", epochs=0)
    for links, speed, ratio, method in product(
        ("private", "shared", "ring"), speeds, ratios, ("ssgd", "asgd", "od_sgd", "ssgd split", "od_sgd split")
    ):
        if links != "ring" or method != "asgd":
            yield replace(one, links=links, speeds=speed, ratio=ratio, method=method)
    if slices:
        for speed, ratio, method in product(("1:1 steady", "1:1 noisy"), ratios, MAIN[:3]):
            yield replace(one, speeds=speed, ratio=ratio, method=method)
        for num, links, ratio, method in product((2, 4, 16, 32), ("private", "shared"), ratios, MAIN[:3]):
            yield replace(one, num_nodes=num, links=links, ratio=ratio, method=method)


def measured() -> list[Run]:
    """The decisive runs, in processes, at tuned settings."""
    return [
        replace(world(speeds, 1.0), method=method, backend="dist") for speeds, method in product(("1:1", "1:4"), ("ssgd", "asgd", "od_sgd"))
    ]


def fill(runs: Runs, plan: Mapping[Run, Sequence[str]], data_root: str, *, seeds: Sequence[int], every: int = 1) -> None:
    """Train what is missing: each method at each of its settings with the tuning seeds, then at the best and at the common one."""

    def row(run: Run) -> Row:
        return runs.row(asdict(run), lambda: run.make(data_root))

    try:
        next(iter(plan)).load(data_root).check()
    except ValueError as error:
        raise SystemExit(f"{error} (here by --data-root FOLDER)") from None
    todo = [replace(regime, method=method) for regime, methods in plan.items() for method in methods]
    for one in tqdm(todo, disable=None):
        for setting, seed in product(settings(one.method)[::every], TUNING_SEEDS):
            row(with_setting(tuned_in(one), setting, seed))
        best = tuned(list(runs.rows.values()), one)
        for setting, seed in product(dict.fromkeys((best, common(one.method))), seeds):
            row(with_setting(one, setting, seed))


def local_rates(runs: Runs, data_root: str) -> None:
    """A rate with several local rates."""
    for local_rate, seed in product(LOCAL, SEEDS):
        one = with_setting(replace(world("1:1", 1.0), method="od_sgd"), (0.9, LOCAL_RATE, local_rate), seed)
        runs.row(asdict(one), lambda one=one: one.make(data_root))  # type: ignore[misc]
    for seed in SEEDS:
        one = with_setting(replace(world("1:1", 1.0), method="pipe_sgd"), (0.9, LOCAL_RATE, 0.0), seed)
        runs.row(asdict(one), lambda one=one: one.make(data_root))  # type: ignore[misc]


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    runs = Runs(asked.folder / "results.csv", [field.name for field in fields(Run)], FOUND)
    seeds = range(2) if asked.quick else SEEDS
    if asked.quick:
        timed = timings(speeds=("1:1", "1:4"), ratios=(0.3, 3.0), slices=False)
    else:
        timed = timings(speeds=SPEEDS, ratios=RATIOS, slices=True)
    for seed, one in tqdm(list(product(seeds, timed)), disable=None):
        run = replace(one, seed=seed)
        runs.row(asdict(run), lambda run=run: run.make(asked.data_root))  # type: ignore[misc]
    if asked.quick:
        small = {replace(world("1:1", 1.0, epochs=12, workload="digits"), speeds=speeds): MAIN for speeds in ("1:1", "1:4")}
        fill(runs, small, asked.data_root, seeds=seeds, every=4)
        return
    fill(runs, regimes(), asked.data_root, seeds=seeds)
    local_rates(runs, asked.data_root)
    for seed, one in tqdm(list(product(MEASURED_SEEDS, measured())), disable=None):
        run = with_setting(one, tuned(list(runs.rows.values()), one), seed)
        runs.row(asdict(run), lambda run=run: run.make(asked.data_root))  # type: ignore[misc]


if __name__ == "__main__":
    main()
