"""The divisors of a loss. Its graph shows them before the backward pass, also for a mean over other samples than the batch's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from hetsim.ddp import nodes
from hetsim.ddp.copies import not_compiled
from hetsim.ddp.nodes import GATHERED, NONLINEAR, PRODUCT, RATIO, SUMMED, UNDIVIDED, Divisor

MARK = "hetsim.ddp"
"""The key in the metadata of nodes that computed a model's outputs."""
MAX_VISITS = 5000
"""The maximum number of nodes to visit between a loss and the model's outputs."""


class Output(NamedTuple):
    """A model's output."""

    is_loss: bool
    """Whether the output is a single number, so that the model computes its loss itself."""
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
    """Raise ValueError if a loss would be weighted wrongly, as far as its graph shows."""
    for loss in [losses] if isinstance(losses, torch.Tensor) else losses:
        if loss.grad_fn is None:
            continue
        try:
            found = list(_paths(loss.grad_fn))
        except (AttributeError, RuntimeError):  # this version of PyTorch shows other attributes of a node, or has freed the graph
            continue
        for output, divisors in found:
            output.check(divisors)


Path = tuple[Divisor, ...]


def _paths(loss: Any) -> Iterator[tuple[Output, Path]]:
    """The outputs that the loss is computed from, each with the divisors between them.

    Paths that may contain an unknown divisor are left out. Such paths contain a function of the script's own, or a sum that may be
    weighted.
    """
    waiting: list[tuple[Any, Path, Output | None]] = [(loss, (), None)]
    seen: set[Any] = set()
    while waiting and len(seen) < MAX_VISITS:
        visit = node, divisors, within = waiting.pop()
        if visit in seen:
            continue
        seen.add(visit)
        output = node.metadata.get(MARK)
        if output is not None and within is None:
            if not output.is_loss or any(each.is_mean for each in divisors) or (divisors and divisors[0] is GATHERED):
                yield output, divisors
                continue
            within = output
        if within is None:
            waiting += [(each, path, None) for each, path in _below(node, divisors)]
            continue
        found = nodes.divisor_of(node)
        if found is not None and found.is_mean:  # further means are those of layers
            if node.name().startswith("NllLoss") or nodes.is_summed_loss(nodes.sum_under(node)):
                yield within, (*divisors, found)
        elif node.name().startswith("NllLoss") and nodes.is_summed_loss(node):
            if not divisors:
                yield within, (Divisor(1, nodes.sizes_of(node), is_mean=False, function=SUMMED),)
        elif not (isinstance(node, torch.autograd.function.BackwardCFunction) or nodes.is_sum(node)):
            path = divisors if found is None else (*divisors, found)
            waiting += [(each, path, within) for each, _ in node.next_functions if each is not None]


def _below(node: Any, above: Path) -> Iterator[tuple[Any, Path]]:
    """The nodes from which this node is computed, each with the divisors on the path from the loss."""
    following, last = node.next_functions, above[-1].function if above else ""
    if last == GATHERED.function or nodes.communicates(node):
        path: Path = (GATHERED,)
    elif last != UNDIVIDED and nodes.kind_of(node) in nodes.PASSING:
        path = above
    elif isinstance(node, torch.autograd.function.BackwardCFunction):
        return
    elif nodes.is_sum(node):
        if last in ("", PRODUCT, SUMMED) and above:  # it may be weighted
            return
        rows = nodes.mean_over(nodes.sizes_of(node))
        path = (rows._replace(number=1, is_mean=False, function=UNDIVIDED),) if last in ("", UNDIVIDED) else (*above, rows)
    elif last == UNDIVIDED:
        if (found := nodes.batch_function(node)) is not None:
            path = (found,)
        elif nodes.kind_of(node) in NONLINEAR:
            path = (above[-1]._replace(function=SUMMED),)
        elif nodes.is_unscaled(node):
            path = above
        else:
            return
    else:
        found = nodes.divisor_of(node) or nodes.between_samples(node)
        if found is None and not any(each.is_mean for each in above):
            found = nodes.function_of(node, above)
        path = above if found is None else (*above, found)
        if found is not None and found.is_mean:
            under = nodes.sum_under(node)
            following = node.next_functions if under is None or MARK in under.metadata else under.next_functions
        elif found is None and nodes.kind_of(node) == "DivBackward" and node._saved_other.numel() == 1:
            upper, (lower, _) = node.next_functions
            if lower is not None:
                yield lower, (*above, Divisor(1, is_mean=False, function=RATIO))
                following = (upper,)
    yield from ((each, path) for each, _ in following if each is not None)
