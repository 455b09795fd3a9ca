"""A Team whose gradients are compared with one process': it changes an uneven split, stores gradients, and ends the script.

A caller runs the script in several processes and then in one. Positions do not depend on the number of ranks, so the single process
takes the same global batches. A file contains the model's initial weights. Both runs write their gradients to a folder, whose name is in
an environment variable.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp.copies import not_compiled
from hetsim.ddp.schedule import Data
from hetsim.ddp.used import Given, tensors
from hetsim.policies.allocation import Allocation, proportional

VARIABLE = "HETSIM_DDP_CHECK"
START, SERIAL, WEIGHTED = "start-{}.pt", "serial.pt", "weighted.pt"
MIN_STEPS = 6
KEPT_ENTRIES = 2**16
"""The number of evenly spaced entries of each parameter's gradient that are stored, because all steps are stored."""
EPSILONS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""The rounding errors of the precisions in which torch may compute products of f32, by their names."""


@dataclass(frozen=True)
class Turning(Allocation):
    """Uneven parts (N … 1), which rotate among the ranks after each window, so that the split changes as often as a measured one may."""

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        """The parts, the batch and the bounds."""
        parts = tuple(range(num_workers, 0, -1))
        return parts, batch_size, max_samples

    def shares(self, state: Any) -> tuple[int, ...]:
        """Shares in proportion to the parts."""
        parts, batch_size, max_samples = state
        return proportional(parts, batch_size, max_samples=max_samples)

    def observe(self, state: Any, timings: Sequence[Any], epoch: int = 0) -> Any:
        """The parts, rotated by one rank."""
        (first, *others), batch_size, max_samples = state
        return (*others, first), batch_size, max_samples


@dataclass(frozen=True)
class Shortened(Data):
    """An epoch of a few whole steps and the short last one, with samples from the whole data set."""

    whole: int = field(kw_only=True)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The first samples of the whole epoch's order."""
        return Data(self.whole, self.batch_size, self.seed, self.shuffle).order(epoch)[: self.num_samples]


