"""A process of a script under `hetsim-ddp-check`: it records the gradients of a few steps, and ends the script."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hetsim.gradcheck.draws import Draws
from hetsim.gradcheck.turning import VARIABLE, refused

STEPS = 6
"""The number of steps of the first optimizer after which the script ends."""
KEPT_ENTRIES = 2**16
"""The number of evenly spaced entries of each parameter's weights and gradient that are stored, because all steps are stored."""
PLAN, FROZEN = "plan.pt", "frozen"
not_compiled: Callable[[Any], Any] = torch.compiler.disable
EPSILONS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""The rounding errors of the precisions in which torch may compute products of f32, by their names."""
OWN_RANKS = (
    "the script starts its ranks itself (mp.spawn), and the check starts them as torchrun does: "
    "read RANK and WORLD_SIZE where they are set, and do not spawn"
)
ALONE = (
    "each of the {} processes trains by itself, in no process group with the others: call torch.distributed.init_process_group(), or give "
    "the script's option that does, such as --dist-url env://"
)

FLAT = "each rank of a FullyShardedDataParallel has only a flat part of the gradients, which cannot be compared: use fully_shard"


class Watch:
    """The records of this process. A single process follows a plan, which is in the folder."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[VARIABLE])
        self._rank, self._size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        path = self._folder / PLAN
        self._plan: dict[str, Any] | None = torch.load(path, weights_only=True) if path.is_file() else None
        self._draws = Draws(self._folder, self._rank, self._plan, self.leave)
        self._steps: list[dict[str, Any]] = []
        self._optimizers: dict[int, tuple[int, torch.optim.Optimizer]] = {}
        self._depth = 0
        """The number of optimizers' steps that are under way, one in another."""
        self._epsilon = 0.0
        """The coarsest visible rounding in the computation: of modules' outputs, of gradients, of torch's settings."""
        self._has_batch_norm = False
        self._frozen = (self._folder / FROZEN).is_file()
        self._called = weakref.WeakSet[nn.Module]()
        self._is_written = False

    def begin(self) -> None:
        """Watch this process from now on. Its random numbers are those of this rank in each check."""
        random.seed(self._rank + 1)
        np.random.seed(self._rank + 1)
        torch.manual_seed(self._rank + 1)
        self._draws.intercept()
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        nn.modules.module.register_module_forward_pre_hook(not_compiled(self._call))
        nn.modules.module.register_module_forward_hook(not_compiled(self._computed))

    # Steps

    def _before(self, optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._depth += 1
        if self._depth > 1:
            return None
        closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
        if closure is None:
            self._take(optimizer)
            return None
        calls = 0

        def watched() -> Any:
            nonlocal calls
            loss = closure()
            calls += 1
            if calls == 1:
                self._take(optimizer)
            return loss

        if "closure" in options:
            return arguments, {**options, "closure": watched}
        return (arguments[0], watched, *arguments[2:]), options

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the gradient, and in several processes the weights, for the single one."""
        parameters = parameters_of(optimizer)
        if all(parameter.grad is None for parameter in parameters):
            return
        if self._size > 1 and not (dist.is_initialized() and dist.get_world_size() == self._size):
            self._refuse(ALONE.format(self._size))
        number, _ = self._optimizers.setdefault(id(optimizer), (len(self._optimizers), optimizer))
        scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler, which a fused optimizer divides by itself
        weights, gradient, squares = [], [], 0.0
        for parameter in parameters:
            weight = complete(parameter.detach())
            grad = torch.zeros_like(weight) if parameter.grad is None else complete(parameter.grad.detach())
            if scale is not None:
                grad = grad / scale.to(grad.device)
            self._epsilon = max(self._epsilon, torch.finfo(grad.dtype).eps)
            squares += float(torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))) ** 2
            weights.append(weight)
            gradient.append(kept(grad))
        key = (number, self._draws.number, sum(step["key"][:2] == (number, self._draws.number) for step in self._steps))
        loader = self._draws.latest
        step = {"key": key, "loader": loader, "batches": len(self._draws.loaders[loader]) if loader else 0, "norm": squares**0.5}
        step |= {"gradient": gradient, "weights": [kept(weight) for weight in weights], "random": self._draws.random}
        if self._plan is None and self._rank == 0:
            torch.save(weights, self._folder / f"weights-{len(self._steps)}.pt")
        self._steps.append(step)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After a step in a single process, go on with the weights of several. After enough steps, leave."""
        self._depth -= 1
        if self._depth or not self._steps or self._optimizers.get(id(optimizer), (None,))[0] != self._steps[-1]["key"][0]:
            return
        key = self._steps[-1]["key"]
        if self._plan is not None and key in self._plan["following"]:
            weights = torch.load(Path(self._plan["folder"]) / f"weights-{self._plan['following'][key]}.pt", weights_only=True)
            with torch.no_grad():
                for parameter, weight in zip(parameters_of(optimizer), weights, strict=False):
                    place: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                    if place.shape == weight.shape:
                        place.copy_(weight)
        if sum(step["key"][0] == 0 for step in self._steps) >= STEPS and self._steps[-1]["key"][0] == 0:
            self.leave()

    # Modules

    def _call(self, module: nn.Module, _: Any) -> None:
        """Turn dropout off, and record or freeze batch norm."""
        for part in module.modules() if module not in self._called else ():
            self._called.add(part)
            if type(part).__name__ == "FullyShardedDataParallel":
                self._refuse(FLAT)
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
            elif isinstance(getattr(part, "dropout", None), float):  # of recurrent layers, of attention
                part.dropout = 0.0  # type: ignore[assignment]
            is_batch_norm = isinstance(part, nn.modules.batchnorm._BatchNorm) and not isinstance(part, nn.SyncBatchNorm)
            self._has_batch_norm |= is_batch_norm and part.training
        if self._frozen and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.training = False

    def _computed(self, module: nn.Module, _: Any, output: Any) -> None:
        """Record the precision of a module's output. Under autocast, it may differ from the parameters' precision."""
        for tensor in filter(torch.is_floating_point, tensors(output)):
            self._epsilon = max(self._epsilon, torch.finfo(tensor.dtype).eps)
            kind = tensor.device.type
            if torch.is_autocast_enabled(kind):
                self._epsilon = max(self._epsilon, torch.finfo(torch.get_autocast_dtype(kind)).eps)
            if tensor.dtype == torch.float32:
                self._epsilon = max(self._epsilon, rounding_of_products(module, tensor.device))

    # The end

    def refuse_own_ranks(self, processes: Sequence[Any]) -> None:
        """End the check if the script has started processes that are no loader's workers, and no process group."""
        if any(not process.daemon for process in processes) and not dist.is_initialized():
            self._refuse(OWN_RANKS)

    def _refuse(self, sentence: str) -> NoReturn:
        """End the script. The command prints the sentence."""
        refused(sentence)
        end()

    def write(self) -> None:
        """Write the records, once."""
        if self._is_written:
            return
        self._is_written = True
        draws = self._draws
        record = {name: getattr(draws, name) for name in ("loaders", "unbatched", "divided", "ended")}
        record |= {"steps": self._steps, "epsilon": self._epsilon, "has_batch_norm": self._has_batch_norm}
        path = self._folder / f"{self._rank}.pt"
        torch.save(record, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def leave(self) -> NoReturn:
        """Write the records, and end this process once all have written theirs."""
        self.write()
        while not all((self._folder / f"{rank}.pt").is_file() for rank in range(self._size)):
            time.sleep(0.02)
        end()


def end() -> NoReturn:
    """End this process and those that it has started, without the rest of the script."""
    for process in multiprocessing.active_children():
        process.terminate()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The trained parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def complete(tensor: Any) -> torch.Tensor:
    """The whole of a tensor that may be sharded or sparse."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.to_dense() if whole.layout is not torch.strided else whole


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Evenly spaced entries."""
    flat = tensor.reshape(-1)
    return flat[:: -(-len(flat) // KEPT_ENTRIES) or 1].to("cpu", copy=True)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a module's output."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(part)


def rounding_of_products(module: nn.Module, device: torch.device) -> float:
    """The rounding error of f32 products in such a module, if torch's settings allow less precision, as for convolutions on GPUs."""
    kinds: dict[Any, str] = {nn.modules.conv._ConvNd: "conv", nn.RNNBase: "rnn"}
    kind = next((name for of, name in kinds.items() if isinstance(module, of)), "matmul")
    backends: Any = torch.backends
    on_gpu = backends.cuda if kind == "matmul" else backends.cudnn
    return EPSILONS.get(getattr(on_gpu if device.type == "cuda" else backends.mkldnn, kind).fp32_precision, 0.0)
