"""What the ranks of `test_ddp_losses.py` do: losses over numbers of all ranks, second losses, and scaled losses of batches drawn ahead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from ddp_laws import BATCH_SIZE, UNEVEN, Samples, farthest, gradients, mlp, raised, serial_batches
from order_laws import fetched_between, from_serial, peeking, plain, prefetched
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team
from hetsim.ddp.schedule import Data

RANKS = 3
NUMBER = 2 * BATCH_SIZE + 2
"""Samples of three steps, of which the last has fewer than there are ranks."""


def in_all(number: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks."""
    total = number.clone()
    dist.all_reduce(total)
    return total


def boxes(places: torch.Tensor) -> torch.Tensor:
    """How many boxes each of these samples has."""
    return (1 + places % 5).double()


def of_boxes(model: nn.Module, x: torch.Tensor, y: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The sum over all boxes of these samples."""
    return (((model(x) - y) ** 2).mean(dim=1) * boxes(places)).sum()


def normalised(*, is_left_out: bool = True) -> Any:
    """DETR's loss, the sum over this rank's boxes divided by the mean number of all ranks: how far gradients are, or the sentence."""
    samples = Samples(NUMBER)
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model, alone, worst = team.loader(samples), team.wrap(DDP(mlp()), loss="global"), mlp(), 0.0
    for epoch in range(2):
        for (x, y, places), everything in zip(loader, serial_batches(Data(NUMBER, BATCH_SIZE), epoch), strict=True):
            number = boxes(places).sum()
            if is_left_out:
                number = team.own(number)
            elif not team.samples:  # such as for a log
                number = number * 1
            loss = of_boxes(model, x, y, places) / (in_all(number) / RANKS)
            for of in (model, alone):
                of.zero_grad()
            try:
                loss.backward()
            except (ValueError, RuntimeError) as error:
                return str(error)
            (of_boxes(alone, samples.x[everything], samples.y[everything], everything) / boxes(everything).sum()).backward()
            worst = max(worst, farthest(gradients(model), gradients(alone)))
    return worst


def normalised_over_windows() -> float:
    """As transformers' Trainer: the mean over the tokens of all ranks in a window of two steps with different shares."""
    number = BATCH_SIZE + 10
    samples = Samples(number)
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model, alone = team.loader(samples), team.wrap(DDP(mlp()), loss="global"), mlp()
    batches = [(*batch, shares) for batch in loader if (shares := team.shares)]
    total = in_all(sum(boxes(places).sum() for _, _, places, _ in batches))
    for step, (x, y, places, _) in enumerate(batches):
        with model.no_sync() if step == 0 else contextlib.nullcontext():
            (of_boxes(model, x, y, places) * RANKS / total).backward()
    everything = torch.arange(number)
    (of_boxes(alone, samples.x, samples.y, everything) / total).backward()
    return farthest(gradients(model), gradients(alone))


def second(*, tokens: bool, number: int = NUMBER) -> float:
    """A loss over samples of another loader is added, of which each rank has five: one process adds their mean over all ranks."""
    samples, others = Samples(number), torch.randn(10, RANKS * 5, 6, generator=torch.Generator().manual_seed(3)).double()
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model, alone, worst = team.loader(samples), team.wrap(DDP(mlp()), loss="global"), mlp(), 0.0
    rank = dist.get_rank()
    steps = zip(loader, others, serial_batches(Data(number, BATCH_SIZE), 0), strict=False)
    for (x, y, places), other, everything in steps:
        own = other[5 * rank : 5 * (rank + 1)]
        if tokens:
            weight = boxes(places).sum()
            loss = team.scale(of_boxes(model, x, y, places) / weight, weight)
        else:
            loss = team.scale(mse_loss(model(x), y) * (1.0 if team.samples else float("nan")))
        for of in (model, alone):
            of.zero_grad()
        (loss + 0.1 * (model(own) ** 2).mean()).backward()
        inputs, targets = samples.x[everything], samples.y[everything]
        first = of_boxes(alone, inputs, targets, everything) / boxes(everything).sum() if tokens else mse_loss(alone(inputs), targets)
        (first + 0.1 * (alone(other) ** 2).mean()).backward()
        worst = max(worst, farthest(gradients(model), gradients(alone)))
    return worst


def scaled(loop: Callable[[Any], Iterator[Any]], **options: Any) -> Any:
    """A model that is not wrapped, under this loop: how far gradients are from the serial ones, or the sentence of the first step."""
    number = 3 * BATCH_SIZE + 10
    samples = Samples(number)
    team = Team(BATCH_SIZE, UNEVEN)
    model, worst, steps = DDP(mlp()), 0.0, 0
    batches = loop(team.loader(samples, **options))
    pair = next(batches, None)
    while pair is not None:
        (x, y, places), _ = pair
        loss = mse_loss(model(x), y)
        pair = next(batches, None) if loop is fetched_between else ()
        model.zero_grad()
        try:
            team.scale(loss).backward()
        except ValueError as error:
            return steps, str(error)
        worst, steps = max(worst, from_serial(samples, model, places)[0]), steps + 1
        if loop is not fetched_between:
            pair = next(batches, None)
    return worst


def copies(*, second_forward: bool, ahead: bool) -> Any:
    """The model gets copies of batches, and is called with old ones: how far gradients are, or the sentence of the first wrong step."""
    samples = Samples(3 * BATCH_SIZE + 10)
    team = Team(BATCH_SIZE, UNEVEN)
    model, worst, steps = team.wrap(DDP(mlp())), 0.0, 0
    batches = iter(team.loader(samples))
    following = next(batches)
    while following is not None:
        x, y, places = following
        loss = mse_loss(model(x.clone()), y)
        following = next(batches, None) if ahead else following
        for _ in range(1 + second_forward):
            model.zero_grad()
            loss.backward()
            steps += 1
            if second_forward:
                try:
                    loss = mse_loss(model(x.clone()), y)
                except ValueError as error:
                    return steps, str(error)
        worst = max(worst, from_serial(samples, model, places)[0])
        following = following if ahead else next(batches, None)
    return worst


def counted_ahead() -> float:
    """One batch is drawn ahead of the model, and tokens are counted between its forward and its backward pass."""
    samples = Samples(3 * BATCH_SIZE + 10)
    team = Team(BATCH_SIZE, UNEVEN)
    model, worst = team.wrap(DDP(mlp())), 0.0
    for (x, y, places), _ in prefetched(team.loader(samples)):
        model.zero_grad()
        loss = of_boxes(model, x, y, places) / boxes(places).sum()
        team.count(boxes(places).sum())
        loss.backward()
        of_all: list[Any] = [None] * RANKS
        dist.all_gather_object(of_all, places.tolist())
        everything = torch.tensor([place for each in of_all for place in each])
        alone = mlp()
        (of_boxes(alone, samples.x[everything], samples.y[everything], everything) / boxes(everything).sum()).backward()
        worst = max(worst, farthest(gradients(model), gradients(alone)))
    return worst


class Masked(nn.Module):
    """Takes a mask besides its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor, mask: Any = 1.0) -> torch.Tensor:
        return self.inner(x * mask)


def with_a_common_tensor() -> float:
    """Each batch has the same mask besides its own tensors, and one batch is drawn ahead."""
    samples, mask = Samples(3 * BATCH_SIZE + 10), torch.ones(6).double()
    team = Team(BATCH_SIZE, UNEVEN)

    def collate(rows: list[Any]) -> list[torch.Tensor]:
        return [*torch.utils.data.default_collate(rows), mask]

    model, worst = team.wrap(DDP(Masked())), 0.0
    for (x, y, places, common), _ in prefetched(team.loader(samples, collate_fn=collate)):
        model.zero_grad()
        mse_loss(model(x, common), y).backward()
        worst = max(worst, from_serial(samples, model, places)[0])
    return worst


def refused() -> dict[str, str]:
    """Sentences."""
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(mlp()), loss="global")
    found = {"mode": raised(lambda: Team(BATCH_SIZE, UNEVEN).wrap(DDP(mlp()), loss="sum"))}
    for x, y, _ in team.loader(Samples(2 * BATCH_SIZE)):
        mse_loss(model(x), y)
        found["counted"] = raised(lambda: team.count(3))
        break
    return found


def all_losses() -> dict[str, Callable[[], Any]]:
    """Each by its name."""
    return {
        "normalised": normalised,
        "not left out": lambda: normalised(is_left_out=False),
        "normalised over windows": normalised_over_windows,
        "second": lambda: second(tokens=False),
        "second, of tokens": lambda: second(tokens=True),
        "scaled": lambda: scaled(plain),
        "scaled, after a peek": lambda: scaled(peeking, drop_last=True),
        "scaled, prefetched": lambda: scaled(prefetched),
        "scaled, fetched between": lambda: scaled(fetched_between),
        "scaled, prefetched, alike": lambda: scaled(prefetched, drop_last=True),
        "copies": lambda: copies(second_forward=False, ahead=False),
        "copies used twice": lambda: copies(second_forward=True, ahead=False),
        "copies drawn ahead": lambda: copies(second_forward=True, ahead=True),
        "counted ahead": counted_ahead,
        "common tensor": with_a_common_tensor,
        "losses refused": refused,
    }
