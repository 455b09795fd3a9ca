"""Find the forward passes of arriving gradients: their batch, and the number of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from hetsim.ddp.copies import not_compiled
from hetsim.ddp.divisors import MARK, Output
from hetsim.ddp.nodes import BETWEEN, PRODUCT, RATIO, SUMMED, UNDIVIDED, Divisor
from hetsim.ddp.used import Given, tensors

TWO_BATCHES = (
    "one backward pass computes gradients of two batches whose shares differ ({} and {}), and one weight cannot be right for both: call "
    "backward for each batch before the model gets the next one"
)
PARTS = (
    "the model was called with {} samples of a batch of {}, whose means may count wrongly: use equal parts (Team(…, multiple_of=k)), or "
    "call team.count(number) before backward, or, for a loss over other samples, wrap with loss='global' and use team.scale"
)
DIVIDED = (
    "the loss is a mean over {:g} where this rank has {} samples, and would be weighted by these: call team.count(number) before "
    "backward, with the number that divides the loss, or wrap with loss='global'"
)
FUNCTION = (
    "the loss is {} over this rank's samples, and no weights of the ranks make it that of the whole batch: take the mean, or compute it "
    "per sample and then the mean, or wrap with loss='global' to average over the ranks as plain DDP does"
)
NOT_DIVIDED = "the loss is a sum over this rank's samples, and a Team weights means: divide it by their number, as reduction='mean' does"
COMPARED = (
    "the loss compares this rank's samples with each other, which depends on the rank's share: gather the samples of all ranks by "
    "torch.distributed.nn.functional.all_gather, with loss='global' and team.scale(loss), or take loss='global' alone, as plain DDP does"
)
GATHERS = (
    "the loss has samples of other ranks (all_gather), and gradients that arrive from their losses would get this rank's weight: wrap with "
    "loss='global', and call team.scale(loss) if the loss is a mean over this rank's samples"
)


class Forward(NamedTuple):
    """A forward pass: its batch, and the samples in the model's input."""

    given: Given
    samples: int
    assigned: int
    """The number of samples that the Team assigned."""


class Steps(Protocol):
    """Events of the current step."""

    def called(self, inputs: Any) -> Forward | None:
        """A model was called. Returns the forward pass with these inputs; None if the loop has no batch yet."""

    def arrive(self, forward: Forward, loss: str) -> None:
        """The gradients of this forward pass are about to arrive."""

    def divided(self, forward: Forward, loss: str, divisors: Sequence[Divisor]) -> None:
        """A loss of this kind, with these divisors, was computed from the output of this forward pass."""


class Forwards:
    """The forward passes of a model whose gradients have arrived since the last reduction."""

    def __init__(self, steps: Steps, loss: str) -> None:
        self._steps, self._loss = steps, loss
        self._arrived: list[Forward] = []
        self._arrive = not_compiled(self._arrive_at)

    def __call__(self, _: torch.nn.Module, arguments: Any, options: Any, output: Any) -> None:
        """Register hooks on an output that the model has returned. They report when its gradients arrive."""
        forward = self._steps.called((arguments, options)) if torch.is_grad_enabled() else None
        if forward is None:
            return
        arrive, check = partial(self._arrive, [forward]), partial(self._steps.divided, forward, self._loss)
        for tensor in tensors(output):
            if (node := tensor.grad_fn) is not None:
                tensor.register_hook(arrive)  # type: ignore[no-untyped-call]
                metadata: Any = node.metadata
                metadata[MARK] = Output(tensor.dim() == 0, check)

    def taken(self) -> Sequence[Forward]:
        """The forward passes whose gradients have arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def _arrive_at(self, new: list[Forward], _: torch.Tensor) -> None:
        """Report the first gradients at an output. `new` contains its forward pass until then."""
        if new:
            forward = new.pop()
            self._steps.arrive(forward, self._loss)
            self._arrived.append(forward)


def check_divisors(divisors: Sequence[Divisor], *numbers: int) -> None:
    """Raise ValueError unless a loss with these divisors is a mean over one of these numbers of samples.

    A loss may have several divisors: of samples, of tasks, of accumulated steps.
    """
    if len(divisors) == 1 and divisors[0].is_mean and divisors[0].fits(numbers[0]):
        return
    means = [each for each in divisors if each.is_mean]
    several = [number for number in numbers if number > 1]
    for place, (_, sizes, _, function, _) in enumerate(divisors):
        has_rows = any(map(divisors[place].has_rows, several))
        if function == BETWEEN and has_rows:
            raise ValueError(COMPARED)
        if function in ("", PRODUCT, BETWEEN) or any(each.divides_terms and each.number in several for each in divisors[:place]):
            continue
        if function in (SUMMED, UNDIVIDED):
            if has_rows:
                raise ValueError(NOT_DIVIDED)
        elif sizes:
            if has_rows:
                raise ValueError(FUNCTION.format(f"the {function}"))
        elif any(each.fits(number) for each in means for number in several):
            raise ValueError(FUNCTION.format("divided by a mean or sum" if function == RATIO else f"the {function} of a mean or sum"))
    if means and not any(each.fits(number) for each in divisors for number in numbers):
        last = means[-1]
        raise ValueError(DIVIDED.format(float(last.number if last.has_rows(numbers[0]) else last.sizes[0]), numbers[0]))


def samples_in(inputs: Any, given: Given, assigned: int) -> int:
    """The samples of a batch in a model's input, if it clearly is a part of the batch or more than the batch; else `assigned`.

    A tensor counts if its shape is that of a tensor of the batch except for the first dimension, and it has two dimensions or the same
    memory. A batch with equal first and second dimensions may have its samples in the second.
    """
    for tensor in inputs[0]:  # most models take a tensor of the batch first
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
            break
        if tensor.shape[0] == assigned != tensor.shape[1] and tensor.shape in given.shapes:
            return assigned
    shapes = {shape[1:] for shape in given.shapes if shape and shape[0] == assigned and shape[1:2] != (assigned,)}
    found = set[int]()
    for tensor in tensors(inputs):
        shape = tensor.shape
        if shape and shape[1:] in shapes and (len(shape) > 1 or tensor.untyped_storage().data_ptr() in given.places):
            if shape[0] == assigned:
                return assigned
            found.add(shape[0])
    return found.pop() if len(found) == 1 else assigned


def check_parts(arrived: Sequence[Forward], assigned: int) -> None:
    """Raise ValueError unless these forward passes of one batch have equal parts that together are the whole batch."""
    sizes = [forward.samples for forward in arrived]
    if any(size % assigned for size in sizes) and (len(set(sizes)) > 1 or sum(sizes) % assigned):
        raise ValueError(PARTS.format(", ".join(map(str, sizes[:4])), assigned))
