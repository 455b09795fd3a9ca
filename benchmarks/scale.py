"""The cost of a simulated iteration by number of nodes, compared with two references in the same run; medians over repeats.

    python benchmarks/scale.py            # the table of docs/internals/performance.md

Every row is asynchronous SGD, timing only: noisy gradients, pushes and pulls that share the server's links fairly, a serial
server, a full trace. The references are:

- a bare SimPy loop of timeouts in 100 processes
- the same system written by hand for SimPy in the usual way: plain processes, each with a Store as its mailbox; no policies, versions or
  summaries
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401, or its import would be measured with the first rows
import simpy
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.runtime.recording.trace import Trace
from hetsim.sim.world import EventWorld
from hetsim.trust.shipped import configs

SAMPLES, PARAMETERS = 32, 100_000  # of a worker's batch; of the model, with 4 bytes each
OVERHEAD, PER_SAMPLE, SPREAD = 10e-3, 1e-3, 0.3  # seconds, seconds, s of the lognormal factor
LATENCY, UPDATE, LINK = 1e-4, 1e-6, 1.25e10  # seconds, seconds, bytes per second of the server's links


def bare(updates: int) -> float:
    """Timeouts per second of 100 processes that do nothing else."""
    env = simpy.Environment()

    def loop(each: int) -> Generator[Any, Any, None]:
        for _ in range(each):
            yield env.timeout(1.0)

    for _ in range(100):
        env.process(loop(updates // 100))
    start = perf_counter()
    env.run()
    return updates / (perf_counter() - start)


class FairLink:
    """One link shared equally: a flow ends when the running total of bytes given to each reaches the flow's own end."""

    def __init__(self, env: simpy.Environment, bytes_per_second: float) -> None:
        self.env = env
        self.bytes_per_second = bytes_per_second
        self.flows: list[tuple[float, int, simpy.Event]] = []
        self.given = self.at = 0.0
        self.serial = 0
        self.alarm: simpy.Event | None = None

    def transfer(self, nbytes: float) -> simpy.Event:
        """An event that is triggered when all bytes have arrived."""
        self.advance()
        done = self.env.event()
        self.serial += 1
        heapq.heappush(self.flows, (self.given + nbytes, self.serial, done))
        self.arm()
        return done

    def advance(self) -> None:
        if self.flows:
            self.given += (self.env.now - self.at) * self.bytes_per_second / len(self.flows)
        self.at = self.env.now

    def arm(self) -> None:
        if self.flows:
            left = max(0.0, self.flows[0][0] - self.given)
            self.alarm = alarm = self.env.timeout(left * len(self.flows) / self.bytes_per_second)
            assert alarm.callbacks is not None
            alarm.callbacks.append(self.ring)

    def ring(self, alarm: simpy.Event) -> None:
        if alarm is self.alarm:
            self.advance()
            mark, _, done = heapq.heappop(self.flows)
            self.given = mark
            done.succeed()
            self.arm()


def by_hand(num_workers: int, updates: int) -> float:
    """Worker iterations per second of the same system, written for SimPy in the usual way."""
    env = simpy.Environment()
    up, down = FairLink(env, LINK), FairLink(env, LINK)
    requests = simpy.Store(env)
    replies = [simpy.Store(env) for _ in range(num_workers)]
    rows: list[tuple[float, ...]] = []
    nbytes = 4 * PARAMETERS
    finished = env.event()

    def factors(rank: int) -> Iterator[float]:
        rng = np.random.default_rng([0, rank])
        while True:
            yield from rng.lognormal(0.0, SPREAD, 64).tolist()

    def deliver(link: FairLink, box: simpy.Store, message: Any, kind: int, rank: int) -> Generator[Any, Any, None]:
        start = env.now
        yield link.transfer(nbytes)
        yield env.timeout(LATENCY)
        rows.append((start, env.now, rank, kind))
        yield box.put(message)

    def worker(rank: int) -> Generator[Any, Any, None]:
        factor = factors(rank)
        seen = 0
        while True:
            start = env.now
            yield env.timeout((OVERHEAD + SAMPLES * PER_SAMPLE) * next(factor))
            rows.append((start, env.now, rank, 0))
            env.process(deliver(up, requests, (rank, seen), 1, rank))
            seen = yield replies[rank].get()

    def server() -> Generator[Any, Any, None]:
        applied = 0
        while applied < updates:
            rank, seen = yield requests.get()
            start = env.now
            yield env.timeout(UPDATE)
            applied += 1
            rows.append((start, env.now, rank, applied - seen))
            env.process(deliver(down, replies[rank], applied, 2, num_workers))
        finished.succeed()

    for rank in range(num_workers):
        env.process(worker(rank))
    env.process(server())
    start = perf_counter()
    env.run(finished)
    return updates / (perf_counter() - start)


def simulated(num_workers: int, updates: int) -> float:
    """Worker iterations per second of hetsim, from the first event to the summary's numbers, with the trace written."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose("config", overrides=["method=asgd", "workload=phantom", "pictures=false"])
    OmegaConf.set_struct(config, False)
    noise = {"distribution": "lognorm", "s": SPREAD}
    config.cluster = {
        "name": "scale",
        "nodes": [{"count": num_workers, "seconds_per_sample": PER_SAMPLE, "overhead_seconds": OVERHEAD, "noise": noise}],
        "network": {"latency_seconds": LATENCY, "bytes_per_second": LINK, "sharing": "none"},  # the server's links are described
        "server": {"seconds_per_update": UPDATE, "uplink_bytes_per_second": LINK, "downlink_bytes_per_second": LINK},
    }
    config.batch_size = SAMPLES * num_workers
    config.budget = {"epochs": None, "updates": updates, "seconds": None}
    config.workload.num_parameters, config.workload.num_samples = PARAMETERS, 10**9
    made, _ = build_experiment(entries_of(config))
    task, optimizers = made.load()
    with tempfile.TemporaryDirectory() as folder, Trace(Path(folder), "full") as trace:
        simulation = EventWorld(made, task, optimizers, [trace])
        start = perf_counter()
        simulation.run()
        return updates / (perf_counter() - start)


def median(repeats: int, rates: Callable[[], tuple[float, ...]]) -> list[list[float]]:
    """Each rate's sorted values, over repeats in which all rates are measured one after the other."""
    values = []
    for _ in range(repeats):
        gc.collect()
        values.append(rates())
    return [sorted(its) for its in zip(*values, strict=True)]


def main() -> None:
    """The table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1024, 10_000])
    parser.add_argument("--updates", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("simpy", "numpy"))
    print(f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}; medians of {arguments.repeats}\n")
    print("| nodes | bare timeouts/s | by hand, iterations/s | hetsim, iterations/s | hetsim / by hand | per bare timeout |")
    print("|---|---|---|---|---|---|")
    for nodes in arguments.nodes:
        updates = max(arguments.updates, 12 * nodes)  # each node starts once and makes many iterations

        def rates(nodes: int = nodes, updates: int = updates) -> tuple[float, ...]:
            one, other, ours = bare(400_000), by_hand(nodes, updates), simulated(nodes, updates)
            return one, other, ours, ours / other, ours / one

        measured = median(arguments.repeats, rates)
        middle = [statistics.median(its) for its in measured]
        spread = " … ".join(f"{measured[3][end]:.2f}" for end in (0, -1))
        print(f"| {nodes} | {middle[0]:,.0f} | {middle[1]:,.0f} | {middle[2]:,.0f} | {middle[3]:.2f} ({spread}) | {middle[4]:.4f} |")


def processor() -> str:
    """The name that the system gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
