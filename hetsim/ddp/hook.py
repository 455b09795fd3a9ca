"""The communication hook that weighs each rank's mean gradient by its samples, or by its tokens, before gradients are averaged.

No `from __future__ import annotations` here: DistributedDataParallel compares the hook's annotations with its own classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

Hook = Callable[[Any, Any], Any]
"""A hook of DistributedDataParallel, which averages a bucket over N ranks."""


class Steps(Protocol):
    """What the hook needs to know of the present step, and whom it tells how far the gradients are."""

    @property
    def factor(self) -> float:
        """By which this rank's gradients are multiplied before the average."""

    def first_bucket(self) -> Callable[[], torch.Tensor] | None:
        """The first gradients are ready. With counted tokens: what waits for the factor of the average."""

    def last_bucket(self) -> Callable[[], None]:
        """All gradients are ready; the answer is called when the last of them are reduced."""


@dataclass
class Weighted:
    """The state of `weighted_hook`: the present step, and the hook that averages."""

    steps: Steps
    hook: Hook
    state: Any = None
    check: Any = None
    """Who compares gradients with the serial ones, under `hetsim-ddp-check`."""
    _correction: Callable[[], torch.Tensor] | None = field(init=False, default=None)


def weighted_hook(state: Weighted, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Σ b_i g_i / R: each rank's mean gradient times N·b_i/R, averaged over N ranks by the inner hook."""
    if bucket.index() == 0:
        state._correction = state.steps.first_bucket()
    reduced = state.steps.last_bucket() if bucket.is_last() else None
    factor, correction, check = state.steps.factor, state._correction, state.check
    if check is not None:
        check.before(bucket)
    if factor == 0:
        bucket.buffer().zero_()  # what is no number stays none when it is multiplied by zero
    elif factor != 1:
        bucket.buffer().mul_(factor)
    future: torch.futures.Future[Any] = state.hook(state.state, bucket)
    if correction is None and reduced is None and check is None:
        return future

    def finish(done: torch.futures.Future[Any]) -> torch.Tensor:
        value = done.value()
        average: torch.Tensor = value[0] if isinstance(value, list) else value
        if correction is not None:
            average.mul_(correction())
        if check is not None:
            check.after(bucket, average)
        if reduced is not None:
            reduced()
        return average

    return future.then(finish)
