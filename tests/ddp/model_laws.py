"""What the ranks of `test_ddp_losses.py` do with several models under one Team: an encoder and a decoder, and a GAN."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from ddp_laws import BATCH_SIZE, UNEVEN, Changing, Recording, Samples, farthest, gradients, mlp, raised, serial_batches
from order_laws import fetched_between, plain, prefetched
from torch import nn
from torch.nn.functional import mse_loss, softplus
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team
from hetsim.ddp.schedule import Data

RANKS = 3
NUMBER = 3 * BATCH_SIZE + 2


def linear(inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh()).double()


def all_gradients(models: list[Any]) -> list[torch.Tensor]:
    return [gradient for model in models for gradient in gradients(model)]


def encoder_and_decoder(
    loop: Callable[[Any], Iterator[Any]] = plain, allocation: Any = UNEVEN, *, drop_last: bool = False, parts: int = 2, wrapped: Any = None
) -> dict[str, Any]:
    """One loss trains both, over two epochs, wrapped in two `parts` or in one: what was found of gradients, steps and a state."""
    samples = Samples(NUMBER)
    team = Team(BATCH_SIZE, allocation, warmup_steps=0)
    loader = team.loader(samples, drop_last=drop_last)
    modules, alone = ([linear(6, 5), linear(5, 2)] for _ in range(2))
    modules = modules if parts == 2 else [nn.Sequential(*modules)]
    models = [team.wrap(DDP(module, **(wrapped or {}))) for module in modules]
    worst, steps, state = 0.0, 0, None
    shares = set()
    for epoch in range(2):
        serial = serial_batches(Data(NUMBER, BATCH_SIZE, drop_last=drop_last), epoch)
        batches = loop(loader)
        pair = next(batches, None)
        while pair is not None:
            (x, y, _), _ = pair
            loss = mse_loss(models[-1](models[0](x) if parts == 2 else x), y)
            pair = next(batches, None) if loop is fetched_between else ()
            for each in (*models, *alone):
                each.zero_grad()
            loss.backward()
            shares.add(team.shares)
            places = next(serial)
            mse_loss(alone[1](alone[0](samples.x[places])), samples.y[places]).backward()
            worst, steps = max(worst, farthest(all_gradients(models), all_gradients(alone))), steps + 1
            state = team.state_dict() if steps == 2 else state
            if loop is not fetched_between:
                pair = next(batches, None)
    return {"worst": worst, "steps": steps, "position": state["position"], "exchanges": team.num_exchanges, "splits": len(shares)}


def gan(*, tokens: bool = False) -> dict[str, Any]:
    """Two optimizers and two backward passes in each step; noise and tokens depend on the sample. Gradients, steps and positions."""
    samples = Samples(NUMBER)
    team = Team(BATCH_SIZE, UNEVEN)
    loader = team.loader(samples)
    generator, critic = (team.wrap(DDP(linear(*sizes))) for sizes in ((2, 6), (6, 1)))
    alone = [linear(2, 6), linear(6, 1)]
    sides = [
        (g, d, torch.optim.SGD(g.parameters(), lr=0.1), torch.optim.SGD(d.parameters(), lr=0.1)) for g, d in ((generator, critic), alone)
    ]
    worst, positions = 0.0, []

    def mean(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        weights = (1 + places % 5).double() if tokens else torch.ones(len(places)).double()
        return (values[:, 0] * weights).sum() / weights.sum()

    for (x, _, places), everything in zip(loader, serial_batches(Data(NUMBER, BATCH_SIZE), 0), strict=True):
        if tokens:
            team.count((1 + places % 5).sum())
        for (g, d, _, of_d), each in zip(sides, (places, everything), strict=True):
            of_d.zero_grad()
            fake = g(samples.y[each])
            mean(softplus(-d(x if d is critic else samples.x[each])) + softplus(d(fake.detach())), each).backward()
        worst = max(worst, farthest(gradients(critic), gradients(alone[1])))
        for (g, d, of_g, of_d), each in zip(sides, (places, everything), strict=True):
            of_d.step()
            of_g.zero_grad()
            mean(softplus(-d(g(samples.y[each]))), each).backward()
        worst = max(worst, farthest(gradients(generator), gradients(alone[0])))
        for _, _, of_g, _ in sides:
            of_g.step()
        positions.append(team.state_dict()["position"])
    return {"worst": worst, "positions": positions}


def timed() -> list[tuple[float, ...]]:
    """Of a GAN whose ranks sleep in each pass of a model, rank i for i times as long: what each rank was measured at.

    The critic has a buffer, which rank 0 sends. Its own module is called, too, which waits for no other rank.
    """
    team = Team(BATCH_SIZE, allocation := Recording(), warmup_steps=0)
    loader = team.loader(Samples(6 * BATCH_SIZE))
    modules = linear(2, 6), linear(6, 1)
    modules[1].register_buffer("constant", torch.ones(1))
    modules[0].register_forward_hook(lambda *_: time.sleep(0.02 * dist.get_rank()))
    generator, critic = (team.wrap(DDP(module)) for module in modules)
    for x, y, _ in loader:
        fake = generator(y).detach()
        critic(torch.cat([x, fake])).mean().backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        critic.module(generator(y)).mean().backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
    return allocation.seen


def refused() -> dict[str, str]:
    """A model that is wrapped twice, and one that is wrapped by a Team without a loader."""
    team, other = (Team(BATCH_SIZE, UNEVEN) for _ in range(2))
    model = team.wrap(DDP(mlp()))
    without = other.wrap(DDP(mlp()))
    found = {"twice": raised(lambda: team.wrap(model))}
    for x, y, _ in team.loader(Samples(BATCH_SIZE)):
        try:
            mse_loss(without(x), y).backward()
        except (ValueError, RuntimeError) as error:
            found["no loader"] = str(error)
    return found


def all_models() -> dict[str, Callable[[], Any]]:
    """Each by its name."""
    return {
        "encoder and decoder": encoder_and_decoder,
        "encoder and decoder, prefetched": lambda: encoder_and_decoder(prefetched),
        "encoder and decoder, fetched between": lambda: encoder_and_decoder(fetched_between),
        "encoder and decoder, measured": lambda: encoder_and_decoder(allocation=Changing(), drop_last=True),
        "encoder and decoder, measured in one": lambda: encoder_and_decoder(allocation=Changing(), drop_last=True, parts=1),
        "encoder and decoder, buckets": lambda: encoder_and_decoder(wrapped={"bucket_cap_mb": 1e-5, "static_graph": True}),
        "gan": gan,
        "gan of tokens": lambda: gan(tokens=True),
        "timed": timed,
        "models refused": refused,
    }
