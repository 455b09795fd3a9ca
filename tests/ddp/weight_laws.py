"""What the ranks of `test_ddp_weights.py` do: gradients of groups, of tokens, under other hooks and of losses that are scaled."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks
import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook as power
from ddp_laws import GlobalNorm, Recording, Samples, Summed, farthest, gradients, mlp, raised, serial_batches
from ranks import found_by
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team
from hetsim.ddp.check import VARIABLE
from hetsim.ddp.schedule import Data
from hetsim.policies.allocation import Even, Fixed

RANKS = 4
BATCH_SIZE = 32
UNEVEN = Fixed(parts=[4, 2, 1, 1])
NUMBER = 2 * BATCH_SIZE + 5
"""Samples of three steps, of which the last is short."""


def subgroups(rank: int) -> dict[str, Any]:
    """Two groups of two ranks, each with data and a model of its own; and a hook's state that has the group of all."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, own = groups[rank // 2], rank // 2
    samples, data = Samples(40), Data(40, 9)
    samples.x, samples.y = samples.x * (1 + own), samples.y - own
    found: dict[str, Any] = {}
    for name, hook, state in (
        ("allreduce", hooks.allreduce_hook, None),
        ("given", hooks.allreduce_hook, group),
        ("fp16", hooks.fp16_compress_hook, None),
    ):
        team = Team(9, Fixed(parts=[2, 1]), group=group)
        model, alone, worst = team.wrap(DDP(mlp(), process_group=group), hook, state), mlp(), 0.0
        for (x, y, _), places in zip(team.loader(samples), serial_batches(data, 0), strict=True):
            model.zero_grad()
            alone.zero_grad()
            mse_loss(model(x), y).backward()
            mse_loss(alone(samples.x[places]), samples.y[places]).backward()
            worst = max(worst, farthest(gradients(model), gradients(alone)))
        found[name] = worst
    team = Team(9, Fixed(parts=[2, 1]), group=group)
    model = DDP(mlp(), process_group=group)
    found["refused"] = [raised(lambda state=state: team.wrap(model, power.powerSGD_hook, state)) for state in (power.PowerSGDState(None),)]
    return found


