"""What the ranks of `test_ddp_divisors.py` do: losses over fewer numbers than a batch has, and losses that only look so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from ddp_laws import BATCH_SIZE, UNEVEN, Samples, farthest, gradients, mlp, raised
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team

NUMBER = 2 * BATCH_SIZE + 10
Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and the samples' numbers."""


def kept(places: Tensor) -> Tensor:
    """A mask of two thirds of the samples, or a few more."""
    return places % 3 != 0


def labels(outputs: Tensor, places: Tensor, *, ignored: bool = False) -> Tensor:
    """A class of each sample."""
    found = places % outputs.shape[1]
    return torch.where(kept(places), found, -100) if ignored else found


def errors(outputs: Tensor, places: Tensor) -> Tensor:
    """Of each sample."""
    return ((outputs - places[:, None] / BATCH_SIZE) ** 2).mean(dim=1)


class Scaled(torch.autograd.Function):
    """A function of the script's own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None


WRONG: dict[str, Loss] = {
    "a masked output": lambda o, p: F.mse_loss(o[kept(p)], o.detach()[kept(p)] + 1),
    "a masked output of classes": lambda o, p: F.cross_entropy(o[kept(p)], labels(o, p)[kept(p)]),
    "masked errors": lambda o, p: errors(o, p)[kept(p)].mean(),
    "errors times a mask": lambda o, p: (errors(o, p) * kept(p)).sum() / kept(p).sum(),
    "by a number": lambda o, p: (errors(o, p) * kept(p)).sum() / int(kept(p).sum()),
    "in two tasks": lambda o, p: torch.stack([errors(o, p)[kept(p)].mean(), o.pow(2)[kept(p)].mean()]).mean(),
    "accumulated": lambda o, p: errors(o, p)[kept(p)].mean() / 5,
    "ignored labels": lambda o, p: F.cross_entropy(o, labels(o, p, ignored=True)),
    "smoothed labels": lambda o, p: F.cross_entropy(o, labels(o, p, ignored=True), label_smoothing=0.1),
    "weighted classes": lambda o, p: F.cross_entropy(o, labels(o, p), weight=torch.tensor([0.3, 1.0]).double()),
    "all but the last": lambda o, p: F.mse_loss(o[:-1], o[1:].detach() + 1),  # noqa: ARG005
    "and a right one": lambda o, p: errors(o, p)[kept(p)].mean() + errors(o, p).mean(),
}
NO_MEAN: dict[str, tuple[Loss, str]] = {
    "root": (lambda o, p: errors(o, p).mean().sqrt(), "the loss is the sqrt of a mean over this rank's samples"),
    "logarithm": (lambda o, p: errors(o, p).mean().log() / 4 + o.pow(2).mean(), "the loss is the log of a mean"),
    "focal, of the mean": (lambda o, p: (lambda e: (1 - (-e).exp()) ** 2 * e)(F.cross_entropy(o, labels(o, p))), "of a mean"),
    "sum": (lambda o, p: F.cross_entropy(o, labels(o, p), reduction="sum"), "the loss is a sum over this rank's samples"),
    "two sums": (lambda o, p: F.mse_loss(o, o.detach() + 1, reduction="sum") + errors(o, p).mean(), "the loss is a sum"),
}
"""Losses that no weights make right, and their sentences."""
RIGHT: dict[str, Loss] = {
    "roots": lambda o, p: errors(o, p).sqrt().mean() + o.pow(2).mean(1).log().mean(),
    "roots, one by one": lambda o, p: sum((each.mean().sqrt() for each in (o - 1).pow(2)), torch.zeros(())) / len(p),
    "a sum by its number": lambda o, p: F.mse_loss(o, o.detach() + 1, reduction="sum") / len(p),
    "a sum by a factor": lambda o, p: F.mse_loss(o, o.detach() + 1, reduction="sum") * (0.5 / len(p)),
    "mean": lambda o, p: errors(o, p).mean(),
    "a mask of the batch": lambda o, p: (errors(o, p) * kept(p)).sum() / len(p),
    "a mask, then mean": lambda o, p: (errors(o, p) * kept(p)).mean(),
    "dead rows": lambda o, p: (o.relu() * kept(p)[:, None]).sum(1).mean(),
    "hinge": lambda o, p: F.relu(1 - o * kept(p)[:, None]).mean(),
    "hinge of classes": lambda o, p: F.multi_margin_loss(o, labels(o, p)),
    "classes": lambda o, p: F.cross_entropy(o, labels(o, p), label_smoothing=0.1),
    "probabilities": lambda o, p: F.cross_entropy(o, F.one_hot(labels(o, p), 2).double()),
    "by hand": lambda o, p: -o.log_softmax(1)[torch.arange(len(o)), labels(o, p)].mean(),
    "divergence": lambda o, p: F.kl_div(o.log_softmax(1), F.one_hot(labels(o, p), 2).double(), reduction="batchmean"),
    "two tasks": lambda o, p: torch.stack([F.mse_loss(o, o.detach() + 1), errors(o, p).mean()]).mean() / 4,
    "of each class": lambda o, p: errors(o, p).mean() + o.pow(2).mean(0).mean(),
    "masked, of the batch": lambda o, p: errors(o, p)[kept(p)].sum() / len(p),
    "by a factor": lambda o, p: ((errors(o, p) * kept(p)).sum() * (1 / len(p))) / 4,
    "by weights": lambda o, p: torch.stack([errors(o, p) @ torch.full((len(p),), 1 / len(p), dtype=o.dtype), o.pow(2).mean()]).sum(),
    "own function": lambda o, p: Scaled.apply(errors(o, p)[kept(p)].sum(), 1 / len(p)),
    "transposed": lambda o, p: errors(o, p).mean() + o.T.pow(2).mean(1).mean(),
}


class WithLoss(nn.Module):
    """Computes its loss itself, as transformers' models do, with a mean over its layer's outputs."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.inner, self.loss = mlp(), loss

    def forward(self, x: Tensor, places: Tensor) -> SimpleNamespace:
        outputs = self.inner(x)
        return SimpleNamespace(loss=self.loss(outputs - outputs.mean(dim=1, keepdim=True), places))


