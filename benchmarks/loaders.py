"""Seconds of a step on a user's own Dataset with slow samples, by the number of loader workers: python benchmarks/loaders.py

A rank takes steps of 64 samples (--samples) of 0.2 ms each (--milliseconds): of Python, which holds the lock of its interpreter, or of
waiting, as for a disk. The model is an MLP 256-1000-1000-10 (--hidden), one torch thread. A row has the median of the steps of each repeat,
and of these the median, the least and the most; the numbers of workers take turns. `ready` is what samples that are there cost.
The last column is the processor's time of the rank's own process, of which other programs take less away.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import hetsim
from hetsim.effects import Batch
from hetsim.workloads.device import CPU
from hetsim.workloads.own import Own
from hetsim.workloads.task import Task

SAMPLES = 4096
STEPS = 30


def busy(rounds: float) -> None:
    """Python that goes round so often."""
    for _ in range(int(rounds)):
        pass


def rounds_in(seconds: float) -> float:
    """How many rounds take so long on this processor, if nothing else runs there."""
    took = []
    for _ in range(7):
        before = time.thread_time()
        busy(200_000)
        took.append(time.thread_time() - before)
    return seconds / min(took) * 200_000


KINDS: dict[str, Callable[[float], None]] = {"python": busy, "waiting": time.sleep}


class Slow(Dataset[Any]):
    """Samples that take a while."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, kind: str, amount: float) -> None:
        self.x, self.y = x, y
        self.spend, self.amount = KINDS[kind], amount

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.spend(self.amount)
        return self.x[index], int(self.y[index])


@hetsim.workload
def build(kind: str, amount: float, hidden: int) -> hetsim.Training:
    """The workload."""
    x, y = torch.randn(SAMPLES, 256), torch.randint(10, (SAMPLES,))
    model = nn.Sequential(nn.Linear(256, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    train = TensorDataset(x, y) if kind == "ready" else Slow(x, y, kind, amount)
    return hetsim.Training(model=model, train=train, loss=functional.cross_entropy)


def step_seconds(task: Task, samples: int, first: int) -> tuple[float, float]:
    """Of a few steps at one stride: the median of their seconds, and the mean of the processor's in this process."""
    at, seconds = task.initial(), []
    processor = time.process_time()
    for step in range(first, first + STEPS):
        before = time.perf_counter()
        task.gradient(at, Batch(step * samples, samples))
        seconds.append(time.perf_counter() - before)
    return statistics.median(seconds[3:]), (time.process_time() - processor) / STEPS


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--milliseconds", type=float, default=0.2)
    parser.add_argument("--hidden", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print("| samples | workers | ms a step | least | most | of the processor |\n|---|---|---|---|---|---|")
    amounts = {"ready": 0.0, "python": rounds_in(given.milliseconds / 1e3), "waiting": given.milliseconds / 1e3}
    for kind, amount in amounts.items():
        counts = given.workers if kind in KINDS else [0]
        with ExitStack() as tasks:
            made = []
            for count in counts:
                own = Own(
                    module="loaders:build", trust=("loaders",), loader_workers=count,
                    options={"kind": kind, "amount": amount, "hidden": given.hidden},
                )  # fmt: skip
                made.append(tasks.enter_context(closing(own.load(seed=0, dtype="float32", device=CPU()))))
            found: list[list[tuple[float, float]]] = [[] for _ in made]
            for repeat in range(given.repeats):
                for task, its in zip(made, found, strict=True):
                    its.append(step_seconds(task, given.samples, repeat * STEPS))
        for count, its in zip(counts, found, strict=True):
            took, processors = ([1e3 * seconds for seconds in each] for each in zip(*its, strict=True))
            columns = (statistics.median(took), min(took), max(took), statistics.median(processors))
            print(f"| {kind} | {count} | {' | '.join(f'{number:.1f}' for number in columns)} |", flush=True)


if __name__ == "__main__":
    main()
