"""Steps of a fixed length along a linear minimization oracle's answer to the momentum, as a torch.optim class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from hetsim import checks


class LMO(torch.optim.Optimizer):
    """Momentum m ← (1 − a) m + a g, then x ← x + η lmo(m) with η = `lr` and a = `alpha` (Ringmaster LMO, arXiv 2605.18174).

    lmo(m) minimizes ⟨m, u⟩ over ‖u‖ ≤ 1. For a hidden matrix of a × b numbers the norm is the operator norm between root mean squares,
    so lmo(m) = −√(a/b) times the orthogonalised m, by Muon's Newton-Schulz iterations. Elsewhere it is the largest absolute value, so
    lmo(m) = −sign(m).
    """

    by_parameter: ClassVar[bool] = True

    def __init__(self, params: Any, lr: float, alpha: float = 0.1) -> None:
        checks.number("lr", lr, zero=True)
        if checks.number("alpha", alpha) > 1:
            raise ValueError(f"alpha must be at most 1, not {alpha!r}")
        super().__init__(params, {"lr": lr, "alpha": alpha})
        hidden = [(x, group) for group in self.param_groups if group.get("hidden", False) for x in group["params"]]
        self._matrices: torch.optim.Optimizer | None = None
        if hidden:  # "original" multiplies by √max(1, a/b); torch 2.11 has no √(a/b)
            groups = [{"params": [x], "of": group, "shrinks": math.sqrt(min(1.0, x.shape[0] / x.shape[1]))} for x, group in hidden]
            self._matrices = torch.optim.Muon(groups, lr=lr, momentum=1 - alpha, nesterov=False, weight_decay=0.0, adjust_lr_fn="original")
            self._matrices.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step: Muon without weight decay for hidden matrices, sign steps for other parameters."""
        if self._matrices is not None:
            for group in self._matrices.param_groups:
                group["lr"] = group["of"]["lr"] * group["shrinks"]
            self._matrices.step()
        for group in self.param_groups:
            for x in () if group.get("hidden", False) else group["params"]:
                m = self.state[x].setdefault("momentum_buffer", torch.zeros_like(x))
                m.lerp_(x.grad, group["alpha"])
                x.add_(m.sign(), alpha=-group["lr"])
