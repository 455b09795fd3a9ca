"""By what a loss is divided. Its graph shows this before the backward pass, also where a mean is over other samples than the batch's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from hetsim.ddp.copies import not_compiled

MARK = "hetsim.ddp"
"""In the metadata of the nodes that computed a model's outputs."""
MAX_VISITS = 5000
"""Of nodes between a loss and the model's outputs."""
MEAN, SUM = 1, 2
"""torch's numbers for `reduction="mean"` and `"sum"`."""
FUNCTIONS = tuple(f"{name}Backward" for name in ("Sqrt", "Log", "Log10", "Log2", "Log1P", "Exp", "Pow", "Reciprocal"))
"""Of a mean: their mean over the ranks is not that of the whole batch."""
PRODUCT, SUMMED = "product", "sum"
TOLERANCE = 1e-6
"""Relative rounding of a divisor, such as a sum of class weights."""


class Divisor(NamedTuple):
    """What a node divides by."""

    number: int | torch.Tensor
    sizes: tuple[int, ...] = ()
    """Of the dimensions over which it takes the mean."""
    is_mean: bool = True
    """Whether it divides a sum over samples. Otherwise it may scale a loss, such as by the number of accumulated steps."""
    function: str = ""
    """No divisor, but what is computed of a mean, or a sum that nothing divides."""

    def fits(self, samples: int) -> bool:
        """Whether this is a mean over all `samples` samples."""
        number = float(self.number)
        return (
            self.has_rows(samples)
            and not self.function
            and not (math.isfinite(number) and abs(math.remainder(number, samples)) > TOLERANCE * abs(number))
        )

    def has_rows(self, samples: int) -> bool:
        """Whether it is taken over this number of rows, as far as its sizes are known."""
        return not self.sizes or self.sizes[0] % samples == 0 or samples in self.sizes


class Output(NamedTuple):
    """A model's output."""

    is_loss: bool
    """Whether it is a single number, so that the model computes its loss itself."""
    check: Callable[[Sequence[Divisor]], None]
    """Raises ValueError if a loss with these divisors would be weighted wrongly."""


def watch_losses() -> None:
    """Check the losses of wrapped models before each backward pass from now on."""
    backward = torch.autograd.backward
    if hasattr(backward, "checks_losses"):
        return

    @functools.wraps(backward)
    def checked(tensors: Any, *arguments: Any, **options: Any) -> None:
        check_losses(tensors)
        backward(tensors, *arguments, **options)

    torch.autograd.backward = not_compiled(checked)
    torch.autograd.backward.checks_losses = True  # type: ignore[attr-defined]


def check_losses(losses: Any) -> None:
    """ValueError with one sentence if a loss would be weighted wrongly, as far as its graph shows."""
    for loss in [losses] if isinstance(losses, torch.Tensor) else losses:
        if loss.grad_fn is None:
            continue
        try:
            found = list(_paths(loss.grad_fn))
        except (AttributeError, RuntimeError):  # this version of PyTorch shows other attributes of a node, or has freed the graph
            continue
        for output, divisors in found:
            output.check(divisors)


def _paths(loss: Any) -> Iterator[tuple[Output, tuple[Divisor, ...]]]:
    """The outputs that the loss is computed from, each with the divisors between them.

    Paths that may contain an unknown divisor are left out: through a function of the script's own, or through a sum that may be weighted.
    """
    waiting: list[tuple[Any, tuple[Divisor, ...], Output | None]] = [(loss, (), None)]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_VISITS:
        visit = node, divisors, within = waiting.pop()
        if visit in seen:
            continue
        seen.add(visit)
        output = node.metadata.get(MARK)
        if output is not None and within is None:
            if not output.is_loss or any(each.is_mean for each in divisors):
                yield output, divisors
                continue
            within = output
        found = divisor_of(node)
        if found is None and within is None and not any(each.is_mean for each in divisors):
            found = function_of(node, divisors)
        divisors = divisors if found is None else (*divisors, found)
        if within is not None and found is not None and found.is_mean:  # further means are those of layers
            if node.name().startswith("NllLoss"):
                yield within, divisors
        elif not (isinstance(node, torch.autograd.function.BackwardCFunction) or is_sum(node)):
            of = sum_under(node) if found is not None and found.is_mean else None
            waiting += [(each, divisors, within) for each, _ in (of or node).next_functions if each is not None]


def divisor_of(node: Any) -> Divisor | None:
    """What this node divides by; None if it does not divide, or by something that depends on the weights."""
    name = node.name()
    if name.startswith("MeanBackward"):
        sizes = node._saved_self_sym_sizes
        dims = getattr(node, "_saved_dim", ()) or range(len(sizes))
        return mean_over([sizes[signed(dim)] for dim in dims])
    if name.startswith("DivBackward"):
        by = torch.as_tensor(node._saved_other)
        is_number = by.numel() == 1 and not by.requires_grad and not by.is_complex()
        return Divisor(by, is_mean=sum_under(node) is not None) if is_number else None
    if getattr(node, "_saved_reduction", None) != MEAN:
        return None
    if name.startswith("NllLoss"):
        return Divisor(node._saved_total_weight, tuple(node._saved_target.shape))
    return mean_over(node._saved_self.shape)


def function_of(node: Any, above: Sequence[Divisor]) -> Divisor | None:
    """What this node, which is not below a mean, computes of a loss, where that may be wrong."""
    name = node.name().rstrip("0123456789")
    if name == "MulBackward":  # it may divide a sum
        name = PRODUCT
    elif getattr(node, "_saved_reduction", None) == SUM and not above:
        return Divisor(1, tuple(node._saved_self.shape), is_mean=False, function=SUMMED)
    elif name not in FUNCTIONS:
        return None
    function = name.removesuffix("Backward").lower()
    return None if any(each.function == function for each in above) else Divisor(1, is_mean=False, function=function)


def mean_over(sizes: Sequence[int]) -> Divisor:
    """Of a mean over dimensions of these sizes."""
    return Divisor(math.prod(sizes), tuple(sizes))


def is_sum(node: Any) -> bool:
    """Whether it adds up samples: over all dimensions, or over the first."""
    if not node.name().startswith(("SumBackward", "NansumBackward")):
        return False
    sizes = node._saved_self_sym_sizes if hasattr(node, "_saved_self_sym_sizes") else node._saved_self.shape
    dims = getattr(node, "_saved_dim", None) or range(len(sizes))
    return any(signed(dim) in (0, -len(sizes)) for dim in dims)


def sum_under(node: Any) -> Any:
    """The sum over samples that this node divides; None if it divides something else."""
    under = node.next_functions[0][0]
    while under is not None and under.name() in ("NegBackward0", "ToCopyBackward0"):
        under = under.next_functions[0][0]
    return under if under is not None and is_sum(under) else None


def signed(dim: int) -> int:
    """A dimension as it was given: torch shows negative ones without a sign."""
    return dim - 2**64 if dim >= 2**63 else dim
