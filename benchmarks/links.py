"""Shared links in real processes, and what one-step delay hides of them: python benchmarks/links.py [override …]

Four equal workers of 40 ms a gradient push to a server and pull from it. There are three clusters: on their links, the communication of
a synchronous step takes half as long as the gradient, as long, and twice as long. Each method is simulated once on each cluster. Then the
methods take turns in real, padded processes, where one emulator shares the links.

A row has:

- the milliseconds of a step of four gradients: simulated, and the median of the real runs with their extremes
- the relative error of the simulation
- the step over the longer of computation and communication
- how many of the messages were late
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

import hetsim
from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.trust.shipped import configs

METHODS = {
    "ssgd": ("method=ssgd", "coordination=parameter_server"),
    "od_sgd": ("method=od_sgd", "coordination.warm_up=0"),
    "asgd": ("method=asgd",),
}
WORKERS, SAMPLES = 4, 32
COMPUTING = 0.04  # seconds of a gradient
LATENCY = 5e-4
UPDATING = 1e-3  # of the server, and of the local optimizer
STEPS = 60
RATIOS = (0.5, 1.0, 2.0)
CHOICES = (
    "workload=digits",
    f"batch_size={WORKERS * SAMPLES}",
    "budget.epochs=null",
    "evaluate_every_epochs=1000",
    "trace=none",
    "pictures=false",
)


def size(overrides: list[str]) -> int:
    """Bytes of the weights."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        made, _ = build_experiment(entries_of(compose("config", overrides=["method=asgd", *CHOICES, "budget.updates=1", *overrides])))
    return made.load()[0].initial().nbytes


def cluster(ratio: float, nbytes: int) -> list[str]:
    """The overrides of a cluster whose communication takes this part of the computation of a step."""
    seconds = COMPUTING * ratio - 2 * LATENCY - UPDATING  # of a push and a pull of all workers at once
    capacity = 2 * WORKERS * nbytes / seconds
    times = f"seconds_per_sample: {COMPUTING / SAMPLES}, overhead_seconds: 0, seconds_per_update: {UPDATING}"
    links = f"uplink_bytes_per_second: {capacity}, downlink_bytes_per_second: {capacity}"
    return [
        f"cluster.nodes=[{{count: {WORKERS}, {times}}}]",
        f"cluster.network={{latency_seconds: {LATENCY}, bytes_per_second: 1e9, sharing: none}}",
        f"+cluster.server={{seconds_per_update: {UPDATING}, {links}}}",
    ]


def run(folder: Path, method: str, *words: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a step, and the summary."""
    updates = STEPS * WORKERS if method == "asgd" else STEPS
    summary = hetsim.run(*METHODS[method], *CHOICES, f"budget.updates={updates}", *words, folder=folder).summary
    return summary["seconds"] / STEPS, summary


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    arguments, overrides = parser.parse_known_args()
    load = "/".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, load {load}; {arguments.repeats} repeats")
    print(f"{'':8}{'comm.':>6}{'simulated':>11}{'measured':>10}   {'extremes':18}{'error':>8}{'over max':>10}   late messages")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        nbytes = size(overrides)
        for ratio in RATIOS:
            words = [*cluster(ratio, nbytes), *overrides]
            at = folder / str(ratio)
            simulated = {method: run(at / method, method, *words)[0] for method in METHODS}
            real: dict[str, list[tuple[float, dict[str, Any]]]] = {method: [] for method in METHODS}
            for k in range(arguments.repeats):
                for method in METHODS:
                    real[method].append(run(at / f"{method} {k}", method, "backend=dist", *words))
            for method, runs in real.items():
                steps = [seconds for seconds, _ in runs]
                median = statistics.median(steps)
                late = statistics.median(one["emulation"]["message"]["late"] / one["emulation"]["message"]["count"] for _, one in runs)
                extremes = f"{min(steps) * 1e3:.2f} … {max(steps) * 1e3:.2f}"
                most = COMPUTING * max(1.0, ratio) + UPDATING * (ratio <= 1.0)
                print(
                    f"{method:8}{ratio:6.1f}{simulated[method] * 1e3:11.2f}{median * 1e3:10.2f}   {extremes:18}"
                    f"{simulated[method] / median - 1:+8.1%}{median / most:10.3f}   {late:.0%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
