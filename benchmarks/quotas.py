"""How far the simulated rates are from those of real workers with CPU quotas: python benchmarks/quotas.py [override …]

Two workers get 0.4 and 0.2 of a core (--shares; the machine must have more than their sum idle). Their times on a whole core are
measured first, in CPU-seconds, and describe the cluster. Each method is simulated on this cluster once and really run a few times. A row
has the median of the real runs, their extremes, the relative error of the simulation, and the part of the periods in which each worker
used up its quota.

With --periods: the seconds of a busy step of about 20 ms on 0.4 of a core, relative to the expected seconds, by the period of the quota.
Steps follow each other directly, and then with a pause of 30 ms before each, as at a barrier. The periods take turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

import hetsim
from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.distributed.pacing import cpu_quota as quota
from hetsim.effects import Batch
from hetsim.trust.shipped import configs

METHODS = ("ssgd", "dbs", "hetgrad")
SAMPLES = 4096  # of a global batch
CHOICES = (
    "workload=digits",
    f"batch_size={SAMPLES}",
    "+workload.model_options.hidden=[300,300]",
    "budget.epochs=null",
    "evaluate_every_epochs=1000",
    "trace=none",
)
UPDATES = 30
NETWORK = "cluster.network={latency_seconds: 2e-4, bytes_per_second: 1e9, sharing: none}"  # about the loopback's
PERIODS_US = (5_000, 10_000, 20_000, 100_000)


def cpu_seconds(work: Callable[[], Any], times: int = 15) -> float:
    """The processor's seconds of this work in this thread, the median."""
    seconds = []
    for _ in range(times):
        before = time.thread_time()
        work()
        seconds.append(time.thread_time() - before)
    return statistics.median(seconds[2:])


def described(shares: list[float], overrides: list[str]) -> str:
    """The cluster of two such workers, by what gradients and updates take on a whole core of this machine."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        made, _ = build_experiment(entries_of(compose("config", overrides=["method=ssgd", *CHOICES, "budget.updates=1", *overrides])))
    task, optimizers = made.load()
    torch.set_num_threads(1)
    weights = task.initial()
    few, many = (cpu_seconds(lambda size=size: task.gradient(weights, Batch(0, size))) for size in (SAMPLES // 4, SAMPLES))
    gradient, memory = task.gradient(weights, Batch(0, 8))[0], optimizers.main.initial()
    update = cpu_seconds(lambda: optimizers.main.step(memory, weights, gradient, 0))
    per_sample = (many - few) / (SAMPLES - SAMPLES // 4)
    times = f"overhead_seconds: {max(few - per_sample * SAMPLES / 4, 0)}, seconds_per_sample: {per_sample}, seconds_per_update: {update}"
    print(f"on a whole core: {times}")
    return f"cluster.nodes=[{', '.join(f'{{count: 1, {times}, cpu_quota: {share}}}' for share in shares)}]"


def summary(folder: Path, *overrides: str) -> dict[str, Any]:
    """That of one run."""
    words = ("pictures=false", *CHOICES, f"budget.updates={UPDATES}", *overrides)
    return hetsim.run(*words, folder=folder).summary  # its processes are forked from one that stays


def compare(shares: list[float], repeats: int, overrides: list[str]) -> None:
    """One row for each method."""
    nodes = described(shares, overrides)
    print(f"{'method':10}{'simulated/s':>12}{'measured/s':>12}   {'extremes':16}{'error':>8}{'batches':>10}   periods throttled")
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            typed = [f"method={method}", nodes, NETWORK, *overrides]
            simulated = summary(Path(folder, method, "sim"), *typed)["updates_per_second"]
            runs = [summary(Path(folder, method, str(k)), "backend=dist", "backend.emulate=quota", *typed) for k in range(repeats)]
            rates = sorted(run["updates_per_second"] for run in runs)
            median = statistics.median(rates)
            caps = runs[-1]["emulation"]["workers"]
            throttled = ", ".join(f"{cap['num_throttled'] / max(cap['num_periods'], 1):.0%}" for cap in caps)
            batches = "/".join(map(str, runs[-1]["batch_sizes"]))
            extremes = f"{rates[0]:.2f} … {rates[-1]:.2f}"
            print(
                f"{method:10}{simulated:12.2f}{median:12.2f}   {extremes:16}{simulated / median - 1:+8.1%}{batches:>10}   {throttled}",
                flush=True,
            )


def step() -> int:
    """About 20 ms of a processor."""
    return sum(range(1_000_000))


def busy(period: int, pause: float, share: float = 0.4, times: int = 20) -> tuple[float, float]:
    """The mean seconds of a step relative to its seconds of the processor over its share, and their standard deviation."""
    relative = []
    with quota.CgroupCap(share, period_seconds=period / 1e6):
        for _ in range(times):
            began, before = time.monotonic(), time.thread_time()
            step()
            relative.append((time.monotonic() - began) * share / (time.thread_time() - before))
            time.sleep(pause)
    return statistics.fmean(relative), statistics.pstdev(relative)


def periods(repeats: int) -> None:
    """One row for each period."""
    print(f"a step takes {cpu_seconds(step) * 1e3:.1f} ms of the processor; mean time relative to 1/share, standard deviation")
    pauses = (0.0, 0.03)
    found = [{(period, pause): busy(period, pause) for period in PERIODS_US for pause in pauses} for _ in range(repeats)]
    print(f"{'period':>10}{'step after step':>22}{'pause of 30 ms before':>30}")
    for period in PERIODS_US:
        row = ""
        for pause in pauses:
            means, deviations = zip(*(one[period, pause] for one in found), strict=True)
            row += f"   {statistics.median(means):.2f} ({min(means):.2f} … {max(means):.2f})  {statistics.median(deviations):.2f}"
        print(f"{period / 1000:7g} ms{row}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shares", type=float, nargs=2, default=[0.4, 0.2])
    parser.add_argument("--periods", action="store_true")
    arguments, overrides = parser.parse_known_args()
    load = "/".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, load {load}; {arguments.repeats} repeats")
    if arguments.periods:
        periods(arguments.repeats)
    else:
        compare(arguments.shares, arguments.repeats, overrides)


if __name__ == "__main__":
    main()
