"""A model with its weights in one flat vector, and gradients in the same form. Tasks that train a model share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from hetsim.effects import Batch
from hetsim.workloads.device import Device
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import Bucket, OptimizerRecipe, ParameterSpec, Piece, Task
from hetsim.workloads.tasks.backward import FlopShares, Terms, Watcher
from hetsim.workloads.tasks.sequence import word

LEAST_TOGETHER, LEAST_ON_GPU = 16, 2
"""The smallest number of gradients that a CPU, or a GPU, computes faster together."""
COUNTED_SAMPLES = 2
"""The number of samples in the batch over which operations are counted: enough for batch norm."""

# The backward pass of torch.autograd.grad, whose own Python takes as long as a tenth of a small model's gradient
_engine: Any = torch.autograd.Variable._execution_engine
_run_backward = _engine.run_backward
# The consecutive views of a vector in one call, in half the time of torch.split. A part without numbers has one dimension.
_unflattened: Any = torch._C._nn.unflatten_dense_tensors


class FlatModel:
    """The flat vector is [parameters | running statistics | 1] for a model with batch norm, [parameters] for others.

    A worker starts from the global statistics, updates them by its own batch and sends back [gradient | new statistics | 1].
    The committed statistics are the weighted mean of those that make a version: of all workers with a barrier, of one
    worker where each gradient is applied on arrival. Parameters that require no gradient, and buffers that are not among the
    `statistics`, such as integer ones, keep their initial values and are no part of the vector.
    """

    def __init__(self, model: nn.Module, statistics: Sequence[torch.Tensor], *, seed: int, device: Device) -> None:
        self.model = model
        self.seed = seed
        self.device = device
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._parameters = tuple(parameter for _, parameter in trained)
        hidden, ends = _hidden_matrices(model), list(accumulate(self.sizes, initial=0))
        self.parameters = tuple(
            ParameterSpec(name, start, tuple(parameter.shape), parameter in hidden)
            for (name, parameter), start in zip(trained, ends, strict=False)
        )
        self.num_parameters: int = sum(parameter.numel() for parameter in self._parameters)
        one = [self._parameters[0].new_ones(1)] if statistics else []
        self.initial = torch.cat([tensor.detach().reshape(-1) for tensor in (*self._parameters, *statistics, *one)])
        """The vector of the model's initial values."""
        self._names = [name for name, _ in trained]
        averaged = set(map(id, statistics))
        self._statistics = {name: tensor.shape for name, tensor in model.named_buffers() if id(tensor) in averaged}
        self._placed: torch.Tensor | None = None
        """The vector into which weights are copied. None: the parameters are views of the given weights, as the model only reads them."""
        self._tail: list[torch.Tensor] = []
        if statistics or not (device.in_cpu_memory and _only_reads(model)):
            self._placed = self.initial.clone()
            _view([*self._parameters, *statistics], self._placed)
            self._tail = [self._placed[self.num_parameters : -1], *one] if statistics else []
        self._one = self.initial.new_ones(())
        self._watcher: Watcher | None = None

    def place(self, at: torch.Tensor, *, training: bool) -> None:
        """Set the model's weights to `at`: to a copy if the model may write into them, for example into running statistics."""
        if self._placed is None:
            _view(self._parameters, at)
        else:
            self._placed.copy_(at)
        if self.model.training != training:  # `train` visits every module
            self.model.train(training)

    def gradient(self, at: torch.Tensor, batch: Batch, loss: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
        """The gradient of `loss()`, a mean over this batch, at these weights, and the loss."""
        # dropout draws from (seed, pool, first position): the same numbers on every rank
        drawn = word(self.seed, batch.start, stream=1, pool=batch.pool) >> 32
        torch.default_generator.manual_seed(drawn)
        self.device.seed(drawn)
        self.place(at, training=True)
        with self.device.forward():
            mean = loss()
        if self._watcher is not None:
            self._watcher.forward_done(self._tail)
        gradients = _run_backward((mean,), (self._one,), False, False, self._parameters, True, accumulate_grad=False)
        if self._watcher is not None:
            return self._watcher.backward_done(), mean.item()
        vectors = [
            (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)
            for gradient, parameter in zip(gradients, self._parameters, strict=True)
        ]
        return torch.cat([*vectors, *self._tail]), mean.item()

    def gradients(
        self, at: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], loss: Callable[..., torch.Tensor]
    ) -> list[tuple[torch.Tensor, float]]:
        """For each of the weights, the gradient of `loss(model, *its inputs)`, and the loss, in one pass by `torch.func.vmap`.

        The first dimension of each of the `inputs` is that of `at`. Raises RuntimeError for a model that vmap cannot take.
        """
        num = self.num_parameters
        vectors = torch.stack(list(at))
        parameters = vectors[:, :num].requires_grad_()
        columns = torch.split(parameters, self.sizes, 1)
        by_name = {
            name: part.view(len(part), *parameter.shape)
            for name, part, parameter in zip(self._names, columns, self._parameters, strict=True)
        }
        # contiguous, as batch norm would otherwise write into a copy
        sizes = [shape.numel() for shape in self._statistics.values()]
        tails = torch.split(vectors[:, num:-1], sizes, 1) if sizes else ()
        statistics = {
            name: tail.clone().view(len(tail), *shape) for (name, shape), tail in zip(self._statistics.items(), tails, strict=True)
        }
        self.model.train()

        def one(values: dict[str, torch.Tensor], *example: torch.Tensor) -> torch.Tensor:
            return loss(partial(torch.func.functional_call, self.model, values), *example)

        with self.device.forward():
            means = torch.func.vmap(one)(by_name | statistics, *inputs)
        (gradients,) = torch.autograd.grad(means.sum(), [parameters])
        if statistics:
            gradients = torch.cat(
                [gradients, *(tensor.flatten(1) for tensor in statistics.values()), gradients.new_ones(len(gradients), 1)], 1
            )
        return list(zip(gradients, means.tolist(), strict=True))

    @property
    def least_together(self) -> int | None:
        """The smallest number of gradients that `gradients` computes faster than one by one; None for models that it cannot or should not.

        A model with dropout draws random numbers for each batch. On a CPU, convolutions are slower together.
        """
        layers = list(self.model.modules())
        if any(isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 for layer in layers):
            return None
        if not self.device.in_cpu_memory:
            return LEAST_ON_GPU
        return None if any(isinstance(layer, nn.modules.conv._ConvNd) for layer in layers) else LEAST_TOGETHER

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Within this context, `watcher` gets each parameter's gradient as soon as it is complete, and makes the vector of `gradient`."""
        register: Any = torch.Tensor.register_hook
        hooks = [register(parameter, partial(watcher.arrived, i)) for i, parameter in enumerate(self._parameters)]
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None
            for hook in hooks:
                hook.remove()

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each parameter, in the order of the vector."""
        return [parameter.numel() for parameter in self._parameters]


class FlatTask(Task):
    """A task with the vectors of a flat model."""

    gradients_are_new = True
    flat: FlatModel

    @cached_property
    def least_together(self) -> int | None:  # type: ignore[override]
        """That of the model, if the task computes gradients together."""
        return None if type(self).gradients is Task.gradients else self.flat.least_together

    def parameters(self) -> Sequence[ParameterSpec]:
        return self.flat.parameters

    def pieces(self) -> Sequence[Piece] | None:
        return self._pieces

    @cached_property
    def _pieces(self) -> Sequence[Piece] | None:
        shares = FlopShares(self.flat.sizes, len(self.flat.initial))
        with self.flat.watched(shares), shares.counting():
            self.gradient(self.flat.initial, Batch(0, min(COUNTED_SAMPLES, self.num_samples)))
        return shares.pieces()

    def terms(
        self, at: torch.Tensor, batch: Batch, factor: float, buckets: Sequence[Bucket], complete: Callable[[int, torch.Tensor], None]
    ) -> tuple[torch.Tensor, float]:
        with self.flat.watched(Terms(self.flat.sizes, at, factor, buckets, complete)):
            return self.gradient(at, batch)

    def initial(self) -> torch.Tensor:
        return self.flat.initial

    def named(self, at: torch.Tensor) -> dict[str, torch.Tensor]:
        """The model's `state_dict` at these weights, as separate tensors, for `load_state_dict`."""
        self.flat.place(at, training=False)
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.flat.model.state_dict().items()}

    def optimizer(self, recipe: OptimizerRecipe) -> FlatOptimizer:
        return FlatOptimizer(recipe, self.flat.num_parameters, self.flat.parameters)


def _hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """The parameters with at least two rows and two columns that belong to no embedding, and not to the last layer with such parameters.

    The last layer is the one that the model registers last, as models do with their head.
    """
    matrices = [
        [parameter for parameter in layer.parameters(recurse=False) if parameter.ndim > 1 and 1 < len(parameter) < parameter.numel()]
        for layer in model.modules()
    ]
    embeddings = [layer.weight for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    head = next((layer for layer in reversed(matrices) if layer), [])
    return {parameter for layer in matrices for parameter in layer}.difference(embeddings, head)


def _only_reads(model: nn.Module) -> bool:
    """Whether the model never writes into its parameters: all layers are PyTorch's or hetsim's own, without hooks."""
    return all(
        type(layer).__module__.startswith(("torch.nn.modules.", "hetsim.workloads.models."))
        and not (layer._forward_pre_hooks or layer._forward_hooks)
        and getattr(layer, "max_norm", None) is None
        for layer in model.modules()
    )


def _view(tensors: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
    """Make the tensors consecutive views of the vector."""
    for tensor, part in zip(tensors, _unflattened(vector, tensors), strict=True):
        tensor.data = part if part.numel() else part.view(tensor.shape)
