"""The sum of one vector of each rank, in rank order or in the library's order.

The tensors are on the library's device: in the CPU's memory for gloo, on the ranks' GPUs for NCCL.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from hetsim.effects import PeerLost

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The function's name from torch 2.14 on, where the old name warns."""


class Sums(ABC):
    """Collectives on flat tensors of equal size and type. All ranks enter them in the same order. They raise PeerLost if a rank is lost."""

    size: int
    """The number of ranks."""

    @abstractmethod
    def all_to_all(self, parts: torch.Tensor, mine: torch.Tensor) -> None:
        """Send the k-th of `size` equal parts of `mine` to rank k. Put the part from rank k at the k-th place of `parts`."""

    @abstractmethod
    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """Put the tensor of rank k at the k-th of `size` equal places of `everything`."""

    @abstractmethod
    def add_up(self, flat: torch.Tensor) -> None:
        """Replace `flat` by the sum over all ranks in the library's order, with the same bits on all ranks."""

    def sum(self, flat: torch.Tensor, *, in_place: bool = False) -> torch.Tensor:
        """The same sum as a new tensor, or `in_place`."""
        total = flat if in_place else flat.clone()
        self.add_up(total)
        return total

    def sum_in_rank_order(self, flat: torch.Tensor, *, in_place: bool = False) -> torch.Tensor:
        """The sum over all ranks in rank order, so that it equals the simulator's to the last bit. A new tensor, or `in_place`.

        Each rank adds one part, and all ranks gather the parts. Each sends 2(N−1)/N of the vector, as in a ring all-reduce.
        """
        missing = -len(flat) % self.size
        mine = torch.nn.functional.pad(flat, (0, missing)) if missing else flat.contiguous()
        parts = torch.empty_like(mine)
        self.all_to_all(parts, mine)
        first, *others = parts.view(self.size, -1)
        for other in others:
            first += other
        total = mine if in_place or mine is not flat else torch.empty_like(mine)
        self.all_gather(total, first)
        if in_place:
            return flat if total is flat else flat.copy_(total[: len(flat)])
        return total[: len(flat)]


class GroupSums(Sums):
    """torch.distributed's sums, in a group of all ranks (None: gloo's first group). `errors` translates its errors.

    NCCL's functions return when the work is queued on the device. A caller that needs the result in CPU memory, or reads a clock,
    synchronises.
    """

    def __init__(self, size: int, group: Any, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self.size = size
        self._group = group
        self._errors = errors

    def all_to_all(self, parts: torch.Tensor, mine: torch.Tensor) -> None:
        with self._errors():
            dist.all_to_all_single(parts, mine, group=self._group)

    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        with self._errors():
            _all_gather(everything, mine, group=self._group)

    def add_up(self, flat: torch.Tensor) -> None:
        """A ring adds each piece once along the ring, and a tree adds at its root. So all ranks get copies of one sum."""
        with self._errors():
            dist.all_reduce(flat, group=self._group)


@contextlib.contextmanager
def peer_errors(rank: int | None = None) -> Iterator[None]:
    """Raise PeerLost for gloo's errors: RuntimeError if a peer is lost, ValueError if this process is leaving the group."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        who = "a rank" if rank is None else f"rank {rank}"
        raise PeerLost(f"{who} is gone: its process ended or its connection broke") from error


@contextlib.contextmanager
def nccl_errors() -> Iterator[None]:
    """Raise PeerLost for NCCL's errors, with NCCL's first line, which does not distinguish a lost peer from a broken link or driver."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise PeerLost(f"NCCL cannot add up the ranks' vectors ({first}): set NCCL_DEBUG=WARN to see why") from error
