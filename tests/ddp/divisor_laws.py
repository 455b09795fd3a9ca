"""What the ranks of `test_ddp_divisors.py` do: losses over fewer numbers than a batch has, and losses that only look so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from ddp_laws import BATCH_SIZE, UNEVEN, Samples, farthest, gradients, mlp, raised
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
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


def dice(probabilities: Tensor, targets: Tensor) -> Tensor:
    """One for all samples together."""
    return 1 - (2 * (probabilities * targets).sum() + 1) / (probabilities.sum() + targets.sum() + 1)


def gathered(outputs: Tensor, own: Callable[[Tensor], Sequence[Tensor]] = all_gather) -> Tensor:
    """The outputs of all ranks, which have up to BATCH_SIZE each."""
    counts = [torch.tensor(0) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor(len(outputs)))
    each = own(F.pad(outputs, (0, 0, 0, BATCH_SIZE - len(outputs))))
    return torch.cat([part[: int(count)] for part, count in zip(each, counts, strict=True)])


def contrastive(outputs: Tensor, places: Tensor, own: Callable[[Tensor], Sequence[Tensor]] = all_gather) -> Tensor:
    """Of this rank's samples, against those of all ranks; the classes are the largest products."""
    products = outputs @ gathered(outputs, own).t()
    return F.cross_entropy(products + 0 * places[:, None], products.detach().argmax(1))


class Gather(torch.autograd.Function):
    """An all_gather of the script's own, whose code is in another function."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, ...]:
        ctx.rank = dist.get_rank()
        return tuple(to_all(values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        total = torch.stack(gradients)
        dist.all_reduce(total)
        return total[ctx.rank]


def to_all(values: Tensor) -> list[Tensor]:
    """The values of each rank."""
    found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return found


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
    "a summed loss by labels": lambda o, p: F.cross_entropy(o, labels(o, p, ignored=True), reduction="sum") / kept(p).sum(),
    "a summed loss by a constant": lambda o, p: F.mse_loss(o, o.detach() + 1, reduction="sum") / 7.3,  # noqa: ARG005
    "a summed loss by minus a constant": lambda o, p: -F.smooth_l1_loss(o, o.detach() + 1, reduction="sum") / 7.3,  # noqa: ARG005
    "and a right one": lambda o, p: errors(o, p)[kept(p)].mean() + errors(o, p).mean(),
}
NO_MEAN: dict[str, tuple[Loss, str]] = {
    "root": (lambda o, p: errors(o, p).mean().sqrt(), "the loss is the sqrt of a mean or sum over this rank's samples"),
    "logarithm": (lambda o, p: errors(o, p).mean().log() / 4 + o.pow(2).mean(), "the loss is the log of a mean"),
    "focal, of the mean": (lambda o, p: (lambda e: (1 - (-e).exp()) ** 2 * e)(F.cross_entropy(o, labels(o, p))), "of a mean"),
    "sum": (lambda o, p: F.cross_entropy(o, labels(o, p), reduction="sum"), "the loss is a sum over this rank's samples"),
    "two sums": (lambda o, p: F.mse_loss(o, o.detach() + 1, reduction="sum") + errors(o, p).mean(), "the loss is a sum"),
    "sum of a tensor": (lambda o, p: errors(o, p).sum() + o.mean(), "the loss is a sum over this rank's samples"),
    "sum of a tensor's logits": (lambda o, p: F.cross_entropy(o / 2, labels(o, p), reduction="none").sum(), "the loss is a sum"),
    "norm": (lambda o, p: torch.norm(o - 1), "the loss is the norm over this rank's samples"),  # noqa: ARG005
    "norm of outputs": (lambda o, p: errors(o, p).mean() + 0.01 * o.norm(), "the loss is the norm over"),
    "maximum": (lambda o, p: errors(o, p).max(), "the loss is the max over"),
    "median": (lambda o, p: errors(o, p).median(), "the loss is the median over"),
    "of each column": (lambda o, p: (o - 1).pow(2).amax(0).sum(), "the loss is the max over"),  # noqa: ARG005
    "root of a sum": (lambda o, p: (o - 1).pow(2).sum().sqrt(), "the loss is the sqrt of a mean or sum"),  # noqa: ARG005
    "ratio": (lambda o, p: errors(o, p).mean() / o.var(), "the loss is the var over"),
    "Dice": (lambda o, p: dice(o.softmax(1), F.one_hot(labels(o, p), 2).double()), "the loss is divided by a mean or sum over"),
    "between samples": (lambda o, p: F.cross_entropy(o @ o.t(), p), "the loss compares this rank's samples with each other"),
    "with the next sample": (lambda o, p: F.triplet_margin_loss(o, o.roll(1, 0), o.detach() + 1), "compares"),  # noqa: ARG005
}
"""Losses that no weights make right, and their sentences."""
RIGHT: dict[str, Loss] = {
    "norms, one by one": lambda o, p: sum((torch.norm(each - 1) for each in o), torch.zeros(())) / len(p),
    "norms of rows": lambda o, p: torch.norm(o - 1, dim=1).mean() + (o - o.max(1).values[:, None]).pow(2).mean(),  # noqa: ARG005
    "less the maximum": lambda o, p: F.cross_entropy(o - o.max(), labels(o, p)),
    "a sum with weights": lambda o, p: (errors(o, p) * torch.full((len(p),), 1 / len(p), dtype=o.dtype)).sum() + (o / len(p)).abs().sum(),
    "a sum of columns": lambda o, p: o.pow(2).mean(0).sum() + torch.stack([o.mean(), errors(o, p).mean()]).sum(),
    "by a parameter": lambda o, p: errors(o, p).mean() / torch.tensor(2.0, dtype=o.dtype, requires_grad=True) ** 2,
    "Dice of each row": lambda o, p: (o.relu().sum(1) / (1 + o.pow(2).sum(1))).mean(),  # noqa: ARG005
    "roots": lambda o, p: errors(o, p).sqrt().mean() + o.pow(2).mean(1).log().mean(),
    "roots, one by one": lambda o, p: sum((each.mean().sqrt() for each in (o - 1).pow(2)), torch.zeros(())) / len(p),
    "a sum by its number": lambda o, p: F.mse_loss(o, o.detach() + 1, reduction="sum") / len(p),
    "a summed loss by its number": lambda o, p: F.cross_entropy(o, labels(o, p), reduction="sum") / len(p),
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


def of_all(places: Tensor) -> Tensor:
    """The numbers of all ranks' samples."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, places.tolist())
    return torch.tensor([place for each in found for place in each])