def refused(loss: Loss, *, within: bool = False) -> str:
    """The sentence of the first step; each rank leaves out samples."""
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(WithLoss(loss) if within else mlp()))
    x, *_ = next(iter(team.loader(Samples(NUMBER))))
    places = torch.arange(len(x))
    return raised((model(x, places).loss if within else loss(model(x), places)).backward)


def trained(loss: Loss, *, within: bool = False, count: bool = False) -> float:
    """Three steps: how far gradients are from the serial ones."""
    samples, worst = Samples(NUMBER), 0.0
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(WithLoss(loss) if within else mlp()))
    for x, _, places in team.loader(samples):
        model.zero_grad()
        value = model(x, places).loss if within else loss(model(x), places)
        if count:
            team.count(kept(places).sum())
        value.backward()
        of_all: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(of_all, places.tolist())
        every = torch.tensor([place for each in of_all for place in each])
        serial = copy.deepcopy(model.module)
        serial.zero_grad()
        (serial(samples.x[every], every).loss if within else loss(serial(samples.x[every]), every)).backward()
        worst = max(worst, farthest(gradients(model.module), gradients(serial)))
    return worst


def in_turn(*, team: bool) -> float:
    """Two backward passes after two forward passes: how far gradients are from the serial ones."""
    samples, rank, size = Samples(BATCH_SIZE), torch.distributed.get_rank(), torch.distributed.get_world_size()
    share = BATCH_SIZE // size
    x, model = samples.x[rank * share : (rank + 1) * share], DDP(mlp())
    if team:
        of = Team(share * size, "even")
        x, model = next(iter(of.loader(samples, shuffle=False, drop_last=True)))[0], of.wrap(model)
    outputs = [model(x), model(x)]
    for each in outputs:
        torch.autograd.backward(each.pow(2).mean())
    alone = mlp()
    (2 * alone(samples.x[: share * size]).pow(2).mean()).backward()
    return farthest(gradients(model), gradients(alone))


def autocast() -> float:
    """Relative distance from one process under bfloat16 autocast on a CPU."""
    samples, worst = Samples(NUMBER, torch.float32), 0.0
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(mlp(torch.float32)))
    for x, y, places in team.loader(samples):
        of_all: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(of_all, places.tolist())
        every = torch.tensor([place for each in of_all for place in each])
        serial = copy.deepcopy(model.module)
        for each, inputs, targets in ((model, x, y), (serial, samples.x[every], samples.y[every])):
            each.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(each(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        ones, others = gradients(model.module), gradients(serial)
        worst = max(worst, max(float((one - other).norm() / other.norm()) for one, other in zip(ones, others, strict=True)))
    return worst


def all_of_them() -> dict[str, Callable[[], Any]]:
    """Each by its name."""
    masked = WRONG["masked errors"]
    return {
        **{f"refused: {name}": partial(refused, loss) for name, loss in WRONG.items()},
        "refused: within the model": lambda: refused(WRONG["ignored labels"], within=True),
        **{f"refused: {name}": partial(refused, loss) for name, (loss, _) in NO_MEAN.items()},
        **{f"right: {name}": partial(trained, loss) for name, loss in RIGHT.items()},
        "right: within the model": lambda: trained(RIGHT["classes"], within=True),
        "right: counted": lambda: trained(masked, count=True),
        "in turn, DDP": lambda: in_turn(team=False),
        "in turn, Team": lambda: in_turn(team=True),
        "autocast": autocast,
    }
