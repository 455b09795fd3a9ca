"""What a Team does under `hetsim-ddp-check`: it splits unevenly, keeps the gradients of the first step, and ends the script.

The command runs the script in several processes and then in one. As positions do not depend on the number of ranks, the one takes the
same global batch; the model's start is handed on in a file. Both leave the gradients in the folder that the variable names.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp.hook import not_compiled
from hetsim.policies.allocation import Allocation, Fixed

VARIABLE = "HETSIM_DDP_CHECK"
START, SERIAL, WEIGHTED = "start.pt", "serial.pt", "weighted.pt"
EPSILONS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Of the precisions in which torch may compute products of f32, by its names."""


class Check:
    """The gradients of the first step, by parameter: as they are reduced, and as plain averaging would have them."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.names: dict[int, str] = {}
        self.reduced: dict[str, torch.Tensor] = {}
        self.plain: dict[str, torch.Tensor] = {}
        self.group: Any = None
        self.epsilon = 0.0
        """The coarsest rounding in the computation, so far as it can be seen: of outputs of modules, of gradients, of torch's settings."""

    @property
    def allocation(self) -> Allocation:
        """The first rank takes N parts, the last one."""
        return Fixed(parts=[self.size - rank for rank in range(self.size)])

    def begin(self, ddp: DistributedDataParallel, shares: Callable[[], tuple[int, ...]]) -> None:
        """Several processes leave their start; a single one takes it. `shares` are those of the present step."""
        atexit.register(lambda: self.leave(shares()))
        self.group = ddp.process_group
        self.names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        for part in ddp.module.modules():
            part.register_forward_hook(not_compiled(self._computed))
        start = self.folder / START
        if self.size > 1:
            if self.rank == 0:
                torch.save(ddp.module.state_dict(), start)
        else:
            ddp.module.load_state_dict(torch.load(start, weights_only=True, map_location="cpu"))

    def _computed(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        """A module has computed this: under autocast, in a precision that its parameters do not show."""
        for tensor in tensors(output):
            self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
            if tensor.dtype == torch.float32:
                self.epsilon = max(self.epsilon, rounding_of_products(module, tensor.device))

    def before(self, bucket: Any) -> None:
        """The mean gradients of this rank: what plain averaging would make of them."""
        average = bucket.buffer().detach().clone() / self.size
        dist.all_reduce(average, group=self.group)
        self._take(self.plain, bucket, average)

    def after(self, bucket: Any, average: torch.Tensor) -> None:
        """The reduced gradients."""
        self._take(self.reduced, bucket, average)

    def _take(self, found: dict[str, torch.Tensor], bucket: Any, flat: torch.Tensor) -> None:
        self.epsilon = max(self.epsilon, torch.finfo(flat.dtype).eps)
        parts = torch.split(flat.detach().to("cpu", copy=True), [parameter.numel() for parameter in bucket.parameters()])
        found.update({self.names[id(parameter)]: part for parameter, part in zip(bucket.parameters(), parts, strict=True)})

    def end(self, shares: tuple[int, ...]) -> None:
        """After the first step: leave what was found, and end the script."""
        if self.reduced:
            self.leave(shares)
            raise SystemExit(0)

    def leave(self, shares: tuple[int, ...]) -> None:
        """Rank 0 writes what was found, once; also where the script ends by itself after its first step."""
        if self.rank == 0 and self.reduced:
            found = {"reduced": self.reduced, "plain": self.plain, "shares": list(shares), "epsilon": self.epsilon}
            torch.save(found, self.folder / (WEIGHTED if self.size > 1 else SERIAL))
        self.reduced = {}


def checked(rank: int, size: int) -> Check | None:
    """The check that the command asks for, by a variable of the environment; None if there is none."""
    folder = os.environ.get(VARIABLE)
    return Check(Path(folder), rank, size) if folder else None


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """Those of real numbers in a module's output."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from tensors(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from tensors(part)


def rounding_of_products(module: torch.nn.Module, device: torch.device) -> float:
    """Of products of f32 in a module of this kind, where torch's settings allow another precision, as they do for convolutions on a GPU."""
    kinds = {torch.nn.modules.conv._ConvNd: "conv", torch.nn.RNNBase: "rnn"}
    kind = next((name for of, name in kinds.items() if isinstance(module, of)), "matmul")
    backends: Any = torch.backends
    on_gpu = backends.cuda if kind == "matmul" else backends.cudnn
    return EPSILONS.get(getattr(on_gpu if device.type == "cuda" else backends.mkldnn, kind).fp32_precision, 0.0)


def distance(ones: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """‖one − other‖ / ‖other‖ over all parameters."""
    difference = sum(float((ones[name].double() - other.double()).pow(2).sum()) for name, other in others.items())
    size = sum(float(other.double().pow(2).sum()) for other in others.values())
    return float((difference / size) ** 0.5) if size else float(difference > 0)
