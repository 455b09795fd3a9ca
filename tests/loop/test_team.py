"""A Team in plain loops: gradients of unequal batches, losses with other terms than samples, accumulation, resuming, and its errors."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from loops import BATCH, SAMPLES, caught, data, flat, from_all, model, serial_steps
from ranks import found_by, result, world
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, IterableDataset, Sampler, TensorDataset

from hetsim.files.summary_and_curve import read_summary
from hetsim.loop import Team, team
from hetsim.loop.method import experiment_of_words
from hetsim.policies.allocation import Allocation, Fixed
from hetsim.results.reading.intervals import read_trace

UNEVEN = Fixed(parts=[2, 1])
EXACT = 1e-12


def dataset(size: int = SAMPLES) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def team_of(net: nn.Module, **options: Any) -> Team:
    """A Team that takes steps of SGD with rate 1, so that a step shows its gradient."""
    options = {"optimizer": torch.optim.SGD(net.parameters(), lr=1.0), "batch_size": BATCH, "allocation": UNEVEN, **options}
    return Team(net, **options)


def distance(
    loss: Callable[[Team, torch.Tensor, torch.Tensor], torch.Tensor],
    serial: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    net: nn.Module | None = None,
    wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel,
    size: int = SAMPLES,
    workers: int = 0,
    **options: Any,
) -> float:
    """How far the gradients of an epoch are from those of one process."""
    net = net or model()
    called = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    made = Team(called, optimizer, **{"batch_size": BATCH, "allocation": UNEVEN, **options})
    loader = made.loader(dataset(size), num_workers=workers, multiprocessing_context="fork" if workers else None)
    try:
        return serial_steps(made, net, loader, optimizer, called, data()[0], loss, serial)
    finally:
        made.close()


def itself(net: nn.Module) -> nn.Module:
    return net


# Losses: what a loop passes to `share`, and the same in one process over the whole batch

LENGTHS = torch.randint(1, 7, (SAMPLES, 1), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(6)[None] < LENGTHS).double()
WEIGHTS = torch.rand(SAMPLES, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
TARGET = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
LABELS = torch.where(MASK.bool(), torch.randint(0, 1, (SAMPLES, 6)), -100)


def errors(output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """One error for each token."""
    return (output - TARGET[number]) ** 2


SHARES: dict[str, tuple[Any, Any]] = {
    "unreduced, one for each sample": (
        lambda team, output, number: team.share(errors(output, number).mean(1)),
        lambda output, number: errors(output, number).mean(),
    ),
    "unreduced, one for each token": (
        lambda team, output, number: team.share(errors(output, number)),
        lambda output, number: errors(output, number).mean(),
    ),
    "masked": (
        lambda team, output, number: team.share(errors(output, number), mask=MASK[number]),
        lambda output, number: (errors(output, number) * MASK[number]).sum() / MASK[number].sum(),
    ),
    "with class weights": (
        lambda team, output, number: team.share(errors(output, number), mask=WEIGHTS[number]),
        lambda output, number: (errors(output, number) * WEIGHTS[number]).sum() / WEIGHTS[number].sum(),
    ),
    "masked with not-a-number": (
        lambda team, output, number: team.share(torch.where(MASK[number].bool(), errors(output, number), torch.nan), mask=MASK[number]),
        lambda output, number: (errors(output, number) * MASK[number]).sum() / MASK[number].sum(),
    ),
    "a mean over a number that is passed": (
        lambda team, output, number: team.share(
            (errors(output, number) * MASK[number]).sum() / MASK[number].sum(), int(MASK[number].sum())
        ),
        lambda output, number: (errors(output, number) * MASK[number]).sum() / MASK[number].sum(),
    ),
    "a mean over the samples": (
        lambda team, output, number: team.share(errors(output, number).mean()),
        lambda output, number: errors(output, number).mean(),
    ),
    "already divided by a number of all ranks": (
        lambda team, output, number: team.share(divided(team, (errors(output, number) * MASK[number]).sum(), MASK[number]), divided=True),
        lambda output, number: (errors(output, number) * MASK[number]).sum() / MASK[number].sum(),
    ),
}


def divided(team: Team, total: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As in DETR: a sum, divided by the mean number of a rank's terms."""
    number = mask.sum() * min(team.samples, 1)
    with team.waiting():
        dist.all_reduce(number)
    return total / (number / dist.get_world_size())


