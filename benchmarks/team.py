"""The time of a Team's step, relative to DistributedDataParallel alone: `python benchmarks/team.py [mlp] [cnn] [PAIRS]`.

Two ranks on this machine train in turns with and without a Team, a few steps each. The ratio of a pair is the ratio of their medians.
Prints the median ratio of all pairs, with their quartiles, for the default method and for methods on a plain model.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median, quantiles

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hetsim.loop import Team

STEPS = 12
"""The steps of one side of a pair. The first two are not counted."""
BATCH = 256
RANKS = 2


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """A network of 0.8 million parameters, and its inputs."""
    return nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)), torch.randn(4096, 256)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """A small convolutional network with batch norm, and its inputs."""
    layers: list[nn.Module] = []
    for inner, outer in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10)), torch.randn(1024, 3, 32, 32)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {"mlp": mlp, "cnn": cnn}


def plain(net: nn.Module, data: TensorDataset) -> Iterator[None]:
    """The steps of DistributedDataParallel alone."""
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH // RANKS, sampler=sampler)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            yield


def with_team(net: nn.Module, data: TensorDataset, method: str, allocation: str) -> Iterator[None]:
    """The steps of a Team."""
    model: nn.Module = DistributedDataParallel(net) if method == "ddp" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    team = Team(model, optimizer, batch_size=BATCH, method=method, allocation=allocation)
    loader = team.loader(data)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            team.share(nn.functional.cross_entropy(model(x), y, reduction="none")).backward()
            team.step()
            yield


def seconds(steps: Iterator[None]) -> float:
    """The median of a few steps."""
    taken = []
    for _ in range(STEPS):
        began = time.perf_counter()
        next(steps)
        taken.append(time.perf_counter() - began)
    return median(taken[2:])


def measure(rank: int, port: int, names: list[str], pairs: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for name in names:
        torch.manual_seed(0)
        net, x = MODELS[name]()
        data = TensorDataset(x, torch.randint(0, 10, (len(x),)))
        one = plain(net, data)
        for method, allocation in (("ddp", "even"), ("ddp", "dbs"), ("ssgd", "even"), ("local_sgd", "even")):
            other = with_team(MODELS[name]()[0], data, method, allocation)
            seconds(one), seconds(other)
            both = [(seconds(one), seconds(other)) for _ in range(pairs)]
            ratios = [with_one / without for without, with_one in both]
            first, _, third = quantiles(ratios, n=4)
            if rank == 0:
                step = median(without for without, _ in both)
                print(
                    f"{name}, {method}, {allocation}: {median(ratios):.3f} ({first:.3f} to {third:.3f}) of {1e3 * step:.1f} ms", flush=True
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    words = sys.argv[1:]
    numbers = [int(word) for word in words if word.isdigit()]
    chosen = [word for word in words if word in MODELS] or list(MODELS)
    mp.spawn(measure, (20000 + os.getpid() % 10000, chosen, numbers[0] if numbers else 20), RANKS)
