"""Observe a backward pass: the terms of a sum, bucket by bucket, and each parameter's share of a gradient's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Protocol

import torch

from hetsim.workloads.task import FORWARD, Bucket, Piece


class Watcher(Protocol):
    """Receives the events of a gradient's computation."""

    def forward_done(self, tail: Sequence[torch.Tensor]) -> None:
        """The loss is computed. `tail` contains the statistics and the 1 after the gradient in its vector, if there are any."""

    def arrived(self, parameter: int, gradient: torch.Tensor) -> None:
        """The gradient of the parameter of this number is complete."""

    def backward_done(self) -> torch.Tensor:
        """All other parameters have no gradient. Returns the vector."""


class Terms:
    """Writes `factor` times each gradient into a new vector, and passes its buckets on in order (`Task.terms`)."""

    def __init__(
        self,
        sizes: Sequence[int],
        at: torch.Tensor,
        factor: float,
        buckets: Sequence[Bucket],
        complete: Callable[[int, torch.Tensor], None],
    ) -> None:
        self._factor = factor
        self._complete = complete
        self._vector = torch.empty_like(at)
        ends = list(accumulate(sizes))
        self._parts = [self._vector[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self._tail = self._vector[ends[-1] :]
        self._buckets = [self._vector[bucket.start : bucket.stop] for bucket in buckets]
        self._bucket_of = [next(k for k, bucket in enumerate(buckets) if bucket.start < end) for end in ends]
        self._missing = [self._bucket_of.count(k) for k in range(len(buckets))]
        self._has_arrived = [False] * len(sizes)
        self._num_complete = 0

    def forward_done(self, tail: Sequence[torch.Tensor]) -> None:
        if tail:
            torch.mul(torch.cat(list(tail)), self._factor, out=self._tail)

    def arrived(self, parameter: int, gradient: torch.Tensor) -> None:
        torch.mul(gradient.detach().reshape(-1), self._factor, out=self._parts[parameter])
        self._count_arrival(parameter)

    def backward_done(self) -> torch.Tensor:
        for parameter, has_arrived in enumerate(self._has_arrived):
            if not has_arrived:
                self._parts[parameter].zero_()
                self._count_arrival(parameter)
        return self._vector

    def _count_arrival(self, parameter: int) -> None:
        self._has_arrived[parameter] = True
        self._missing[self._bucket_of[parameter]] -= 1
        while self._num_complete < len(self._buckets) and not self._missing[self._num_complete]:
            self._num_complete += 1
            self._complete(self._num_complete - 1, self._buckets[self._num_complete - 1])


class FlopShares:
    """Counts the floating-point operations of matrix products and convolutions by the time each parameter's gradient is complete."""

    def __init__(self, sizes: Sequence[int], length: int) -> None:
        self.sizes = sizes
        self.length = length
        """The length of the vector, which may contain statistics after the parameters."""
        self._counter: Any = None
        self._forward = 0
        self._by_parameter = [0] * len(sizes)
        self._all = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Within this context, operations are counted."""
        from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode  # not imported where nothing is counted

        # It would import PyTorch's compiler, for seconds, in order to keep it out of this function: that is what is kept there already.
        dispatch: Any = getattr(_FlopCounterMode.__torch_dispatch__, "__wrapped__", None)
        if dispatch is not None:
            setattr(dispatch, "__dynamo_disable", dispatch)  # in a class, a plain assignment is to another name
        with FlopCounterMode(display=False) as self._counter:
            yield

    def forward_done(self, tail: Sequence[torch.Tensor]) -> None:
        self._forward = self._counter.get_total_flops()

    def arrived(self, parameter: int, gradient: torch.Tensor) -> None:
        self._by_parameter[parameter] = self._counter.get_total_flops()

    def backward_done(self) -> torch.Tensor:
        self._all = self._counter.get_total_flops()
        return torch.zeros(self.length)

    def pieces(self) -> list[Piece]:
        """The parameters from the last to the first, after the entries that follow them. Without counted operations, at an even pace."""
        num = sum(self.sizes)
        if self._all:
            shares = [(count or self._all) / self._all for count in self._by_parameter]
        else:
            after = [num - end for end in accumulate(self.sizes, initial=0)]
            shares = [FORWARD + (1 - FORWARD) * completed / num for completed in after[:-1]]
        tail = [Piece(self.length - num, self._forward / self._all if self._all else FORWARD)] if self.length > num else []
        return [*tail, *(Piece(size, share) for size, share in reversed(list(zip(self.sizes, shares, strict=True))))]
