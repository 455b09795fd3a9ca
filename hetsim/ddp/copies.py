"""Copies of a wrapped model, such as one for averaged weights, which do not get the Team's hooks.

No `from __future__ import annotations` here: DistributedDataParallel compares the hook's annotations with its own classes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

not_compiled: Callable[[Any], Any] = torch.compiler.disable
"""Keeps a function out of compiled code, such as one that reads a clock."""


class Copied:
    """The hook of a copy. The copy may compute, but not average gradients, because no Team weights them."""

    def __call__(self, module: torch.nn.Module, *_: Any) -> None:
        """When the copied model is called, replace its averaging hook by `refuse`."""
        if isinstance(module, DistributedDataParallel) and torch.is_grad_enabled() and module._comm_hooks:
            remove(module)
            module.register_comm_hook(None, refuse)


class Own:
    """A Team's hook on a model. Copies of the model do not get the hook."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = not_compiled(function)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function, outside compiled code."""
        return self._function(*arguments, **options)

    def __reduce__(self) -> Any:
        return Copied, ()


def remove(ddp: DistributedDataParallel) -> None:
    """Remove this hook from a copy, so that another Team can wrap it."""
    for module in ddp.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, Copied)]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_with_kwargs.pop(key, None)
    ddp._comm_hooks[:] = [(hook, state) for hook, state in ddp._comm_hooks if not isinstance(state, Copied)]


def refuse(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # noqa: ARG001
    """Raise ValueError."""
    raise ValueError(
        "this model is a copy of one that a Team wraps, and its gradients would not be weighted: train the wrapped model, "
        "or let another Team wrap the copy"
    )