def many_tokens(rank: int, hook: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Some thousand tokens a sample, none on rank 1 in the first step: the error relative to the largest gradient, in each step."""
    samples, data = Samples(NUMBER, dtype), Data(NUMBER, BATCH_SIZE)
    team = Team(BATCH_SIZE, UNEVEN)
    model, alone = team.wrap(DDP(mlp(dtype)), hook), mlp(dtype)
    order = data.order(0).tolist()
    none = set(order[16:24])  # the positions of rank 1 in the first step

    def loss(of: nn.Module, x: torch.Tensor, y: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        number = torch.tensor([0 if place in none else 4096 + 100 * (place % 5) for place in places.tolist()])
        each = ((30 * of(x) - y) ** 2).mean(dim=1)
        return (each * number).sum() / number.sum(), number.sum()

    errors = []
    for (x, y, places), everything in zip(team.loader(samples), serial_batches(data, 0), strict=True):
        model.zero_grad()
        alone.zero_grad()
        mean, number = loss(model, x, y, places)
        team.count(number)
        mean.backward()
        loss(alone, samples.x[everything], samples.y[everything], everything)[0].backward()
        largest = max(float(g.abs().max()) for g in gradients(alone))
        errors.append(farthest(gradients(model), gradients(alone)) / largest)
    return {"errors": errors, "numbers": all(bool(g.isfinite().all()) for g in gradients(model))}


def power_sgd(rank: int) -> float:
    """Gradients of rank two, which PowerSGD of rank two keeps: over ten steps, of which it compresses eight, with error feedback."""
    torch.manual_seed(4)
    x, y = torch.randn(10 * BATCH_SIZE, 2).double() @ torch.randn(2, 16).double(), torch.randn(10 * BATCH_SIZE, 16).double()

    def make() -> nn.Module:
        torch.manual_seed(5)
        return nn.Linear(16, 16).double()

    team = Team(BATCH_SIZE, UNEVEN)
    state = power.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    model, alone = team.wrap(DDP(make()), power.powerSGD_hook, state), make()
    loader = team.loader(torch.utils.data.TensorDataset(x, y))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]
    worst = 0.0
    for (inputs, targets), places in zip(loader, serial_batches(Data(len(x), BATCH_SIZE), 0), strict=True):
        for of in optimizers:
            of.zero_grad()
        mse_loss(model(inputs), targets).backward()
        mse_loss(alone(x[places]), y[places]).backward()
        worst = max(worst, farthest(gradients(model), gradients(alone)))
        for of in optimizers:
            of.step()
    return worst


def contrastive(rank: int) -> float:
    """Each sample is told from those of all ranks; the loss is scaled."""
    samples, data = Samples(NUMBER), Data(NUMBER, BATCH_SIZE)
    team = Team(BATCH_SIZE, UNEVEN)
    model, alone, worst = DDP(mlp()), mlp(), 0.0

    def loss(one: torch.Tensor, every: torch.Tensor, first: int) -> torch.Tensor:
        return cross_entropy(one @ every.T / 0.1, first + torch.arange(len(one)))

    for (x, y, _), places in zip(team.loader(samples), serial_batches(data, 0), strict=True):
        model.zero_grad()
        alone.zero_grad()
        first = sum(team.shares[:rank])
        one, other = normalize(model(x), dim=1), normalize(y, dim=1)
        placed = torch.cat([one.new_zeros(first, 2), one + other, one.new_zeros(sum(team.shares) - first - len(one), 2)])
        team.scale(loss(one, Summed.apply(placed), first)).backward()
        one, other = normalize(alone(samples.x[places]), dim=1), normalize(samples.y[places], dim=1)
        loss(one, one + other, 0).backward()
        worst = max(worst, farthest(gradients(model), gradients(alone)))
    return worst


def no_tokens(rank: int) -> dict[str, Any]:
    """Rank 1 has no tokens, so that its loss and its gradient are no numbers; batch norm over all ranks sends gradients backwards."""
    samples, data = Samples(2 * BATCH_SIZE), Data(2 * BATCH_SIZE, BATCH_SIZE)
    team = Team(BATCH_SIZE, UNEVEN)

    def make(norm: nn.Module) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 2)).double()

    model, alone = DDP(make(GlobalNorm())), make(nn.BatchNorm1d(8, affine=False, track_running_stats=False))
    worst, values = 0.0, []
    for (x, y, _), places in zip(team.loader(samples), serial_batches(data, 0), strict=True):
        model.zero_grad()
        alone.zero_grad()
        number = 0.0 if rank == 1 else float(len(x))
        scaled = team.scale(((model(x) - y) ** 2).mean(dim=1).sum() * (number / len(x)) / torch.tensor(number), number)
        scaled.backward()
        values.append(scaled.item())
        counted = torch.cat([places[:16], places[24:]])
        kept = torch.ones(BATCH_SIZE, dtype=torch.bool)
        kept[16:24] = False
        mse_loss(alone(samples.x[places])[kept], samples.y[counted]).backward()
        worst = max(worst, farthest(gradients(model), gradients(alone)))
    return {"error": worst, "values": values}


class Odd(Even):
    """A user's own class, with values that differ from process to process in what they are printed as."""

    def __init__(self, number: int = 1) -> None:
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "thing", nn.Identity)
        object.__setattr__(self, "_cache", object())

    def __repr__(self) -> str:
        return f"<Odd at {os.getpid()}>"


class Stream(torch.utils.data.IterableDataset):
    """Samples in an order of its own."""

    def __iter__(self) -> Any:
        return iter(range(100))


