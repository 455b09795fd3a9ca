"""What a Team's check of the loss's graph costs: python benchmarks/loss_check.py [--pairs 60] [--ahead 20]

One process, one torch thread. Steps alternate: one with the check, one without. The check marks the model's output after the forward pass,
and walks over the loss's graph before the backward pass. A row has the medians of both kinds of step, the check's own time with its
quartiles, its share of a step, and the quartiles of the pairs' differences. In a row with "own loss", the model returns its loss, so the
check walks through the model's graph, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp import Team, divisors, forwards

CLASSES = 10


class Block(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = (
            nn.Identity() if stride == 1 else nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


class OwnLoss(nn.Module):
    """A model that returns its loss, as nanoGPT's does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(x), y)


def mlp() -> nn.Module:
    """784-300-300-10."""
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, CLASSES))


def resnet() -> nn.Module:
    """ResNet-18 with a quarter of its channels, for images of 32 × 32 pixels."""
    channels = (16, 16, 16, 32, 32, 64, 64, 128, 128)
    blocks = [Block(*pair) for pair in pairwise(channels)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def transformer() -> nn.Module:
    """Four layers of width 64."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(16, 64), encoder, nn.Flatten(), nn.Linear(32 * 64, CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP, 784-300-300-10": (mlp, (784,)),
    "ResNet-18, a quarter of the channels": (resnet, (3, 32, 32)),
    "transformer, 4 layers of width 64": (transformer, (32, 16)),
}


def measured(make: Callable[[], nn.Module], shape: tuple[int, ...], *, is_own: bool, pairs: int, ahead: int) -> tuple[Any, ...]:
    """The seconds of each step with and without the check, and of each check."""
    samples = torch.utils.data.TensorDataset(torch.randn(1024, *shape), torch.randint(CLASSES, (1024,)))
    team = Team(32, "even")
    loader, model = team.loader(samples), team.wrap(DistributedDataParallel(OwnLoss(make()) if is_own else make()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parts, steps, checks = (forwards.Forwards.__call__, divisors.check_losses), ([], []), list[float]()  # type: ignore[var-annotated]

    def timed(part: Callable[..., None], *arguments: Any) -> None:
        began = time.perf_counter()
        part(*arguments)
        checks[-1] += time.perf_counter() - began

    batches = (batch for _ in iter(int, 1) for batch in loader)
    for number in range(2 * (ahead + pairs)):
        is_checked = number % 2 == 0
        marks, walks = (partial(timed, part) if is_checked else lambda *_: None for part in parts)
        setattr(forwards.Forwards, "__call__", lambda *given, marks=marks: marks(*given))  # noqa: B010
        divisors.check_losses = walks
        checks += [0.0] * is_checked
        x, y = next(batches)
        began = time.perf_counter()
        loss = model(x, y) if is_own else cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps[not is_checked].append(time.perf_counter() - began)
    setattr(forwards.Forwards, "__call__", parts[0])  # noqa: B010
    divisors.check_losses = parts[1]
    return steps[0][ahead:], steps[1][ahead:], checks[ahead:]


def main() -> None:
    """Print a table of milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--ahead", type=int, default=20, help="pairs before the measured ones")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print("| model | a step without, ms | with, ms | the check, ms (quartiles) | its share | differences of pairs, ms (quartiles) |")
    print("|---|---|---|---|---|---|")
    for name, (make, shape) in MODELS.items():
        for is_own in (False, True):
            on, off, checks = measured(make, shape, is_own=is_own, pairs=arguments.pairs, ahead=arguments.ahead)
            low, middle, high = (1e3 * value for value in statistics.quantiles(checks, n=4))
            without, pairs = statistics.median(off), [1e3 * (one - other) for one, other in zip(on, off, strict=True)]
            row = [f"{name}{', own loss' if is_own else ''}", f"{1e3 * without:.2f}", f"{1e3 * statistics.median(on):.2f}"]
            row += [
                f"{middle:.3f} ({low:.3f} … {high:.3f})",
                f"{middle / 1e3 / without:.2%}",
                " … ".join(f"{value:+.3f}" for value in statistics.quantiles(pairs, n=4)),
            ]
            print(f"| {' | '.join(row)} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
