"""The divisor of a node in a loss's graph, or its function of all samples of a rank."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

MEAN, SUM = 1, 2
"""torch's numbers for `reduction="mean"` and `"sum"`."""
TOLERANCE = 1e-6
"""The relative rounding error of a divisor, such as a sum of class weights."""
PRODUCT, SUMMED, UNDIVIDED, RATIO, BETWEEN = "product", "sum", "sum so far", "ratio", "between"
FUNCTIONS = {f"{name}Backward": name.lower() for name in ("Sqrt", "Log", "Log10", "Log2", "Log1P", "Exp", "Pow", "Reciprocal")}
"""Functions of a mean. Their mean over the ranks is not their value for the whole batch."""
REDUCTIONS = {
    "LinalgVectorNormBackward": "norm", "NormBackward": "norm", "DistBackward": "norm", "MaxBackward": "max", "AmaxBackward": "max",
    "MinBackward": "min", "AminBackward": "min", "AminmaxBackward": "min or max", "MedianBackward": "median", "NanmedianBackward": "median",
    "LogsumexpBackward": "logsumexp", "ProdBackward": "prod", "StdBackward": "std", "VarBackward": "var",
}  # fmt: skip
"""Reductions over samples. They are wrong for the same reason as functions of a mean."""
LINEAR = {
    f"{name}Backward"
    for name in (
        "Neg", "Sub", "Rsub", "Add", "Pow", "Abs", "Sqrt", "Relu", "Clamp", "ClampMin", "ClampMax", "Sum", "Mean", "View", "UnsafeView",
        "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Gather", "Index", "Select", "Slice", "T", "Transpose", "Permute", "Clone",
        "ToCopy", "MseLoss", "SmoothL1Loss", "HuberLoss", "Mul", "NllLoss", "NllLoss2D",
    )
}  # fmt: skip
"""Nodes that divide nothing, except products with constants, but may pass on a divisor of the model's output."""
NONLINEAR = {
    f"{name}Backward"
    for name in ("LogSoftmax", "Softmax", "Exp", "Log", "Sigmoid", "LogSigmoid", "Tanh", "Softplus", "BinaryCrossEntropyWithLogits")
}
"""Nodes whose output does not scale with a factor of their input."""
PASSING = {
    f"{name}Backward"
    for name in ("LogSoftmax", "Softmax", "Add", "Sub", "Rsub", "Neg", "View", "UnsafeView", "T", "Transpose", "Addmm", "ToCopy", "Select")
}
"""Nodes that do not matter on a path without an undivided sum."""
COLLECTIVE = re.compile(r"_?(all_gather|all_reduce|reduce_scatter|all_to_all)\w*|broadcast")
"""The functions of torch.distributed whose gradients come from other ranks."""
PAIRS = {"MmBackward": ("self", "mat2"), "BmmBackward": ("self", "mat2"), "CdistBackward": ("x1", "x2"), "PdistBackward": ("self", "self")}
"""Attributes of nodes with two inputs."""
DEPTH = 3
"""The depth of calls up to which a function's code is searched for collectives."""


class Divisor(NamedTuple):
    """The divisor of a node."""

    number: int | torch.Tensor
    sizes: tuple[int, ...] = ()
    """The sizes of the dimensions over which the node takes the mean."""
    is_mean: bool = True
    """Whether it divides a sum over samples. Otherwise it may scale a loss, such as by the number of accumulated steps."""
    function: str = ""
    """If not empty, this is no divisor, but a function of a mean or of all samples, or an undivided sum."""
    divides_terms: bool = False
    """Whether the node divides a sum of terms, which may be one term for each sample."""

    def fits(self, samples: int) -> bool:
        """Whether this is a mean over all `samples` samples."""
        number = float(self.number)
        return (
            self.has_rows(samples)
            and not self.function
            and not (math.isfinite(number) and abs(math.remainder(number, samples)) > TOLERANCE * abs(number))
        )

    def has_rows(self, samples: int) -> bool:
        """Whether the mean is over this number of rows, as far as its sizes are known."""
        return not self.sizes or self.sizes[0] % samples == 0 or samples in self.sizes


GATHERED = Divisor(1, is_mean=False, function="gathered")
"""A gather of other ranks' samples, whose gradients arrive here."""


def divisor_of(node: Any) -> Divisor | None:
    """The divisor of this node; None if the node does not divide, or divides by a number that depends on the weights."""
    name = node.name()
    if name.startswith("MeanBackward"):
        sizes = node._saved_self_sym_sizes
        dims = getattr(node, "_saved_dim", ()) or range(len(sizes))
        return mean_over([sizes[signed(dim)] for dim in dims])
    if name.startswith("DivBackward"):
        by = torch.as_tensor(node._saved_other)
        is_number = by.numel() == 1 and not by.requires_grad and not by.is_complex()
        if not is_number:
            return None
        return Divisor(by, is_mean=sum_under(node) is not None, divides_terms=kind_of(node.next_functions[0][0]) == "AddBackward")
    if getattr(node, "_saved_reduction", None) != MEAN:
        return None
    if name.startswith("NllLoss"):
        return Divisor(node._saved_total_weight, tuple(node._saved_target.shape))
    return mean_over(node._saved_self.shape)