def law_of_shares() -> dict[str, float]:
    found = {}
    for name, (loss, serial) in SHARES.items():
        for method, wrap in (("ddp", DistributedDataParallel), ("ddp", itself), ("ssgd", itself)):
            kept = f"{name}, {method}, {wrap.__name__}"
            found[kept] = distance(loss, serial, net=nn.Linear(6, 6).double(), wrap=wrap, method=method, verified=True)
    return found


def law_of_a_stated_mean() -> dict[str, Any]:
    loss, serial = SHARES["a mean over the samples"]
    net = nn.Linear(6, 6).double()
    refused = caught(lambda: distance(loss, serial, net=net))
    remarked = caught(lambda: distance(loss, serial, net=net, allocation="dbs"))

    def by_class(team: Team, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return team.share(errors(output, number)[:, :5].mean(0))

    classes = caught(lambda: distance(by_class, serial, net=net))
    return {"refused": refused, "remarked": remarked, "classes": classes}


def mean_loss(team: Team, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return team.share(mse_loss(output, data()[1][number], reduction="none"))


def serial_mean(output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return mse_loss(output, data()[1][number])


class Unused(nn.Module):
    """A model with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = model(), nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def compressed(net: nn.Module) -> nn.Module:
    wrapped = DistributedDataParallel(net)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return wrapped


WRAPPED: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[], nn.Module]]] = {
    "views of buckets": (partial(DistributedDataParallel, gradient_as_bucket_view=True), model),
    "many buckets": (partial(DistributedDataParallel, bucket_cap_mb=1e-4), model),
    "static graph": (partial(DistributedDataParallel, static_graph=True), model),
    "unused parameters": (partial(DistributedDataParallel, find_unused_parameters=True), Unused),
    "compressed to half precision": (compressed, model),
}


def law_of_wrappers() -> dict[str, float]:
    return {name: distance(mean_loss, serial_mean, net=net(), wrap=wrap) for name, (wrap, net) in WRAPPED.items()}


def law_of_short_batches() -> dict[str, float]:
    sizes = (BATCH * 2, BATCH * 2 + 1, BATCH * 2 + 2, BATCH * 2 + 13, 7)
    return {
        f"{size} samples, {wrap.__name__}": distance(mean_loss, serial_mean, wrap=wrap, size=size)
        for size in sizes
        for wrap in (DistributedDataParallel, itself)
    }


class TwoToOne(Allocation):
    """An allocation of the user's own, which Python shows with its address."""

    def initial(self, num_workers: int, batch_size: int, max_samples: Any = None) -> tuple[int, ...]:
        return batch_size * 2 // 3, batch_size // 3

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


def law_of_an_own_allocation() -> float:
    return distance(mean_loss, serial_mean, allocation=TwoToOne())


class Drawing(Sampler[int]):
    """Draws some samples again and leaves others out, by torch's generator, as a WeightedRandomSampler does."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(SAMPLES, (40,)).tolist())


class Stream(IterableDataset[Any]):
    """The odd or the even numbers, 20 of them."""

    def __iter__(self) -> Iterator[tuple[int]]:
        return iter([(2 * number + dist.get_rank(),) for number in range(20)])


def law_of_orders() -> dict[str, Any]:
    """What ranks get of a sampler, also after a resume in the middle of an epoch, and of a stream."""
    torch.manual_seed(dist.get_rank())
    found: dict[str, Any] = {}
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for kind, options in (("sampled", {"sampler": Drawing()}), ("streamed", {"steps_per_epoch": 3})):
        saved: Any = None
        steps: list[list[int]] = []
        for until in (3, 100):
            made = Team(net, optimizer, batch_size=12, allocation=UNEVEN)
            if saved is not None:
                made.load_state_dict(saved)
            loader = made.loader(dataset() if kind == "sampled" else Stream(), **options)
            for _ in range(made.epoch, 2):
                for (number,) in loader:
                    loss_of(made, net, number).backward()
                    steps.append(from_all(number.tolist()).tolist())
                    made.step()
                    net.zero_grad()
                    if len(steps) == until:
                        break
                if len(steps) == until:
                    break
            saved = made.state_dict()
            drawn = saved["drawn"]
            made.close()
            found.setdefault(f"{kind}, drawn", []).append(None if drawn is None else (drawn[0], drawn[1].tolist()))
        found[kind] = steps
    return found


def law_of_multiples() -> dict[str, Any]:
    """The shares of some epochs, in which the second rank takes twice as long for each sample."""
    shares = set()
    net = model()
    called = DistributedDataParallel(net)
    made = team_of(called, allocation="dbs", multiple_of=4)
    loader = made.loader(dataset(), drop_last=True)
    for _ in range(3):
        for (number,) in loader:
            time.sleep(1e-3 * len(number) * (1 + dist.get_rank()))
            loss_of(made, called, number).backward()
            made.step()
            shares.add(made.shares)
    made.close()
    short, undivided = (caught(lambda n=n: team_of(model(), multiple_of=n).loader(dataset(SAMPLES + 1))) for n in (4, 5))
    return {"shares": sorted(shares), "short": short, "undivided": undivided}


def law_of_workers() -> float:
    return distance(mean_loss, serial_mean, workers=2)


def law_of_ended_workers() -> float:
    """The seconds in which a Team and its workers end, after an epoch and in the middle of one."""
    seconds = 0.0
    for stops in (False, True):
        net = model()
        made = Team(net, torch.optim.SGD(net.parameters(), lr=0.1), batch_size=BATCH)
        loader = made.loader(dataset(), num_workers=1, multiprocessing_context="fork")
        for (number,) in loader:
            loss_of(made, net, number).backward()
            made.step()
            if stops:
                break
        began = time.monotonic()
        made.close()
        del made, loader
        gc.collect()
        seconds = max(seconds, time.monotonic() - began)
    return seconds


def law_of_ddp_bit_for_bit() -> bool:
    """A Team with even shares trains as DistributedDataParallel alone on the same samples."""
    weights = []
    for with_team in (True, False):
        net = model()
        ddp = DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(net.parameters())
        if with_team:
            made = Team(ddp, optimizer, batch_size=BATCH)
            taken = []
            for (number,) in made.loader(dataset()):
                taken.append(number)
                optimizer.zero_grad()
                made.share(mse_loss(ddp(data()[0][number]), data()[1][number], reduction="none")).backward()
                made.step()
            made.close()
        else:
            for number in taken:
                optimizer.zero_grad()
                mse_loss(ddp(data()[0][number]), data()[1][number]).backward()
                optimizer.step()
        weights.append(flat(net))
    return torch.equal(*weights)


def accumulated(name: str, allocation: Allocation, wrap: Callable[[nn.Module], nn.Module]) -> float:
    """How far the gradients of three batches each are from those of one process. In the last step, a rank has one sample."""
    loss, serial = SHARES[name]
    net = nn.Linear(6, 6).double()
    called = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    made = Team(called, optimizer, batch_size=BATCH, allocation=allocation, accumulate=3, verified=True)
    worst, taken, before = 0.0, list[int](), copy.deepcopy(net)
    for place, (number,) in enumerate(made.loader(dataset(SAMPLES - 21))):
        taken += number.tolist()[: made._samples_of_part(place % 3)]
        loss(made, called(data()[0][number]), number).backward()
        if place % 3 == 2:
            made.step()
            optimizer.zero_grad()
            samples = from_all(taken)
            before.zero_grad()
            serial(before(data()[0][samples]), samples).backward()
            right = torch.cat([parameter.grad.reshape(-1) for parameter in before.parameters()])  # type: ignore[union-attr]
            worst = max(worst, float((flat(before) - flat(net) - right).norm() / right.norm()))
            taken, before = [], copy.deepcopy(net)
    made.close()
    return worst


def law_of_accumulation() -> dict[str, float]:
    names = ("unreduced, one for each sample", "a mean over the samples", "masked")
    cases = ((UNEVEN, DistributedDataParallel), (Fixed(parts=[11, 1]), DistributedDataParallel), (Fixed(parts=[11, 1]), itself))
    return {f"{name}, {parts}, {wrap.__name__}": accumulated(name, parts, wrap) for name in names for parts, wrap in cases}


def law_of_one_worker() -> float:
    """A script that steps itself needs no wrapper if it is alone."""
    group = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    net = model()
    made = Team(net, None, batch_size=BATCH, group=group)
    weights = []
    for (number,) in made.loader(dataset()):
        made.share(mse_loss(net(data()[0][number]), data()[1][number], reduction="none")).backward()
        made.step()
        weights.append(flat(net))
    mean = torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])  # type: ignore[union-attr]
    net.zero_grad()
    mse_loss(net(data()[0]), data()[1]).backward()
    right = torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])  # type: ignore[union-attr]
    made.close()
    return float((mean / len(weights) - right).norm() + (weights[0] - weights[-1]).norm())


def law_of_resuming() -> dict[str, bool]:
    """A loop that stops in the middle of an epoch, and another one that continues, train as one that does not stop."""
    found = {}
    for method in ("ssgd", "ddp", "diloco", "pipe_sgd"):
        weights = []
        for stops in (False, True):
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            options: dict[str, Any] = {"coordination": {"period": 2}} if method == "diloco" else {}
            saved: Any = None
            steps = 0
            for part in range(1 + stops):
                made = Team(net, optimizer, batch_size=BATCH, method=method, **options)
                if part:
                    made.load_state_dict(saved)
                loader = made.loader(dataset())
                for _ in range(made.epoch, 2):
                    for (number,) in loader:
                        optimizer.zero_grad()
                        made.share(mse_loss(net(data()[0][number]), data()[1][number], reduction="none")).backward()
                        made.step()
                        steps += 1
                        if stops and not part and steps == 8:
                            break
                    if stops and not part and steps == 8:
                        break
                saved = made.state_dict()
                made.close()
            weights.append(flat(net))
        found[method] = torch.equal(*weights)
    return found


def law_of_resuming_elsewhere() -> dict[str, tuple[float, bool]]:
    """One process continues what two have begun. How far it is from one process, and whether each sample counts."""
    alone = dist.new_group([0])
    found = {}
    for saver in range(2):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(made: Team, number: torch.Tensor, net: nn.Module = net, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            made.share(mse_loss(net(data()[0][number]), data()[1][number], reduction="none")).backward()
            made.step()

        made = Team(net, optimizer, batch_size=BATCH, allocation=UNEVEN)
        steps = []
        for (number,) in made.loader(dataset()):
            steps.append(from_all(number.tolist()))
            step(made, number)
            if len(steps) == 4:
                break
        states: list[Any] = [None, None]
        dist.all_gather_object(states, made.state_dict())
        made.close()
        if dist.get_rank() == 0:
            made = Team(net, optimizer, batch_size=BATCH, group=alone)
            made.load_state_dict(states[saver])
            for (number,) in made.loader(dataset()):
                steps.append(number)
                step(made, number)
            whole = model()
            serial = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
            for samples in steps:
                serial.zero_grad()
                mse_loss(whole(data()[0][samples]), data()[1][samples]).backward()
                serial.step()
            each_once = torch.cat(steps).sort().values.equal(torch.arange(SAMPLES))
            found[f"from rank {saver}"] = float((flat(net) - flat(whole)).abs().max()), each_once
    return found


TRACED = ("ddp", "ssgd", "diloco")


def law_of_traces() -> dict[str, Any]:
    """What commands read of a Team's files after two epochs: updates, samples, and the samples of each rank's gradients."""
    found = {}
    for method in TRACED:
        with tempfile.TemporaryDirectory() as folder:
            net = model()
            called = DistributedDataParallel(net) if method == "ddp" else net
            made = team_of(called, method=method, allocation=UNEVEN, trace=folder)
            loader = made.loader(dataset())
            for epoch in range(2):
                for step, (number,) in enumerate(loader):
                    loss_of(made, called, number).backward()
                    made.step()
                    if epoch and step == 3 and method == "ddp":
                        break  # the others wait in close
            made.close()
            if dist.get_rank() == 0:
                summary = read_summary(Path(folder))
                rows = read_trace(Path(folder) / "trace.parquet", num_workers=2).to_pylist()
                found[method] = {
                    "updates": summary["num_updates"],
                    "samples": [worker["samples"] for worker in summary["per_worker"]],
                    "traced": [sum(row["samples"] for row in rows if (row["kind"], row["rank"]) == ("gradient", rank)) for rank in (0, 1)],
                    "kinds": sorted({row["kind"] for row in rows}),
                    "orderly": all(0 <= row["start"] <= row["end"] <= summary["seconds"] + 1 for row in rows),
                }
    return found


def law_of_sharded() -> float:
    """Unequal batches under FSDP2."""
    net = model()
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    made = Team(net, optimizer, batch_size=BATCH, allocation=UNEVEN)
    whole, worst = model(), 0.0
    for (number,) in made.loader(dataset()):
        samples = from_all(number.tolist())
        optimizer.zero_grad()
        made.share(mse_loss(net(data()[0][number]), data()[1][number], reduction="none")).backward()
        whole.zero_grad()
        mse_loss(whole(data()[0][samples]), data()[1][samples]).backward()
        made.step()
        for parameter, sharded in zip(whole.parameters(), net.parameters(), strict=True):
            parameter.data -= 0.1 * parameter.grad
            worst = max(worst, float((sharded.full_tensor() - parameter).detach().abs().max()))  # type: ignore[attr-defined]
    return worst


def law_of_own_steps() -> float:
    """Two models and two optimizers, one of which steps in the middle; the difference from one process after an epoch."""
    x = data()[0]

    def judge(critic: nn.Module, made: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return (critic(made) - critic(x[number])).square().mean(1)

    def networks() -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(7)
        return nn.Linear(6, 6).double(), nn.Linear(6, 2).double()

    def train(steps: Iterable[Any], called: Sequence[nn.Module], nets: Sequence[nn.Module], made: Team | None) -> torch.Tensor:
        first, second = (torch.optim.SGD(net.parameters(), lr=0.01) for net in nets)
        share = torch.mean if made is None else made.share
        for (number,) in steps:
            first.zero_grad()
            (-share(judge(called[1], called[0](x[number]).detach(), number))).backward()
            first.step()
            second.zero_grad()
            share(judge(called[1], called[0](x[number]), number)).backward()
            if made is not None:
                samples.append((from_all(number.tolist() if made.samples else []),))
                made.step()
            second.step()
        return torch.cat([flat(net) for net in nets])

    samples: list[tuple[torch.Tensor]] = []
    maker, critic = networks()
    called = [DistributedDataParallel(maker), DistributedDataParallel(critic)]
    made = Team(called, None, batch_size=BATCH, allocation=UNEVEN)
    weights = train(made.loader(dataset(SAMPLES - 21)), called, (critic, maker), made)
    made.close()
    maker, critic = networks()
    return float((train(samples, (maker, critic), (critic, maker), None) - weights).abs().max())


def law_of_first_weights() -> bool:
    """A plain model that each rank has initialised in its own way begins with the weights of the first rank."""
    torch.manual_seed(dist.get_rank())
    net = nn.Linear(6, 1).double()
    first = flat(net)
    made = team_of(net, method="local_sgd")
    made.loader(dataset())
    everyone: list[Any] = [None] * 2
    dist.all_gather_object(everyone, (first.tolist(), flat(net).tolist()))
    made.close()
    return everyone[0][0] == everyone[0][1] == everyone[1][1] != everyone[1][0]


def law_of_clipping() -> dict[str, float]:
    """The norm of the step, of a gradient with a norm above 1e-3."""
    found = {}
    for method, wrap in (("ddp", DistributedDataParallel), ("ssgd", itself)):
        net = model()
        called = wrap(net)
        made = team_of(called, method=method)
        for (number,) in made.loader(dataset()):
            start = flat(net)
            made.share(mse_loss(called(data()[0][number]), data()[1][number], reduction="none")).backward()
            made.step(max_norm=1e-3)
            found[method] = float((flat(net) - start).norm())
            break
        made.close()
    return found


def law_of_logs() -> tuple[float, float]:
    """The mean over the whole batch, and what it is in one process."""
    made = team_of(model())
    for (number,) in made.loader(dataset()):
        mean = made.mean(number.double().mean())
        return float(mean), float(from_all(number.tolist()).double().mean())
    raise AssertionError


def law_of_statistics() -> bool:
    """With batch norm, all ranks have the same running statistics after an epoch of `ssgd` on a plain model."""
    net = model(normalised=True)
    made = team_of(net, method="ssgd")
    for (number,) in made.loader(dataset()):
        made.share(mse_loss(net(data()[0][number]), data()[1][number], reduction="none")).backward()
        made.step()
        net.zero_grad()
    everyone: list[Any] = [None] * 2
    dist.all_gather_object(everyone, [buffer.tolist() for buffer in net.buffers() if buffer.ndim])
    return everyone[0] == everyone[1] and any(net.state_dict()["1.running_mean"].tolist())


def misused(use: Callable[[Team, nn.Module, Any], object], **options: Any) -> str:
    """The sentence about a loop that does something else."""
    net = model()
    wrapped = DistributedDataParallel(net)
    made = team_of(wrapped, **{"allocation": None, **options})
    return caught(lambda: use(made, wrapped, made.loader(dataset())))


def loss_of(team: Team, net: nn.Module, number: torch.Tensor) -> torch.Tensor:
    return team.share(mse_loss(net(data()[0][number]), data()[1][number], reduction="none"))


def no_step(team: Team, net: nn.Module, loader: Any) -> None:
    for (number,) in loader:
        loss_of(team, net, number).backward()


def other_rates(team: Team, net: nn.Module, loader: Any) -> None:
    assert team._optimizer is not None
    team._optimizer.param_groups[0]["lr"] = 0.1 * (1 + team.rank)
    for (number,) in loader:
        loss_of(team, net, number).backward()
        team.step()


def two_steps(team: Team, net: nn.Module, loader: Any) -> None:
    for (number,) in loader:
        for part in number.split(4):
            loss_of(team, net, part).backward()
            team.step()


def past_the_wrapper(team: Team, net: Any, loader: Any) -> None:
    for (number,) in loader:
        loss_of(team, net.module, number).backward()
        team.step()


def no_share(team: Team, net: nn.Module, loader: Any) -> None:
    for (number,) in loader:
        mse_loss(net(data()[0][number]), data()[1][number]).backward()
        team.step()


def other_terms(team: Team, net: nn.Module, loader: Any) -> None:
    for place, (number,) in enumerate(loader):
        losses = mse_loss(net(data()[0][number]), data()[1][number], reduction="none")
        team.share(losses if not place else losses.expand(-1, 3)).backward()
        team.step()


def mask_of_a_mean(team: Team, net: nn.Module, loader: Any) -> None:
    for (number,) in loader:
        team.share(mse_loss(net(data()[0][number]), data()[1][number]), mask=torch.ones(3))


def two_losses(team: Team, net: nn.Module, loader: Any) -> None:
    for (number,) in loader:
        losses = mse_loss(net(data()[0][number]), data()[1][number], reduction="none")
        (team.share(losses, mask=torch.ones_like(losses)) + team.share(losses[1:], mask=torch.ones_like(losses[1:]))).backward()


def draws_ahead(team: Team, net: nn.Module, loader: Any) -> None:
    batches = iter(loader)
    for (number,), (following,) in zip(batches, batches, strict=True):
        loss_of(team, net, number).backward()
        loss_of(team, net, following).backward()
        team.step()


def no_sync(team: Team, net: Any, loader: Any) -> None:
    for (number,) in loader:
        with net.no_sync():
            loss_of(team, net, number).backward()
        team.step()


def another_batch_size(team: Team, net: nn.Module, loader: Any) -> None:
    for (number,) in loader:
        loss_of(team, net, number).backward()
        team.step()
        break
    other = Team(net, None, batch_size=2 * BATCH)
    other.load_state_dict(team.state_dict())
    other.loader(dataset())


MISUSES: dict[str, tuple[Any, str]] = {
    "no step": (no_step, "there was no team.step() after the last one"),
    "two steps for a batch, as in PPO": (two_steps, "take one share and one step for each batch"),
    "no reduction": (no_sync, "were not reduced: leave no_sync() out"),
    "other learning rates": (other_rates, "after epoch 0, the learning rates of the ranks differ (0.1, 0.2)"),
    "past the wrapper": (past_the_wrapper, "did not go through the DistributedDataParallel"),
    "no share": (no_share, "team.step() without a share"),
    "other terms later": (other_terms, "another number of terms than samples for the first time"),
    "a mask of a mean": (mask_of_a_mean, "compute it with reduction='none'"),
    "two losses of other numbers": (two_losses, "the losses of one pass have 12 and 11 terms"),
    "another batch size": (another_batch_size, "this state has batch_size=24, and this Team has 48"),
    "two loaders": (lambda team, *_: team.loader(dataset()), "make another Team"),
    "a DistributedSampler": (
        lambda *_: team_of(model()).loader(dataset(), sampler=DistributedSampler(dataset())),
        "leave the Distrib",
    ),
    "a stream without steps": (lambda *_: team_of(model()).loader(Stream()), "pass steps_per_epoch"),
    "steps of no stream": (lambda *_: team_of(model()).loader(dataset(), steps_per_epoch=3), "leave it out"),
    "a loader of no samples": (lambda *_: team_of(model()).loader(dataset(1)), "lower batch_size"),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a method that is none": ({"method": "dilocoo"}, "diloco"),
    "a batch below the ranks": ({"batch_size": 1}, "less than one sample for each of 2 workers"),
    "none: a server and a worker under torchrun": ({"method": "asgd", "allocation": None}, "Team object"),
    "an allocation that measures before": ({"allocation": "static"}, "measures gradients before the run"),
    "local servers": ({"method": "halos", "allocation": None}, "start 3 processes"),
    "a batch that is none": ({"batch_size": "many"}, "batch_size"),
    "accumulate": ({"accumulate": 0}, "accumulate"),
    "SyncBatchNorm": ({"allocation": "dbs", "layer": nn.SyncBatchNorm(1)}, "SyncBatchNorm waits for other ranks in its passes"),
    "no optimizer": ({"optimizer": None}, "a step without an optimizer needs gradients that are reduced already"),
}


def law_of_misuse() -> dict[str, str]:
    found = {name: misused(use) for name, (use, _) in MISUSES.items()}
    return found | {"draws ahead": misused(draws_ahead, accumulate=2)}


def law_of_arguments() -> dict[str, str]:
    def misbuilt(layer: nn.Module | None = None, **options: Any) -> object:
        return team_of(model() if layer is None else nn.Sequential(model(), layer), **options)

    return {name: caught(lambda options=options: misbuilt(**options)) for name, (options, _) in WRONG.items()}


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
FIVE = re.search(r"```text\n(from hetsim import Team\n.*?)```", README, flags=re.DOTALL)


def law_of_the_five_lines() -> float:
    """The README's lines in a loop. Returns the loss after an epoch."""
    assert FIVE is not None
    *before, share, step = FIVE[1].splitlines()
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = data()[0]
    there: dict[str, Any] = {"model": DistributedDataParallel(net), "cross_entropy": cross_entropy}
    there["dataset"] = TensorDataset(x.repeat(10, 1), (x.sum(1) > 0).long().repeat(10))
    there["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = "\n    ".join(["for x, y in loader:", "optimizer.zero_grad()", share, step])
    exec("\n".join([*before, loop]), there)
    there["team"].close()
    return float(cross_entropy(net(x), (x.sum(1) > 0).long()))


LAWS = {name.removeprefix("law_of_"): law for name, law in dict(globals()).items() if name.startswith("law_of_")}


def laws(rank: int) -> dict[str, Any]:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")  # as under torchrun
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RUN_ID="tests")
    torch.manual_seed(0)
    compose = lru_cache(lambda words, num_ranks: experiment_of_words(list(words), num_ranks))  # in these ranks, each config once
    team.experiment_of_words = lambda words, num_ranks, **_: compose(tuple(words), num_ranks)  # type: ignore[assignment]
    return found_by(LAWS)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return world(2, laws)


def test_each_share_has_the_gradient_of_one_process(found: list[dict[str, Any]]):
    distances = result(found, "shares")
    assert len(distances) == 3 * len(SHARES)
    assert {name: far for name, far in distances.items() if not far < EXACT} == {}


def test_ways_to_wrap_a_model_keep_the_gradient(found: list[dict[str, Any]]):
    for name, far in result(found, "wrappers").items():
        assert far < (1e-3 if name.startswith("compressed") else EXACT), name


def test_a_stated_mean_trains_with_even_shares_and_a_remark(found: list[dict[str, Any]]):
    said = result(found, "a_stated_mean")
    assert said["refused"].startswith("the shares are uneven, and this loss may be no mean over the samples")
    assert said["classes"] == said["refused"]
    assert said["remarked"].startswith("all ranks keep even shares")
    assert float(said["remarked"].split()[-1]) < EXACT


def test_a_sampler_and_a_stream_have_their_order(found: list[dict[str, Any]]):
    orders = result(found, "orders")
    steps, ((first, one), (second, other)) = orders["sampled"], orders["sampled, drawn"]
    assert (first, second) == (0, 1)
    assert one != other
    assert [sample for step in steps for sample in step] == [*one, *other]
    assert [len(step) for step in steps] == [12, 12, 12, 4] * 2
    streamed = orders["streamed"]
    again = [[*(2 * (n % 20) for n in range(8 * k, 8 * k + 8)), *range(8 * k + 1, 8 * k + 9, 2)] for k in range(3)]
    assert streamed == again * 2


def test_shares_are_multiples(found: list[dict[str, Any]]):
    multiples = result(found, "multiples")
    assert (16, 8) in multiples["shares"]
    assert all(share % 4 == 0 and sum(shares) == BATCH for shares in multiples["shares"] for share in shares)
    assert multiples["short"].endswith("pass drop_last=True to the loader")
    assert multiples["undivided"] == "batch_size=24 cannot be divided into multiples of multiple_of=5: take 20"


@pytest.mark.parametrize("law", ["short_batches", "workers", "an_own_allocation"])
def test_no_sample_is_lost_and_each_gradient_is_that_of_one_process(found: list[dict[str, Any]], law: str):
    distances = result(found, law)
    assert max(distances.values() if isinstance(distances, dict) else [distances]) < EXACT


def test_a_team_ends_its_workers_at_once(found: list[dict[str, Any]]):
    """torch waits five seconds for each worker whose queue has ended before it."""
    assert result(found, "ended_workers") < 4


def test_a_team_of_even_shares_is_ddp_bit_for_bit(found: list[dict[str, Any]]):
    assert result(found, "ddp_bit_for_bit") is True


def test_accumulated_batches_make_the_gradient_of_all(found: list[dict[str, Any]]):
    assert max(result(found, "accumulation").values()) < EXACT


def test_a_single_worker_reduces_nothing(found: list[dict[str, Any]]):
    assert result(found, "one_worker") < EXACT


def test_a_loop_that_draws_ahead_in_a_step_gets_a_sentence(found: list[dict[str, Any]]):
    assert "take the share of each batch before you draw another one" in result(found, "misuse")["draws ahead"]


def test_a_loop_continues_where_it_stopped(found: list[dict[str, Any]]):
    assert result(found, "resuming") == {"ssgd": True, "ddp": True, "diloco": True, "pipe_sgd": True}


def test_another_number_of_ranks_continues(found: list[dict[str, Any]]):
    for distance, each_once in result(found, "resuming_elsewhere").values():
        assert distance < EXACT
        assert each_once


def test_a_trace_is_that_of_a_run(found: list[dict[str, Any]]):
    traces = result(found, "traces")
    assert list(traces) == list(TRACED)
    for method, trace in traces.items():
        whole = SAMPLES * 2 if method != "ddp" else SAMPLES + 4 * BATCH
        assert sum(trace["samples"]) == whole
        assert trace["samples"] == trace["traced"] == [whole * 2 // 3, whole // 3] or method == "diloco"
        assert trace["updates"] == {"ddp": 10, "ssgd": 12}.get(method, trace["updates"])
        assert {"gradient", "update", "commit", "apply", "all_reduce"} <= set(trace["kinds"])
        assert trace["orderly"]


def test_a_sharded_model_has_the_gradient_of_one_process(found: list[dict[str, Any]]):
    assert result(found, "sharded") < EXACT


def test_the_lines_of_the_readme_are_five_and_train(found: list[dict[str, Any]]):
    assert FIVE is not None
    assert len(FIVE[1].splitlines()) == 5
    assert result(found, "the_five_lines") < 1.1


def test_a_script_that_steps_itself_has_the_steps_of_one_process(found: list[dict[str, Any]]) -> None:
    assert result(found, "own_steps") < EXACT


def test_all_ranks_begin_with_the_weights_of_the_first(found: list[dict[str, Any]]):
    assert result(found, "first_weights") is True


def test_the_reduced_gradient_is_clipped(found: list[dict[str, Any]]):
    assert result(found, "clipping") == pytest.approx({"ddp": 1e-3, "ssgd": 1e-3}, rel=1e-3)


@pytest.mark.parametrize(("module", "name"), [("hetsim.ddp", "Team"), ("hetsim.ddp.trainer", "Balanced")])
def test_the_old_places_say_the_new_line(module: str, name: str):
    with pytest.raises(ImportError, match=f"write `from hetsim import {name}`"):
        getattr(importlib.import_module(module), name)


def test_logs_and_statistics_are_those_of_all_ranks(found: list[dict[str, Any]]):
    mean, right = result(found, "logs")
    assert mean == pytest.approx(right)
    assert result(found, "statistics") is True


@pytest.mark.parametrize("name", MISUSES)
def test_a_loop_that_does_something_else_gets_a_sentence(found: list[dict[str, Any]], name: str):
    assert MISUSES[name][1] in result(found, "misuse")[name]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_gets_a_sentence(found: list[dict[str, Any]], name: str):
    said = result(found, "arguments")[name]
    assert WRONG[name][1] in said
    assert "Traceback" not in said
