"""The interface of a user's own file: a function that makes a model, data, a loss and metrics (docs/guide/own-workload.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hetsim.trust.names import MARK

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model with its training data, loss, test data and metrics.

    `torch.utils.data.default_collate` makes a batch from samples. If a batch is a tuple, the last entry is the target, and the other
    entries are the model's arguments: with (x, y), outputs = model(x) and the loss is loss(outputs, y). Any other batch, such as a tensor
    or a dictionary, is passed to both: outputs = model(batch), loss(outputs, batch). Floating-point numbers are converted to the run's
    `dtype`.
    """

    model: Any
    """A torch.nn.Module."""
    train: Any
    """A map-style torch.utils.data.Dataset, with `__len__` and `__getitem__`."""
    loss: Callable[[Any, Any], Any]
    """A function of outputs and targets. It returns their mean loss, a tensor with one entry."""
    test: Any = None
    """Another map-style Dataset, for `test_loss` and the metrics."""
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """The metrics of the test set by name. Each is a function of outputs and targets that returns a mean over the samples, a number."""
    collate: Callable[[list[Any]], Any] | None = None
    """A function that makes a batch from a list of samples. None: default_collate."""


def workload(function: F) -> F:
    """Mark a function that returns a `Training` as a workload, so that a config can name it.

    Args:
        function: your function. Its arguments are set by `workload.options` of the config.

    Returns:
        The same function.
    """
    setattr(function, MARK, True)
    return function