def function_of(node: Any, above: Sequence[Divisor]) -> Divisor | None:
    """A function of a loss in this node, which is not below a mean, that may make the loss wrong; else None."""
    name = kind_of(node)
    if name in REDUCTIONS:
        return batch_function(node)
    if name == "MulBackward":  # it may divide a sum
        function = PRODUCT
    elif is_summed_loss(node) and not above:
        return Divisor(1, tuple(node._saved_self.shape), is_mean=False, function=SUMMED)
    elif name in FUNCTIONS:
        function = FUNCTIONS[name]
    else:
        return None
    return None if any(each.function == function for each in above) else Divisor(1, is_mean=False, function=function)


def batch_function(node: Any) -> Divisor | None:
    """A norm, maximum or similar function over samples; None for other nodes."""
    function = REDUCTIONS.get(kind_of(node))
    return None if function is None else reduction_of(node, function)


def reduction_of(node: Any, function: str) -> Divisor | None:
    """A reduction over all samples; None if the node keeps the first dimension."""
    sizes = sizes_of(node)
    dims = getattr(node, "_saved_dim", None)
    dims = range(len(sizes)) if dims is None or dims == () else (dims,) if isinstance(dims, int) else dims
    return Divisor(1, sizes, is_mean=False, function=function) if any(signed(dim) in (0, -len(sizes)) for dim in dims) else None


def sizes_of(node: Any) -> tuple[int, ...]:
    """The shape of the node's input."""
    return tuple(node._saved_self_sym_sizes if hasattr(node, "_saved_self_sym_sizes") else node._saved_self.shape)


def between_samples(node: Any) -> Divisor | None:
    """A product of samples with each other, or a change of their order; None for other nodes."""
    name = kind_of(node)
    if name in ("RollBackward", "FlipBackward"):
        dims = node._saved_dims
        return Divisor(1, is_mean=False, function=BETWEEN) if not dims or 0 in map(signed, dims) else None
    if name not in PAIRS:
        return None
    one, other = (getattr(node, f"_saved_{each}") for each in PAIRS[name])
    if one is None or other is None or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return None
    return Divisor(1, tuple(one.shape[-2:]), is_mean=False, function=BETWEEN) if one.dim() == 2 or len(one) == 1 else None


def is_unscaled(node: Any) -> bool:
    """Whether this node, below a sum, does not divide by a constant and keeps the samples apart."""
    name = kind_of(node)
    if name == "MulBackward":
        return all(each is not None for each, _ in node.next_functions)
    if name == "MeanBackward":
        return reduction_of(node, "") is None
    return name in LINEAR and getattr(node, "_saved_weight", None) is None


def communicates(node: Any) -> bool:
    """Whether this node belongs to an autograd function whose gradients come from other ranks."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return "c10d" in node.name() or _communicates(type(node)._forward_cls)  # type: ignore[attr-defined]


@functools.cache
def _communicates(function: Any) -> bool:
    return calls_collectives(function.forward, DEPTH) or calls_collectives(function.backward, DEPTH)


def calls_collectives(function: Any, depth: int) -> bool:
    """Whether the code of a function, or of functions that it calls by name, contains a collective."""
    code = getattr(function, "__code__", None)
    if code is None or not depth:
        return False
    called = (function.__globals__.get(name) for name in code.co_names)
    return any(map(COLLECTIVE.fullmatch, code.co_names)) or any(calls_collectives(each, depth - 1) for each in called)


def mean_over(sizes: Sequence[int]) -> Divisor:
    """The divisor of a mean over dimensions of these sizes."""
    return Divisor(math.prod(sizes), tuple(sizes))


def is_sum(node: Any) -> bool:
    """Whether the node sums over samples: over all dimensions, or over the first."""
    return kind_of(node) in ("SumBackward", "NansumBackward") and reduction_of(node, "") is not None


def kind_of(node: Any) -> str:
    """The node's name without a number."""
    return without_number(node.name())


@functools.cache
def without_number(name: str) -> str:
    """`Name` of `Name0`."""
    return name.rstrip("0123456789")


def sum_under(node: Any) -> Any:
    """The sum over samples that this node divides; None if it divides something else."""
    under = node.next_functions[0][0]
    while under is not None and under.name() in ("NegBackward0", "ToCopyBackward0"):
        under = under.next_functions[0][0]
    return under if under is not None and (is_sum(under) or is_summed_loss(under)) else None


def is_summed_loss(node: Any) -> bool:
    """Whether the node is a loss function of torch with `reduction="sum"`."""
    return getattr(node, "_saved_reduction", None) == SUM


def signed(dim: int) -> int:
    """A dimension as the user gave it. torch shows negative dimensions without a sign."""
    return dim - 2**64 if dim >= 2**63 else dim