class Check:
    """The gradients of each step and model, by parameter: reduced, plainly averaged, and weighted by samples."""

    allocation: Allocation = Turning()

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.num_models = 0
        self.steps: list[dict[str, Any]] = []
        """For each reduction: the gradients `reduced`, `plain` and `weighted`, the step's `number` and `shares`, and the model's `loss`."""
        self.num_steps = MIN_STEPS
        """The number of steps with reduced gradients after which the script ends."""
        self.epsilon = 0.0
        """The coarsest visible rounding in the computation: of modules' outputs, of gradients, of torch's settings."""
        self.batch_size = 0
        self.awaited: set[int] = set()
        """In a single process: the steps in which several processes reduced gradients. One process without no_sync reduces more often."""
        if size == 1 and (folder / WEIGHTED).is_file():
            several = torch.load(folder / WEIGHTED, weights_only=True, mmap=True)
            self.batch_size, self.awaited = several["batch_size"], {step["number"] for step in several["steps"]}

    def batch_of(self, batch_size: int) -> int:
        """The batch size of all ranks, also in a single process, because scripts may multiply it by the number of processes."""
        self.batch_size = self.batch_size or batch_size
        return self.batch_size

    def shorten(self, data: Data, look_ahead: int) -> Data:
        """An epoch in which the split changes twice, although loaders draw `look_ahead` steps ahead. The check runs whole epochs."""
        window = data.accumulate
        ahead = -(-look_ahead // window) * window
        num_whole = -(-max(MIN_STEPS, 2 * (2 * window + ahead) + window) // window) * window
        num_samples = num_whole * data.batch_size + data.num_samples % data.batch_size
        if num_samples < data.num_samples:
            data = Shortened(**{**vars(data), "num_samples": num_samples}, whole=data.num_samples)
        self.num_steps = -(-num_whole // data.num_steps()) * data.num_steps() // window
        return data

    def begin(self, ddp: DistributedDataParallel, loss: str, present: Callable[[], Given]) -> Compared:
        """Write the model's initial weights in several processes, or load them in a single one. `present` is the gradients' batch."""
        if not self.num_models:
            atexit.register(self.leave)
        for part in ddp.module.modules():
            part.register_forward_hook(not_compiled(self._computed))
        start = self.folder / START.format(self.num_models)
        self.num_models += 1
        if self.size > 1:
            if self.rank == 0:
                torch.save(ddp.module.state_dict(), start)
        else:
            ddp.module.load_state_dict(torch.load(start, weights_only=True, map_location="cpu"))
        return Compared(self, ddp, loss, present)

    def _computed(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        """Record the precision of a module's output. Under autocast, it may differ from the parameters' precision."""
        for tensor in filter(torch.is_floating_point, tensors(output)):
            self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
            if tensor.dtype == torch.float32:
                self.epsilon = max(self.epsilon, rounding_of_products(module, tensor.device))

    def end(self) -> None:
        """Called when the loop asks for a batch. After enough steps, write the gradients and end the script."""
        reduced = {step["number"] for step in self.steps if step["complete"]}
        if not (self.awaited <= reduced if self.awaited else len(reduced) >= self.num_steps):
            return
        self.leave()
        if threading.current_thread() is not threading.main_thread():  # one that draws ahead; the loop would wait for its next batch
            sys.stdout.flush()
            os._exit(0)
        raise SystemExit(0)

    def leave(self) -> None:
        """Rank 0 writes the gradients, once. Also called if the script ends by itself."""
        if steps := [step for step in self.steps if step["complete"] and (not self.awaited or step["number"] in self.awaited)]:
            self.steps = []
            if self.rank == 0:
                found = {"steps": steps, "epsilon": self.epsilon, "batch_size": self.batch_size}
                torch.save(found, self.folder / (WEIGHTED if self.size > 1 else SERIAL))


class Compared:
    """The gradients of one model."""

    def __init__(self, check: Check, ddp: DistributedDataParallel, loss: str, present: Callable[[], Given]) -> None:
        self._check, self._group, self._loss, self._present = check, ddp.process_group, loss, present
        self._names = {id(parameter): f"{check.num_models}.{name}" for name, parameter in ddp.module.named_parameters()}
        self._step: dict[str, Any] = {}

    def before(self, bucket: Any) -> None:
        """Record this rank's mean gradients: for plain averaging, and weighted by samples."""
        given = self._present()
        number, shares = given.number, given.step.shares
        if bucket.index() == 0:
            self._step = {"number": number, "shares": list(shares), "loss": self._loss, "complete": False}
            self._step |= {"reduced": {}, "plain": {}, "weighted": {}}
            self._check.steps.append(self._step)
        for kind, weight in (("plain", 1 / len(shares)), ("weighted", shares[self._check.rank] / sum(shares))):
            average = bucket.buffer().detach() * weight if weight else torch.zeros_like(bucket.buffer())
            dist.all_reduce(average, group=self._group)
            self._take(kind, bucket, average)

    def after(self, bucket: Any, average: torch.Tensor) -> None:
        """Record the reduced gradients."""
        self._take("reduced", bucket, average)
        self._step["complete"] |= bucket.is_last()

    def _take(self, kind: str, bucket: Any, flat: torch.Tensor) -> None:
        self._check.epsilon = max(self._check.epsilon, torch.finfo(flat.dtype).eps)
        parts = torch.split(flat.detach(), [parameter.numel() for parameter in bucket.parameters()])
        for parameter, part in zip(bucket.parameters(), parts, strict=True):
            self._step[kind][self._names[id(parameter)]] = part[:: -(-len(part) // KEPT_ENTRIES)].to("cpu", copy=True)


def checked(rank: int, size: int) -> Check | None:
    """The check that the command requests by an environment variable; None without a request."""
    folder = os.environ.get(VARIABLE)
    return Check(Path(folder), rank, size) if folder else None


def rounding_of_products(module: torch.nn.Module, device: torch.device) -> float:
    """The rounding error of f32 products in such a module, if torch's settings allow less precision, as for convolutions on GPUs."""
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
