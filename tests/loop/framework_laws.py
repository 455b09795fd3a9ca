"""Accelerate, Lightning, and what else loops use, with a Team. Each function runs in the ranks of a world, where the package is."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from loops import BATCH, data, flat, from_all, model
from ranks import found_by
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from hetsim import Team
from hetsim.policies.allocation import Fixed

UNEVEN = Fixed(parts=[2, 1])
NORM = 0.05
"""Below the norms of all gradients."""


def losses(output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return mse_loss(output, data()[1][number], reduction="none")


def dataset() -> TensorDataset:
    return TensorDataset(torch.arange(BATCH * 5 + 9), data()[0][: BATCH * 5 + 9])


def replayed(steps: Iterable[list[int]], *, clips: bool) -> torch.Tensor:
    """The weights of one process after these steps, each on these samples of one rank and those of the others."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    for mine in steps:
        samples = from_all(mine)
        optimizer.zero_grad()
        losses(net(data()[0][samples]), samples).mean().backward()
        if clips:
            nn.utils.clip_grad_norm_(net.parameters(), NORM)
        optimizer.step()
        schedule.step()
    return flat(net)


def accelerated(*, window: int = 1, steps_itself: bool = True, precision: str = "no", compiles: bool = False) -> float:
    """How far the weights of Accelerate's loop are from those of one process, after two epochs with shares of 2 : 1."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=window, mixed_precision="no" if precision == "scaled" else precision)
    if precision == "scaled":  # as with "fp16", which Accelerate refuses without a GPU
        accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu"), True
        accelerator.state._mixed_precision = "fp16"
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    called, optimizer = accelerator.prepare(net, optimizer)
    if compiles:
        called = torch.compile(called, backend="eager")
    team = Team(called, None if steps_itself else optimizer, batch_size=BATCH, allocation=UNEVEN, accumulate=window)
    taken: list[list[int]] = []
    loader = team.loader(dataset(), device=accelerator.device)
    for _ in range(2):
        for place, (number, x) in enumerate(loader):
            if place % window == 0:
                taken.append([])
            taken[-1] += number.tolist()
            with accelerator.accumulate(called):
                accelerator.backward(team.share(losses(called(x), number)) * window)
                if accelerator.sync_gradients:
                    team.step()
                    if steps_itself:
                        accelerator.clip_grad_norm_(called.parameters(), NORM)
                if steps_itself:
                    optimizer.step()
                if accelerator.sync_gradients:
                    schedule.step()
                optimizer.zero_grad()
    team.close()
    return float((flat(net) - replayed(taken, clips=steps_itself)).abs().max())


def lightened(*, window: int = 1, precision: str = "64-true") -> float:
    """The same with Lightning."""
    import lightning

    taken: list[list[int]] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def train_dataloader(self) -> Any:
            self.team = Team(self.trainer.strategy.model, None, batch_size=BATCH, allocation=UNEVEN, accumulate=window)
            return self.team.loader(dataset())

        def training_step(self, batch: Any, place: int) -> torch.Tensor:
            number, x = batch
            if place % window == 0:
                taken.append([])
            taken[-1].extend(number.tolist())
            return self.team.share(losses(self.net(x), number)) * window

        def on_before_optimizer_step(self, _: Any) -> None:
            self.team.step()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, use_distributed_sampler=False, gradient_clip_val=NORM,
        accumulate_grad_batches=window, precision=precision, **quiet,
    )  # fmt: skip
    module = Module()
    trainer.fit(module)
    module.team.close()
    assert len(taken) == 2 * 6, "Lightning takes every step of both epochs"
    return float((flat(module.net) - replayed(taken, clips=True)).abs().max())


def plain(*, compiles: bool) -> float:
    """The same with two groups of parameters, a schedule by step and an average of the weights, in a loop without a framework."""

    def prepared(net: nn.Module) -> tuple[torch.optim.Optimizer, Any, Any]:
        groups = [{"params": [parameter for parameter in net.parameters() if parameter.ndim == 1], "weight_decay": 0.0}]
        groups += [{"params": [parameter for parameter in net.parameters() if parameter.ndim > 1], "lr": 0.02}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=12), average

    net, alone = model(), model()
    called = DistributedDataParallel(torch.compile(net, backend="eager") if compiles else net)  # type: ignore[arg-type]
    optimizer, schedule, average = prepared(net)
    others = prepared(alone)
    team = Team(called, optimizer, batch_size=BATCH, allocation=UNEVEN)
    loader = team.loader(dataset())
    for _ in range(2):
        for number, x in loader:
            optimizer.zero_grad()
            team.share(losses(called(x), number)).backward()
            team.step()
            schedule.step()
            average.update_parameters(net)
            samples = from_all(number.tolist())
            others[0].zero_grad()
            losses(alone(data()[0][samples]), samples).mean().backward()
            others[0].step()
            others[1].step()
            others[2].update_parameters(alone)
    team.close()
    return float((flat(average) - flat(others[2])).abs().max())


LAWS: dict[str, dict[str, Callable[[], float]]] = {
    "accelerate": {
        "a Team that steps": lambda: accelerated(steps_itself=False),
        "clipping and a schedule": accelerated,
        "accumulation by no_sync": lambda: accelerated(window=2),
        "a GradScaler, with accumulation": lambda: accelerated(window=3, precision="scaled"),
        "autocast to bfloat16, which leaves double precision as it is": lambda: accelerated(precision="bf16"),
        "a compiled DistributedDataParallel": lambda: accelerated(compiles=True),
    },
    "torch": {"groups, a schedule, an average": lambda: plain(compiles=False), "a compiled module": lambda: plain(compiles=True)},
    "lightning": {"clipping and a schedule": lightened, "accumulation": lambda: lightened(window=2)},
}
"""By package. Losses, clipping and steps are those of one process in double precision."""
PRESENT = [package for package in LAWS if importlib.util.find_spec(package) is not None]


def run(rank: int) -> dict[str, Any]:
    size = str(dist.get_world_size())
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, TORCHELASTIC_RUN_ID="tests")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # there is a process group already
    return {package: found_by(LAWS[package]) for package in PRESENT}
