"""A momentum that looks ahead, for outer steps along changes of the weights, as a torch.optim class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hetsim import checks


class MomentumLookAhead(torch.optim.Optimizer):
    """Momentum look-ahead (MLA, OpenReview 4O8nzTkHPI): m ← γ m + (1 − γ) Δ, W ← W − η (γ m + Δ), m = 0 before the first step.

    γ is `momentum`, η is `lr`, and the gradient is Δ. m is a mean of the Δ, so a step is at most 1 + γ times as long as they are, and the
    lead along m does not grow with stale changes. γ = 0 is plain SGD of rate η. The rule is from a secondary source: the paper was not
    read.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9) -> None:
        checks.number("lr", lr, zero=True)
        checks.fraction("momentum", momentum)
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One outer step: the gradient is Δ."""
        for group in self.param_groups:
            eta, gamma = group["lr"], group["momentum"]
            for weights in group["params"]:
                if (delta := weights.grad) is not None:
                    state = self.state[weights]
                    m = state.get("momentum_buffer", torch.zeros_like(weights))
                    delta = self.corrected(delta, m)
                    state["momentum_buffer"] = m.mul_(gamma).add_(delta, alpha=1 - gamma)
                    weights.add_(m, alpha=-eta * gamma).add_(delta, alpha=-eta)

    def corrected(self, delta: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        """The Δ to apply, given the momentum m. Here it is Δ itself.

        Args:
            delta: Δ, in the shape of the weights.
            m: the momentum before the step, in the same shape.
        """
        return delta
