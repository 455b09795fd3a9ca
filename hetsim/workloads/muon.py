"""Muon for a model's hidden matrices, with AdamW for its other parameters, as a torch.optim class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon for hidden matrices, and torch.optim.AdamW for embeddings, the head and vectors (Jordan et al. 2024).

    For a hidden matrix X of a × b numbers with gradient G, where orthogonal(M) has the singular vectors of M and singular values near 1:

        M ← μ M + (1 − μ) G;  O = orthogonal((1 − μ) G + μ M);  X ← (1 − γ λ) X − 0.2 γ √max(a, b) O

    The factor 0.2 √max(a, b) gives O the root mean square of AdamW's steps, so both parts share the rate γ = `lr` and the decay λ
    (arXiv 2502.16982). `adjust_lr_fn=original` takes √max(1, a/b) instead, as https://kellerjordan.github.io/posts/muon/ does, where
    AdamW has a rate of its own: `adamw_lr`.
    """

    by_parameter: ClassVar[bool] = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = "match_rms_adamw",
        adamw_lr: float | None = None,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {})
        hidden, others = ([group for group in self.param_groups if group.get("hidden", False) is is_hidden] for is_hidden in (True, False))
        shared = {"weight_decay": weight_decay}
        muon = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn, **shared}
        adamw = {"lr": lr if adamw_lr is None else adamw_lr, "betas": tuple(betas), "eps": eps, **shared}
        optimizers = ((torch.optim.Muon, hidden, muon), (torch.optim.AdamW, others, adamw))
        self._parts: list[torch.optim.Optimizer] = [kind(groups, **options) for kind, groups, options in optimizers if groups]
        for part in self._parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of each part."""
        for part in self._parts:
            part.step()
