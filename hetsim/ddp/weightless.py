"""A loss of weight 0, whose gradients are zero whatever it is."""

from __future__ import annotations

from typing import Any

import torch


def weightless(loss: torch.Tensor) -> torch.Tensor:
    """Zero, whose backward pass runs as that of the loss does, as other ranks may take part in it, but adds nothing that is no number.

    Zero times what is no number is none, such as in the backward pass of a mean over no tokens. So each operation of this loss hands on
    zero for it. Gradients that arrive from other ranks are kept.
    """
    found: set[Any] = set()
    ahead = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        # one that none follows belongs to a parameter, and lives longer than this loss
        if node is None or node in found or not node.next_functions:
            continue
        found.add(node)
        node.register_hook(_numbers)
        ahead += [following for following, _ in node.next_functions]
    return torch.nan_to_num(loss) * 0.0


def _numbers(gradients: tuple[torch.Tensor | None, ...], _: Any) -> tuple[torch.Tensor | None, ...]:
    """The gradients with zero for what is no number, or none that is finite."""
    return tuple(None if each is None else torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in gradients)
