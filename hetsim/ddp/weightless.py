"""A loss of weight 0. Its gradients are zero, even if the loss is not finite."""

from __future__ import annotations

from typing import Any

import torch


def weightless(loss: torch.Tensor) -> torch.Tensor:
    """Zero, with the backward pass of the loss, because other ranks may take part in it. Non-finite values add nothing.

    Zero times a non-finite number is not finite, for example in the backward pass of a mean over no tokens. So each operation of this loss
    passes on zero instead. Gradients that arrive from other ranks are kept.
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
    """The gradients with zero in place of non-finite entries."""
    return tuple(None if each is None else torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in gradients)
