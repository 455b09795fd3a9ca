"""The time of a timing-only run of a synchronous method, in lockstep and event by event: python benchmarks/lockstep.py

Nodes of four speeds with lognormal noise, 32 samples each, a ring; `trace: commits`. Each row is a process of its own, so that
its peak memory is its own; what is timed ends with the summary. Equal rows have equal virtual seconds.
"""

from __future__ import annotations

import os
import platform
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.trace import Trace
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.sim.world import EventWorld
from hetsim.trust.shipped import configs

DRIVERS = {"lockstep": LockstepWorld, "events": EventWorld}
PIPE = ("method=pipe_sgd", "coordination.warm_up=2")
ROWS = (
    ("lockstep", ("method=ssgd",), 10_000, 1000),
    ("lockstep", PIPE, 10_000, 1000),
    ("lockstep", ("method=local_sgd",), 10_000, 100),
    ("lockstep", ("method=dbs",), 10_000, 100),
    *(
        (driver, choices, nodes, 20)
        for choices, nodes in ((("method=ssgd",), 1000), (PIPE, 1000), (("method=local_sgd",), 1000), (("method=dbs",), 100))
        for driver in DRIVERS
    ),
)


def described(choices: tuple[str, ...], nodes: int, updates: int) -> Experiment:
    """The experiment of a row."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose("config", overrides=[*choices, "workload=phantom", "trace=commits", "pictures=false"])
    noise = {"distribution": "lognorm", "s": 0.3}
    speeds = [
        {"count": nodes // 4, "overhead_seconds": 1e-3, "seconds_per_sample": 1e-4 * (1 + speed), "noise": noise} for speed in range(4)
    ]
    cluster = {
        "name": "four speeds",
        "nodes": speeds,
        "network": {"latency_seconds": 1e-5, "bytes_per_second": 1e9},
        "server": {"seconds_per_update": 0.0},
    }
    changes = {"batch_size": 32 * nodes, "budget": {"epochs": None, "updates": updates, "seconds": None}}
    config = OmegaConf.merge(config, changes)
    OmegaConf.update(config, "cluster", cluster, merge=False)
    return build_experiment(entries_of(config))[0]


def measured(driver: str, choices: tuple[str, ...], nodes: int, updates: int) -> tuple[float, float, float]:
    """Wall-clock seconds, seconds of the run's own clock, and the process's peak memory in bytes."""
    made = described(choices, nodes, updates)
    with TemporaryDirectory() as folder, Trace(Path(folder), made.trace) as trace:
        start = perf_counter()
        world = DRIVERS[driver](made, *made.load(), [trace])
        world.run()
        world.metrics.summary()
        took = perf_counter() - start
    return took, world.metrics.applied.seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}\n")
    print(f"{'driver':10}{'method':12}{'nodes':>8}{'updates':>9}{'seconds':>10}{'ms/update':>11}{'peak':>10}{'virtual':>11}")
    for driver, choices, nodes, updates in ROWS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            took, virtual, peak = pool.submit(measured, driver, choices, nodes, updates).result()
        method = choices[0].removeprefix("method=")
        row = f"{driver:10}{method:12}{nodes:8}{updates:9}{took:10.2f}{1000 * took / updates:11.2f}"
        print(f"{row}{peak / 2**20:6.0f} MiB{virtual:9.2f} s", flush=True)


if __name__ == "__main__":
    main()
