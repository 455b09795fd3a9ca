"""The distributed backend answers a method's effects with processes. Only this package and `ddp` import torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetsim.distributed.backend import Processes

__all__ = ["Processes"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is first used, because commands often need only the launcher's settings."""
    if name == "Processes":
        from hetsim.distributed.backend import Processes

        return Processes
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
