"""Outer steps along late changes of the weights. Each parameter's change is first turned towards the server's momentum."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from hetsim import checks
from hetsim.workloads.momentum_look_ahead import MomentumLookAhead


class HeLoCo(MomentumLookAhead):
    """HeLoCo, arXiv 2606.00271: each parameter of Δ is corrected by its angle to the server's momentum m, then MLA's step is taken.

    With c = cos(Δ, m), m̂ = m/‖m‖ and conf = ‖Δ‖ / (‖Δ‖ + κ ‖m‖), for each parameter:

        c ≥ c_ok: Δ is kept
        c < 0: Δ ← Δ − β c ‖Δ‖ m̂, with β = min(k (−c) conf, β_max): a part of the component against m is removed
        otherwise: Δ is turned towards m, at the same norm, until its cosine is c_ok

    While m is zero, Δ is kept. c_ok is `cosine`, k is `strength`, β_max is `most`, κ is `caution`. Workers begin at W, which leads
    along m as in MLA. The rule is from a secondary source, and the numbers are ours. The correction does not depend on the staleness.
    """

    by_parameter: ClassVar[bool] = True

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        cosine: float = 0.2,
        strength: float = 2.0,
        most: float = 1.0,
        caution: float = 1.0,
    ) -> None:
        checks.fraction("cosine", cosine)
        checks.number("strength", strength, zero=True)
        checks.number("most", most, zero=True)
        checks.number("caution", caution, zero=True)
        super().__init__(params, lr, momentum)
        self.cosine, self.strength, self.most, self.caution = cosine, strength, most, caution

    def corrected(self, delta: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        norm, size = delta.norm(), m.norm()
        if not norm or not size:
            return delta
        towards = m / size
        c = float((delta * towards).sum() / norm)
        if c >= self.cosine:
            return delta
        along: torch.Tensor = c * norm * towards
        if c < 0:
            beta = min(self.strength * -c * float(norm / (norm + self.caution * size)), self.most)
            return delta - beta * along
        across = (delta - along) / (delta - along).norm()
        turned: torch.Tensor = norm * (self.cosine * towards + math.sqrt(1 - self.cosine**2) * across)
        return turned
