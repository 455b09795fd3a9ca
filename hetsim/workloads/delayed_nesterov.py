"""Nesterov's momentum for a server that steps at every push, as a torch.optim class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hetsim import checks


class DelayedNesterov(torch.optim.Optimizer):
    """Plain steps along single pushes, and a momentum that changes only at every N-th: asynchronous local SGD, arXiv 2401.09135.

    At push t = 0, 1, … of Δ, with N = `buffer_size`, ε = `lr`, β = `momentum` and c = `activation`:

        D ← D + Δ; at every N-th push m ← β m + D/N, W ← W − ε [(1 − cN + c) β m + Δ/N], D ← 0; otherwise W ← W − ε [c β m + Δ/N]

    With c = 0, N pushes change W as one step of torch's Nesterov SGD along their mean does. The rule comes from code that cites the paper.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, buffer_size: int = 4, activation: float = 0.0) -> None:
        checks.number("lr", lr, zero=True)
        checks.fraction("momentum", momentum)
        checks.whole("buffer_size", buffer_size)
        if checks.number("activation", activation, zero=True) > 1 / buffer_size:
            raise ValueError(f"activation must be at most 1 / buffer_size, here {1 / buffer_size:g}, not {activation!r}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "buffer_size": buffer_size, "activation": activation})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One push: the gradient is Δ."""
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is not None:
                    self._push(weights, weights.grad, self.state[weights], **{key: group[key] for key in self.defaults})

    @staticmethod
    def _push(
        weights: torch.Tensor,
        delta: torch.Tensor,
        state: dict[str, Any],
        *,
        lr: float,
        momentum: float,
        buffer_size: int,
        activation: float,
    ) -> None:
        N, beta, c = buffer_size, momentum, activation  # noqa: N806
        m, D = (state.get(name, torch.zeros_like(weights)) for name in ("momentum_buffer", "sum"))  # noqa: N806
        t = state.get("num_pushes", 0)
        D.add_(delta)
        if (t + 1) % N == 0:
            m.mul_(beta).add_(D, alpha=1 / N)
            D.zero_()
            c = 1 - c * N + c
        weights.add_(m, alpha=-lr * c * beta).add_(delta, alpha=-lr / N)
        state.update(momentum_buffer=m, sum=D, num_pushes=t + 1)
