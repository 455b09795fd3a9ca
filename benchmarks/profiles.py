"""Profiler files of a DistributedDataParallel loop over gloo, in which one rank sleeps in each step: what hetsim-stragglers reads.

python benchmarks/profiles.py runs/profiles [--ranks 2] [--slow 1] [--sleep 0.02] [--gz]
hetsim-stragglers runs/profiles
"""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn, optim, profiler
from torch.nn.parallel import DistributedDataParallel

STEPS, WARMUP, WIDTH, LAYERS, BATCH = 20, 2, 256, 6, 64


def train(rank: int, given: argparse.Namespace, port: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=given.ranks)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), bucket_cap_mb=0.5)
    optimizer = optim.SGD(model.parameters(), 0.01)
    file = str(given.folder / f"rank{rank}.pt.trace.json{'.gz' * given.gz}")
    schedule = profiler.schedule(wait=0, warmup=WARMUP, active=STEPS)
    activities = [profiler.ProfilerActivity.CPU]
    with profiler.profile(activities=activities, schedule=schedule, on_trace_ready=lambda its: its.export_chrome_trace(file)) as profiled:
        for _ in range(WARMUP + STEPS + 1):
            if rank == given.slow:
                time.sleep(given.sleep)
            optimizer.zero_grad()
            model(torch.randn(BATCH, WIDTH)).square().mean().backward()
            optimizer.step()
            profiled.step()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--slow", type=int, default=1)
    parser.add_argument("--sleep", type=float, default=0.02)
    parser.add_argument("--gz", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(train, (given, port), nprocs=given.ranks)


if __name__ == "__main__":
    main()