def refused(loss: Loss, *, within: bool = False) -> str:
    """The sentence of the first step; each rank leaves out samples."""
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(WithLoss(loss) if within else mlp()))
    x, *_ = next(iter(team.loader(Samples(NUMBER))))
    places = torch.arange(len(x))
    return raised((model(x, places).loss if within else loss(model(x), places)).backward)


def divided_outside(number: Callable[[Tensor], float]) -> str:
    """The sentence, if there is one, of a sum that the model returns and the script divides."""
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(WithLoss(NO_MEAN["sum"][0])))
    x, *_ = next(iter(team.loader(Samples(NUMBER))))
    return raised((model(x, torch.arange(len(x))).loss / number(x)).backward)


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
        every = of_all(places)
        serial = copy.deepcopy(model.module)
        serial.zero_grad()
        (serial(samples.x[every], every).loss if within else loss(serial(samples.x[every]), every)).backward()
        worst = max(worst, farthest(gradients(model.module), gradients(serial)))
    return worst


def first_batch(*, team: bool) -> tuple[Tensor, Tensor, DDP]:
    """The inputs of all ranks and of this one in the first step, in equal parts, and a model of a Team or of DDP alone."""
    samples, rank, size = Samples(BATCH_SIZE), dist.get_rank(), dist.get_world_size()
    share = BATCH_SIZE // size
    x, model = samples.x[rank * share : (rank + 1) * share], DDP(mlp())
    if team:
        of = Team(share * size, "even")
        x, model = next(iter(of.loader(samples, shuffle=False, drop_last=True)))[0], of.wrap(model)
    return samples.x[: share * size], x, model


