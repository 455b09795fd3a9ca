"""A model that may reduce its gradients itself: under DistributedDataParallel or FSDP2, whose documented hooks and switches are used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hetsim.loop.clock import Clock
from hetsim.runtime.experiment import Experiment

BYPASSED = "the batch did not go through the DistributedDataParallel, so its gradients were not reduced: call it instead of its module"
NOT_REDUCED = (
    "the gradients of the last batch before team.step() were not reduced: leave no_sync() out, and pass accumulate= to the Team if a step "
    "has several batches"
)
UNMEASURED = (
    "so their seconds are not those of this rank: take allocation=even, or hetsim.policies.allocation.Fixed(parts=[…]) with the speeds of "
    "your GPUs"
)


class Wrapped:
    """The user's models for a method. `module` has the parameters that are trained.

    If the method overlaps its reduction with the backward pass, models under DDP or FSDP2 `reduces`, and so does a single worker's.
    Otherwise, DDP reduces nothing until `close`.
    """

    def __init__(self, models: Sequence[nn.Module], experiment: Experiment, clock: Clock) -> None:
        inner: list[Any] = [getattr(model, "_orig_mod", model) for model in models]  # of a compiled one
        overlaps = experiment.coordination.overlapped_bytes is not None
        self._ddps = [model for model in inner if isinstance(model, DistributedDataParallel)]
        self._sharded = [model for model in inner if isinstance(model, FSDPModule)]
        if max(len(self._ddps), len(self._sharded)) not in (0, len(inner)):
            raise ValueError("some of the models are under DistributedDataParallel or fully_shard, and others are not: treat all alike")
        self._clock = clock
        self._exits = contextlib.ExitStack()
        modules = [model.module for model in self._ddps] or list(models)
        self.module: nn.Module = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        self.reduces = overlaps and (bool(self._ddps or self._sharded) or experiment.num_workers == 1)
        self._waits: list[tuple[Any, Any]] = []
        """The beginning and end of each wait of DDP in this pass: for the buffers of rank 0, or after an earlier backward pass."""
        self._called: Any = None
        """The mark of the last call of a DDP in this pass. None before."""
        self._ready: Any = None
        """The mark of the last gradient since that call."""
        self._unreduced: set[DistributedDataParallel] = set()
        """Those whose last backward pass reduces nothing."""
        self._must_reduce = True
        if self._sharded:
            check_sharded(experiment, overlaps=overlaps)
        if experiment.coordination.allocation.has("observe") and any(isinstance(part, nn.SyncBatchNorm) for part in self.module.modules()):
            raise ValueError(f"SyncBatchNorm waits for other ranks in its passes, {UNMEASURED}")
        for ddp in self._ddps:
            if overlaps:
                self._watch(ddp)
            else:
                self._exits.enter_context(ddp.no_sync())

    def begin_pass(self, *, reduces: bool) -> None:
        """The next forward and backward pass begins. `reduces`: it is the last one before a step."""
        self._must_reduce = reduces
        self._called, self._ready = None, None
        self._waits.clear()
        if not self.reduces:
            return
        for model in self._sharded:
            model.set_requires_gradient_sync(reduces)
        for ddp in self._ddps:
            ddp.require_backward_grad_sync = reduces  # as `no_sync` does

    def end_of_pass(self, now: Any) -> tuple[Any, Callable[[], float]]:
        """The mark of the last gradient, before DDP waited for other ranks, and a function that returns the seconds of earlier waits."""
        if not self._ddps or not self.reduces:
            return now, float
        if self._called is None or self._ready is None:
            raise ValueError(BYPASSED)
        if self._unreduced and self._must_reduce:
            raise ValueError(NOT_REDUCED)
        waits, seconds = tuple(self._waits), self._clock.seconds
        return self._ready, lambda: sum(seconds(end) - seconds(begin) for begin, end in waits)

    def close(self) -> None:
        """Leave the models as they were."""
        for ddp in self._ddps:
            ddp.require_backward_grad_sync = True
        self._exits.close()

    def _watch(self, ddp: DistributedDataParallel) -> None:
        def complete(_: torch.Tensor) -> None:
            self._ready = self._clock.mark()

        def call(*_: Any) -> None:
            self._called = self._clock.mark()
            if torch.is_grad_enabled():
                self._unreduced.discard(ddp) if ddp.require_backward_grad_sync else self._unreduced.add(ddp)
            if self._ready is not None:
                self._waits.append((self._ready, self._called))
                self._ready = None

        def call_module(*_: Any) -> None:
            self._waits.append((self._called, self._clock.mark()))

        hooks = [ddp.register_forward_pre_hook(call)]
        if ddp.broadcast_buffers and any(True for _ in ddp.module.buffers()):
            hooks.append(ddp.module.register_forward_pre_hook(call_module))
        trained = (parameter for parameter in ddp.module.parameters() if parameter.requires_grad)
        hooks += (parameter.register_post_accumulate_grad_hook(complete) for parameter in trained)
        for hook in hooks:
            self._exits.callback(hook.remove)


def check_sharded(experiment: Experiment, *, overlaps: bool) -> None:
    """Raise ValueError for what a Team cannot do with a model under FSDP2."""
    if not overlaps:
        raise ValueError(f"method={experiment.method} needs all weights on each rank, and fully_shard divides them: take method=ddp")
    if experiment.coordination.allocation.has("observe"):
        raise ValueError(f"the passes of a model under fully_shard wait for other ranks, {UNMEASURED}")