def refused(rank: int) -> dict[str, Any]:
    """Sentences, on every rank."""
    short, samples = Samples(BATCH_SIZE + 2), Samples(2 * BATCH_SIZE)
    team = Team(BATCH_SIZE, UNEVEN)
    found: dict[str, Any] = {}
    for _ in team.loader(short):
        found["short"] = raised(lambda team=team: team.scale(torch.ones(())))
        break
    dropped = Team(BATCH_SIZE, UNEVEN)
    for _ in dropped.loader(short, drop_last=True):
        found["dropped"] = raised(lambda: dropped.scale(torch.ones((), requires_grad=True)))
    saved = dropped.state_dict()
    for place in ("before the loader", "after it"):
        team = Team(BATCH_SIZE, UNEVEN)
        if rank == 0 and place == "before the loader":
            team.load_state_dict(saved)
        loader = team.loader(short, drop_last=True)
        if rank == 0 and place == "after it":
            team.load_state_dict(saved)
        found[place] = raised(lambda team=team, loader=loader: [team.scale(torch.ones(())) for _ in loader])
    found["junk"] = raised(lambda: Team(BATCH_SIZE, UNEVEN).load_state_dict({"epoch": 1}))
    team = Team(BATCH_SIZE, UNEVEN, trace=tempfile.mkdtemp())
    for _ in team.loader(samples):
        found["traced"] = raised(lambda team=team: team.scale(torch.ones(())))
    found["own"] = raised(lambda: Team(BATCH_SIZE, Odd()))
    found["others"] = raised(lambda: Team(BATCH_SIZE, Odd(rank)))
    found["stream"] = raised(lambda: Team(BATCH_SIZE).loader(Stream()))
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(mlp()))
    batches = iter(team.loader(samples))
    for _ in range(2):
        x, y, _ = next(batches)
        with model.no_sync():
            mse_loss(model(x), y).backward()
    found["counted"] = raised(lambda: team.count(3))
    return found


def means(rank: int) -> dict[str, Any]:
    """Of whole numbers and truth values: rank 0 has half of the samples."""
    team = Team(BATCH_SIZE, UNEVEN)
    for _ in team.loader(Samples(BATCH_SIZE)):
        return {
            "truth": team.mean(torch.tensor([rank == 0, True])),
            "whole": team.mean(torch.tensor(rank)),
            "half": team.mean(torch.tensor(float(rank), dtype=torch.bfloat16)),
            "number": team.mean(rank),
        }
    raise AssertionError


def called_directly(rank: int) -> list[tuple[float, ...]]:
    """A model with buffers, of which the script also calls the module itself, before and after DDP does: what each rank is timed at."""
    team = Team(BATCH_SIZE, allocation := Recording(), warmup_steps=0)
    inner = mlp()
    inner.register_buffer("constant", torch.ones(1))
    model = team.wrap(DDP(inner))
    for step, (x, y, _) in enumerate(team.loader(Samples(6 * BATCH_SIZE))):
        if step != 1:
            model.module(x)
        time.sleep(0.02)
        mse_loss(model(x), y).backward()
        time.sleep(0.05)
    return allocation.seen


def checked_alone(rank: int, folder: str) -> dict[str, str]:
    """One process under `hetsim-ddp-check` takes the batches of all, whatever the others' memory holds."""
    os.environ[VARIABLE] = folder
    try:
        return {str(bounds): raised(lambda bounds=bounds: Team(60, "dbs", max_samples=bounds)) for bounds in (40, [40, 40, 10])}
    finally:
        del os.environ[VARIABLE]


def all_weights(rank: int) -> dict[str, Any]:
    """Each by its name."""
    laws: dict[str, Callable[[], Any]] = {
        "subgroups": lambda: subgroups(rank),
        "tokens": lambda: many_tokens(rank, hooks.allreduce_hook, torch.float64),
        "tokens_fp16": lambda: many_tokens(rank, hooks.fp16_compress_hook, torch.float32),
        "power_sgd": lambda: power_sgd(rank),
        "contrastive": lambda: contrastive(rank),
        "no_tokens": lambda: no_tokens(rank),
        "means": lambda: means(rank),
        "called_directly": lambda: called_directly(rank),
        "refused": lambda: refused(rank),
    }
    return found_by(laws)
