"""Means over tokens. In each step, each rank counts its own tokens and does not wait for the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hetsim.ddp.exchange import Control


class Normalised(NamedTuple):
    """How to average gradients over tokens in one step. Both values are tensors on the model's device, and nothing waits for them."""

    scale: torch.Tensor
    """The factor on this rank's gradients before the average, besides N·t_i/R."""
    correction: Callable[[], torch.Tensor]
    """A function that returns the factor on their average."""


class Tokens:
    """The tokens t_i of this rank in the present step, for the gradient Σ t_i g_i / Σ t_i.

    The sum is known only when gradients have been sent. So each gradient is multiplied by N·t_i/(R·ρ) before it is sent; ρ is the tokens
    per sample in the step before. The average is multiplied by R·ρ/Σ t_i. The sent gradient is about as large as a mean, so it can be
    compressed to 16 bits.
    """

    def __init__(self, control: Control) -> None:
        self.own: float | None = None
        """t_i; None for a mean over samples."""
        self.number = -1
        """The number of the step with these tokens."""
        self.is_new = False
        """Whether no gradients have arrived since the tokens were counted."""
        self._control = control
        self._per_sample: torch.Tensor | None = None
        """ρ, the same on all ranks."""
        self._normalised: Normalised | None = None
        """The averaging of these tokens, for all models of the step. ρ may have changed when the second model's gradients arrive."""

    def count(self, own: float, number: int) -> None:
        """Set this rank's number of tokens in this step."""
        self.own, self.number, self.is_new, self._normalised = own, number, True, None

    @property
    def known(self) -> bool:
        """Whether any earlier step had tokens."""
        return self._per_sample is not None

    def agree(self, samples: int) -> None:
        """Compute ρ of this step, which has `samples` samples on all ranks. All ranks wait for each other."""
        total = self._control.sum(torch.tensor([self.own], dtype=torch.float64))
        if total > 0:
            self._per_sample = total[0] / samples

    def begin(self, samples: int, group: Any, device: torch.device) -> Normalised | None:
        """Start to sum up the tokens of this step, which has `samples` samples on all ranks. Returns None without counted tokens."""
        self.is_new = False
        if self.own is None or self._normalised is not None:
            return self._normalised
        per_sample = torch.ones((), dtype=torch.float64) if self._per_sample is None else self._per_sample
        before = per_sample.to(device)
        total = torch.tensor(self.own, dtype=torch.float64, device=device)
        work = dist.all_reduce(total, group=group, async_op=True)

        def correction() -> torch.Tensor:
            work.wait()
            self._per_sample = torch.where(total > 0, total / samples, before)
            return torch.where(total > 0, samples * before / total, 0.0)

        self._normalised = Normalised(1 / before, correction)
        return self._normalised
