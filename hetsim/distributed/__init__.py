"""The distributed backend: answers a method's effects with processes. Only this package imports torch.distributed."""

from hetsim.distributed.backend import Processes

__all__ = ["Processes"]
