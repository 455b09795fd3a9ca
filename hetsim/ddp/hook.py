"""The communication hook that weights each rank's mean gradient by its samples or tokens before gradients are averaged.

No `from __future__ import annotations` here: DistributedDataParallel compares the hook's annotations with its own classes.
"""

import atexit
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp.copies import Copied, Own, remove
from hetsim.ddp.divisors import watch_losses
from hetsim.ddp.forwards import Forward, Forwards
from hetsim.ddp.forwards import Steps as Passed
from hetsim.ddp.tokens import Normalised

Hook = Callable[[Any, Any], Any]
"""A communication hook of DistributedDataParallel that averages a bucket over N ranks."""


MEAN, GLOBAL = LOSSES = ("mean", "global")
"""Kinds of losses: the mean over this rank's samples, or normalised over all ranks, so that gradients are plainly averaged."""


RELEASE_SECONDS = 5.0
"""The maximum wait at exit, for example for a collective that never ends."""
IDLE_SECONDS = 0.1
"""The wait at exit for a thread of gloo that releases the tensors of its last collective."""
_callbacks: weakref.WeakSet[Callable[[Any], Any]] = weakref.WeakSet()
"""Callbacks that a thread of gloo runs or has not released yet."""


@atexit.register
def wait_for_gloo() -> None:
    """Let gloo's threads release callbacks and tensors.

    A thread of gloo needs Python's lock (GIL) to release a Python object. Python ends a thread that asks for the lock during exit, and
    C++ then aborts the process ("terminate called without an active exception"). A script that destroys its process group has no such
    thread.
    """
    if not dist.is_initialized():
        return
    limit = time.monotonic() + RELEASE_SECONDS
    while _callbacks and time.monotonic() < limit:
        time.sleep(0.001)
    time.sleep(IDLE_SECONDS)


class Steps(Passed, Protocol):
    """The hook's view of the current step, and the events that it reports. There may be several models."""

    def factor(self, loss: str) -> float:
        """The factor on this rank's gradients of this loss before the average."""

    def first_bucket(self, loss: str) -> Normalised | None:
        """The first gradients are ready. Returns how to average them if tokens are counted, else None."""

    def last_bucket(self, arrived: Sequence[Forward], loss: str) -> Callable[[], None]:
        """All gradients of these forward passes are ready. Call the returned function when the last of them are reduced."""


def receives_buffers(ddp: Any) -> bool:
    """Whether each call of the model first copies the buffers of rank 0."""
    return bool(ddp.broadcast_buffers) and any(True for _ in ddp.module.buffers())


def distributed(model: Any, group: Any, state: Any) -> DistributedDataParallel:
    """The DistributedDataParallel in this model. Raises ValueError if its gradients, weighted in this group, would be wrong.

    `state` is the state of the averaging hook: a process group, or an object that contains one.
    """
    ddp = getattr(model, "_orig_mod", model)
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"wrap takes a DistributedDataParallel, not {type(ddp).__name__}: wrap(DDP(model)), or scale the loss instead")
    ranks = dist.get_process_group_ranks(ddp.process_group)
    if ranks != dist.get_process_group_ranks(group):
        raise ValueError("the model's process group has other ranks than the Team's: give the Team group=, or leave the model's out")
    averaging = getattr(state, "process_group", ddp.process_group) if not isinstance(state, dist.ProcessGroup) else state
    if ranks != dist.get_process_group_ranks(averaging):  # None is the group of all
        raise ValueError(
            "the hook's state has another process group than the model, over whose ranks it would average: give it the model's"
        )
    if any(isinstance(part, torch.nn.SyncBatchNorm) for part in ddp.modules()):
        raise ValueError(
            "SyncBatchNorm sends gradients between ranks before they are weighted, so they would be wrong: do not wrap the model, and "
            "take team.scale(loss).backward() with a fixed allocation"
        )
    return ddp


@dataclass
class Weighted:
    """The state of `weighted_hook`: the current step, and the averaging hook."""

    steps: Steps
    hook: Hook
    state: Any = None
    loss: str = MEAN
    check: Any = None
    """The check that compares gradients with serial ones, under `hetsim-ddp-check`; else None."""
    forwards: Forwards = field(init=False)
    """The model's forward passes."""
    _tokens: Normalised | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.forwards = Forwards(self.steps, self.loss)

    def __reduce__(self) -> Any:
        return Copied, ()


def register(ddp: DistributedDataParallel, weighted: Weighted) -> None:
    """Register the hook with the model. Raises ValueError if the model has a hook already."""
    remove(ddp)
    if any(isinstance(state, Weighted) for _, state in ddp._comm_hooks):
        raise ValueError(
            "another Team weights the gradients of this model: train it on one Team's loader, and add a loss over other samples by "
            "loss='global' and team.scale"
        )
    try:
        if not ddp._comm_hooks:
            ddp.register_comm_hook(weighted, weighted_hook)
            ddp.register_forward_hook(Own(weighted.forwards), with_kwargs=True)
            if weighted.check is None:  # which compares gradients, and names the remedy
                watch_losses()
            return
    except RuntimeError:  # one in C++, of which Python keeps no record
        ddp._comm_hooks.clear()
    raise ValueError(
        "the model has a communication hook already, and takes only one: do not register yours, and give it to wrap, as in "
        "team.wrap(model, fp16_compress_hook)"
    )


def weighted_hook(state: Weighted, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Σ b_i g_i / R: each rank's mean gradient times N·b_i/R, averaged over N ranks by the inner hook."""
    if bucket.index() == 0:
        state._tokens = state.steps.first_bucket(state.loss)
    reduced = state.steps.last_bucket(state.forwards.taken(), state.loss) if bucket.is_last() else None
    factor, tokens, check = state.steps.factor(state.loss), state._tokens, state.check
    if check is not None:
        check.before(bucket)
    if factor == 0:
        bucket.buffer().zero_()  # what is no number stays none when it is multiplied by zero
    elif tokens is not None:
        bucket.buffer().mul_(factor * tokens.scale)
    elif factor != 1:
        bucket.buffer().mul_(factor)
    future: torch.futures.Future[Any] = state.hook(state.state, bucket)
    if tokens is None and reduced is None and check is None:
        return future

    def finish(done: torch.futures.Future[Any]) -> torch.Tensor:
        value = done.value()
        average: torch.Tensor = value[0] if isinstance(value, list) else value
        if tokens is not None:
            average.mul_(tokens.correction())
        if check is not None:
            check.after(bucket, average)
        if reduced is not None:
            reduced()
        return average

    _callbacks.add(finish)
    return future.then(finish)
