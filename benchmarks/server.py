"""How many updates/s a server sustains, relative to the same messages in plain calls of torch.distributed.

python benchmarks/server.py [--workers 8] [--parameters 1000000] [--pairs 10] [--updates 100]

All contenders run in the same processes, in turn, on gloo and loopback:

- hetsim's ASGD, whose workers compute nothing: each gradient is a vector that they already have
- a plain server with one thread, which receives from anyone, steps in place and sends the weights back
- a plain server with a thread for each worker, which does so under a lock and sends a copy of the weights

The ratio is to the faster plain server of each repeat. All threads have real-time priority where the system grants it, so that other
work on the machine disturbs no contender. With --ordinary only the threads that move messages have it: gloo's and hetsim's. The last
weights of all contenders are compared.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from threading import Lock, Thread
from typing import Any

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from step import in_processes
from training import machine, unevaluated

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.pacing.padding import Pace, clock, realtime_priority
from hetsim.distributed.rank.run import FixedMembership, RankRun, prepare_rank
from hetsim.effects import Batch
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.trace import Trace, TracePart
from hetsim.trust.shipped import configs
from hetsim.workloads.device import Device
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import Evaluation, OptimizerRecipe, Task, Workload

RATE = 2.0**-10  # so that sums of steps are exact in any order


class Given(Task):
    """Every gradient is the same vector of ones."""

    def __init__(self, num_parameters: int) -> None:
        self.num_samples = 10**9
        self.num_parameters: int = num_parameters
        self.ones = torch.ones(num_parameters)

    def initial(self) -> torch.Tensor:
        return torch.zeros_like(self.ones)

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        return self.ones, 0.0

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        return unevaluated(at)

    def optimizer(self, recipe: OptimizerRecipe) -> FlatOptimizer:
        return FlatOptimizer(recipe, self.num_parameters)


@dataclass(frozen=True, kw_only=True)
class GivenWorkload(Workload):
    """A model of so many parameters for which there is nothing to compute."""

    num_parameters: int
    name: str = "given"

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        return Given(self.num_parameters)


def experiment(num_workers: int, num_parameters: int, updates: int) -> Experiment:
    """ASGD on equal nodes."""
    overrides = ["method=asgd", "workload=phantom", f"learning_rate={RATE}", f"batch_size={num_workers}"]
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose("config", overrides=overrides)
    nodes = [{"count": num_workers, "seconds_per_sample": 1e-6, "overhead_seconds": 1e-6}]
    changes = {"cluster": {"nodes": nodes}, "budget": {"epochs": None, "updates": updates}}
    made, _ = build_experiment(entries_of(OmegaConf.merge(config, changes)))
    return replace(made, workload=GivenWorkload(num_parameters=num_parameters))


class Servers:
    """One rank's part of each contender; a call returns the last weights on the server, and nothing on a worker."""

    def __init__(self, made: Experiment, transport: GlooTransport, *, ordinary: bool) -> None:
        self.made = made
        self.ordinary = ordinary
        self.transport = transport
        self.rank, self.server = transport.rank, made.num_workers
        self.task, self.optimizers = made.load()
        assert made.budget.updates is not None
        self.updates: int = made.budget.updates
        self.marks: list[float] = []
        """The time after each update of the contender that was called last."""
        self.calls: dict[str, Callable[[], torch.Tensor | None]] = {
            "hetsim": self.hetsim,
            "one thread": self.one_thread,
            "threads": self.threads,
        }

    def taken(self, name: str) -> tuple[float, float, torch.Tensor | None]:
        """On the server: updates/s after each worker's first, page faults for each update, and the last weights."""
        self.marks.clear()
        self.transport.control.barrier()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with nullcontext() if self.ordinary else realtime_priority(), ThreadPoolExecutor(1) as pool:
            weights = pool.submit(self.calls[name]).result()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        if self.rank != self.server:
            return 0.0, 0.0, None
        first = self.server
        return (len(self.marks) - 1 - first) / (self.marks[-1] - self.marks[first]), faults / self.updates, weights

    def hetsim(self) -> torch.Tensor | None:
        """hetsim's server and workers, with its trace."""
        made, leads = self.made, self.rank == self.server
        with Trace(None, made.trace) if leads else TracePart(made.trace) as trace:
            pace = Pace("none")
            run = RankRun(
                prepare_rank(self.transport, pace, made, self.task, self.optimizers), trace,
                membership=FixedMembership(self.transport, leader=made.leader), pace=pace,
                keep=lambda _: self.marks.append(clock()),
            )  # fmt: skip
            run.run()
        return run.last.weights if leads else None

    def one_thread(self) -> torch.Tensor | None:
        """The server receives from anyone."""
        if self.rank != self.server:
            return self.worker()
        weights, gradient = self.task.initial(), self.task.initial()
        for _ in range(self.updates):
            source = dist.recv(gradient)
            weights.add_(gradient, alpha=-RATE)
            self.marks.append(clock())
            dist.send(weights, source)
        return weights

    def threads(self) -> torch.Tensor | None:
        """The server has a thread for each worker."""
        if self.rank != self.server:
            return self.worker()
        weights, lock = self.task.initial(), Lock()

        def serve(worker: int) -> None:
            gradient, reply = torch.empty_like(weights), torch.empty_like(weights)
            for _ in range(self.updates // self.server):
                dist.recv(gradient, worker)
                with lock:
                    weights.add_(gradient, alpha=-RATE)
                    reply.copy_(weights)
                    self.marks.append(clock())
                dist.send(reply, worker)

        threads = [Thread(target=serve, args=(worker,)) for worker in range(self.server)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return weights

    def worker(self) -> None:
        """Push and pull."""
        weights = torch.empty_like(self.task.initial())
        for _ in range(self.updates // self.server):
            dist.send(self.task.gradient(weights, Batch(0, 1))[0], self.server)
            dist.recv(weights, self.server)


def part(transport: GlooTransport, num_parameters: int, pairs: int, updates: int, ordinary: bool) -> Any:
    """One process: all contenders in turn, each time in the other order."""
    servers = Servers(experiment(transport.size - 1, num_parameters, updates), transport, ordinary=ordinary)
    rates: list[dict[str, float]] = []
    faults: dict[str, list[float]] = {name: [] for name in servers.calls}
    names = list(servers.calls)
    *_, weights = servers.taken("hetsim")
    for repeat in range(pairs):
        rates.append({})
        for name in names if repeat % 2 else reversed(names):
            rates[-1][name], fault, end = servers.taken(name)
            faults[name].append(fault)
            assert end is None or weights is None or torch.equal(end, weights)
    return rates, {name: statistics.median(of_runs) for name, of_runs in faults.items()}


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--updates", type=int, default=96)
    parser.add_argument("--ordinary", action="store_true", help="no real-time priority but for threads that only move messages")
    arguments = parser.parse_args()
    assert arguments.updates % arguments.workers == 0, "each worker of a plain server takes as many updates as the others"
    print(machine())
    parts = in_processes(arguments.workers + 1, part, arguments.parameters, arguments.pairs, arguments.updates, arguments.ordinary)
    rates, faults = parts[-1]
    for name in rates[0]:
        of_runs = sorted(taken[name] for taken in rates)
        spread = f"{statistics.median(of_runs):8.1f} updates/s ({of_runs[0]:.1f} … {of_runs[-1]:.1f})"
        print(f"{name:12}{spread}, {faults[name]:.0f} page faults each")
    ratios = sorted(taken["hetsim"] / max(taken["one thread"], taken["threads"]) for taken in rates)
    print(f"hetsim / the faster plain one: {statistics.median(ratios):.3f} ({ratios[0]:.2f} … {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