def in_turn(*, team: bool) -> float:
    """Two backward passes after two forward passes: how far gradients are from the serial ones."""
    whole, x, model = first_batch(team=team)
    outputs = [model(x), model(x)]
    for each in outputs:
        torch.autograd.backward(each.pow(2).mean())
    alone = mlp()
    (2 * alone(whole).pow(2).mean()).backward()
    return farthest(gradients(model), gradients(alone))


def across(*, rule: Any = UNEVEN, own: Callable[[Tensor], Sequence[Tensor]] = all_gather, loss: str = "mean") -> Any:
    """A contrastive loss over the samples of all ranks: how far gradients are from the serial ones, or the sentence."""
    samples, worst = Samples(2 * BATCH_SIZE), 0.0
    team = Team(BATCH_SIZE // dist.get_world_size() * dist.get_world_size(), rule)
    model = team.wrap(DDP(mlp()), loss=loss)
    for x, _, places in team.loader(samples, drop_last=True):
        model.zero_grad()
        value = contrastive(model(x), places, own)
        if loss == "global":
            value = team.scale(value)
        elif message := raised(value.backward):
            return message
        if loss == "global":
            value.backward()
        every, serial = of_all(places), copy.deepcopy(model.module)
        serial.zero_grad()
        contrastive(serial(samples.x[every]), every, lambda outputs: [outputs] + [outputs[:0]] * (dist.get_world_size() - 1)).backward()
        worst = max(worst, farthest(gradients(model.module), gradients(serial)))
    return worst


def again(*, team: bool) -> list[float]:
    """Two backward passes after one forward pass: this rank's gradients less those of one process."""
    whole, x, model = first_batch(team=team)
    outputs = model(x)
    outputs.pow(2).mean().backward(retain_graph=True)
    outputs.exp().mean().backward()
    alone = mlp()
    outputs = alone(whole)
    (outputs.pow(2).mean() + outputs.exp().mean()).backward()
    return [float((one - other).abs().max()) for one, other in zip(gradients(model), gradients(alone), strict=True)]


def autocast() -> float:
    """Relative distance from one process under bfloat16 autocast on a CPU."""
    samples, worst = Samples(NUMBER, torch.float32), 0.0
    team = Team(BATCH_SIZE, UNEVEN)
    model = team.wrap(DDP(mlp(torch.float32)))
    for x, y, places in team.loader(samples):
        every = of_all(places)
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
        "refused: a summed loss within the model": lambda: refused(WRONG["a summed loss by labels"], within=True),
        "refused: a sum within the model": lambda: refused(NO_MEAN["sum"][0], within=True),
        **{f"refused: {name}": partial(refused, loss) for name, (loss, _) in NO_MEAN.items()},
        **{f"right: {name}": partial(trained, loss) for name, loss in RIGHT.items()},
        "right: within the model": lambda: trained(RIGHT["classes"], within=True),
        "right: a summed loss within the model": lambda: trained(RIGHT["a summed loss by its number"], within=True),
        "outside: its number": lambda: divided_outside(len),
        "outside: a constant": lambda: divided_outside(lambda _: 7.3),
        "right: counted": lambda: trained(masked, count=True),
        "across: all_gather": across,
        "across: own all_gather": lambda: across(own=Gather.apply),
        "across: measured": lambda: across(rule="dbs"),
        "across: even": lambda: across(rule="even"),
        "across: scaled": lambda: across(loss="global"),
        "across: own all_gather, scaled": lambda: across(own=Gather.apply, loss="global"),
        "again, DDP": lambda: again(team=False),
        "again, Team": lambda: again(team=True),
        "in turn, DDP": lambda: in_turn(team=False),
        "in turn, Team": lambda: in_turn(team=True),
        "autocast": autocast,
    }
