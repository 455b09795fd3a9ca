"""A scaled loss, for which plain averages of gradients equal the gradient of the mean over the whole batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import torch

from hetsim.ddp.exchange import Balance, Control
from hetsim.ddp.hook import MEAN
from hetsim.ddp.schedule import Schedule, Step
from hetsim.ddp.weightless import weightless

T = TypeVar("T", float, torch.Tensor)


def check_scaled(losses: Collection[str], balance: Balance, schedule: Schedule | None, *, leaves_steps: bool) -> None:
    """Raise ValueError if a scaled loss could have wrong gradients.

    `losses` are the wrapped models' kinds of loss. `leaves_steps`: whether a trace or a check records the steps.
    """
    if MEAN in losses:
        raise ValueError(
            "the wrapped model's gradients are weighted already, and scale would weight them twice: remove it, or wrap with loss='global'"
        )
    if losses:
        return
    if balance.measures:
        raise ValueError(
            f"{type(balance.allocation).__name__} goes by measured times, and steps whose loss is scaled are not measured: "
            "take allocation='even' or hetsim.policies.allocation.Fixed(parts=[…])"
        )
    if leaves_steps:
        raise ValueError("a trace, and hetsim-ddp-check, have the steps of a wrapped model, and steps whose loss is scaled leave none")
    if schedule is not None and (fewest := schedule.fewest_samples()) < schedule.num_ranks:
        raise ValueError(
            f"the last step of this epoch has {fewest} samples for {schedule.num_ranks} ranks, and a rank without one computes one of "
            "others, which their forward passes may take into account: add drop_last=True to the loader"
        )


def scaled(loss: torch.Tensor, weight: float | torch.Tensor | None, step: Step, control: Control) -> torch.Tensor:
    """loss · N·b_i/R, or loss · N·weight/Σ weight, for which all ranks wait for each other."""
    factor = step.weight(control.rank)
    if weight is not None:
        own = float(weight) if factor else 0.0
        total = float(control.sum(torch.tensor([own], dtype=torch.float64)))
        factor = control.size * own / total if total else 0.0
    return loss * factor if factor else weightless(loss)


def averaged(value: T, step: Step, control: Control) -> T:
    """Σ b_i v_i / R over all ranks, which wait for each other."""
    given = torch.as_tensor(value).detach()
    own = given.to("cpu", torch.float64).flatten()
    samples = step.shares[control.rank]
    total = control.sum(own * samples if samples else torch.zeros_like(own)) / step.samples
    if isinstance(value, torch.Tensor):
        dtype = given.dtype if given.is_floating_point() else torch.get_default_dtype()
        return total.reshape(given.shape).to(given.device, dtype)
    return float(total)
