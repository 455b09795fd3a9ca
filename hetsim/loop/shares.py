"""A rank's share of the whole batch's loss: the sum of its terms, divided by the number of terms of all ranks.

A loss that comes as one number is stated to be a mean, and a statement may be wrong. So are losses that cannot have as many terms for each
sample, such as one for each class. They train with even shares, for which they are plain data parallelism, unless the user says
`verified=True`. Other unreduced losses need no statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

BY_SAMPLES, BY_TERMS = 0, 1
"""The loss has one term for each sample, or another number of terms."""


@dataclass
class Terms:
    """The terms of a rank's loss in one step, and by what the loss was divided so far.

    `samples` are the rank's samples of the `batch_size` of all ranks. `per_sample` is a guess of the terms of one sample.
    """

    samples: int
    batch_size: int
    num_workers: int
    per_sample: float
    averaged: bool
    """Whether the model averages the ranks' gradients itself."""
    number: float = 0.0
    """The terms so far."""
    kind: int | None = None
    stated: bool = False
    """Whether a loss was stated to be a mean, or to have one term for each of its numbers."""
    in_pass: float | None = None
    """The terms of the losses of this forward pass; None before the first."""

    def share(self, losses: torch.Tensor, number: Any, mask: torch.Tensor | None, samples: int) -> torch.Tensor:
        """The loss for `backward`: of `samples` samples, which may be a part of the rank's. It is 0 if there are none."""
        counts, samples = samples > 0, samples or 1
        if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
            raise ValueError(f"share takes the tensor of a loss, not {type(losses).__name__}")
        is_mean = losses.ndim == 0 or (losses.numel() == 1 and samples != 1)
        if is_mean and mask is not None:
            raise ValueError("a mask belongs to unreduced losses, and this loss is one number: compute it with reduction='none'")
        if not is_mean and number is not None:
            raise ValueError(f"these losses have {losses.numel()} terms, so no number of terms is needed: leave it out, or pass mask=")
        self.stated |= is_mean or losses.numel() % samples > 0
        counts_samples = mask is None and number is None and (is_mean or losses.numel() == samples)
        self._check_kind(BY_SAMPLES if counts_samples else BY_TERMS, losses, samples)
        if not counts:
            return nothing(losses)
        if counts_samples:
            terms = float(samples)
        elif mask is not None:
            losses, terms = torch.where(mask.bool(), losses * mask, torch.zeros_like(losses)), float(mask.sum())
        else:
            terms = float(losses.numel() if number is None else number)
        self._count(terms)
        if self.kind == BY_SAMPLES:
            weight = (samples / self.samples) * self._weight
            mean = losses.reshape(()) if is_mean else losses.mean()
            return mean if weight == 1.0 else mean * weight
        total = losses.reshape(()) * terms if is_mean else losses.sum()
        return total * (self._weight / (self.samples * self.per_sample))

    def divided(self, loss: torch.Tensor, samples: int) -> torch.Tensor:
        """The loss for `backward`, whose mean over ranks is that of the whole batch."""
        if loss.numel() != 1:
            raise ValueError(f"a loss that is already divided is one number, and this one has {loss.numel()}: leave divided=True out")
        self.stated = True
        self._check_kind(BY_SAMPLES, loss, 1)
        if not samples:
            return nothing(loss)
        return loss.reshape(()) if self.averaged else loss.reshape(()) * (self.batch_size / (self.num_workers * self.samples))

    def _count(self, terms: float) -> None:
        """Count the terms of a pass once, however many losses it has."""
        if self.in_pass is None:
            self.in_pass = terms
            self.number += terms
        elif terms != self.in_pass:
            raise ValueError(
                f"the losses of one pass have {self.in_pass:g} and {terms:g} terms: add them up for each term, and share the sum"
            )

    def _check_kind(self, kind: int, losses: torch.Tensor, samples: int) -> None:
        if self.kind is not None and kind != self.kind:
            raise ValueError(
                f"this loss has {losses.numel()} numbers for {samples} samples, and another one of this step has one for each sample, or a "
                "mask: add them up for each term, and share the sum"
            )
        self.kind = kind

    @property
    def _weight(self) -> float:
        """The weight of the rank's mean gradient if the model averages gradients; otherwise the method weights it."""
        return self.num_workers * self.samples / self.batch_size if self.averaged else 1.0

    @property
    def relative_number(self) -> float:
        """The number of this rank's terms, relative to the number by which its loss was divided."""
        return self.number / (self.samples * self.per_sample) if self.kind == BY_TERMS and self.samples else 1.0


def nothing(losses: torch.Tensor) -> torch.Tensor:
    """A loss of 0 with the graph of these losses."""
    return torch.nan_to_num(losses, 0.0, 0.0, 0.0).sum() * 0.0
