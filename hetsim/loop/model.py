"""The user's model and optimizer in the forms that programs know: a flat vector, and a step from vector to vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hetsim.effects import Batch, Fragment
from hetsim.vector import Phantom
from hetsim.workloads.device import device
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import Evaluation, Optimizer, OptimizerRecipe, ParameterSpec, Task


class ModelTask(Task):
    """The user's model. Its vector is [parameters | running statistics | number of terms | 1], without what is not needed.

    A gradient contains its number of terms relative to what its loss was divided by. The weighted sum of all gradients has the weighted sum
    of these numbers at the same place, so dividing by it gives the mean over all terms of all ranks (`counts`). If the model reduces its
    gradients itself (`reduces`), programs get a Phantom instead, and the weights stay in the model.
    """

    gradients_are_new = True

    def __init__(self, model: nn.Module, *, num_samples: int, reduces: bool, counts: bool) -> None:
        self.num_samples = num_samples
        self.reduces = reduces
        self._counts = counts and not reduces
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that requires a gradient: nothing would be trained")
        self.trained = [parameter for _, parameter in trained]
        self._names = [name for name, _ in trained]
        self._statistics = [] if reduces else running_statistics(model)
        self.num_parameters = sum(parameter.numel() for parameter in self.trained)
        self.device = device("cpu" if reduces else str(self.trained[0].device))  # a program that gets Phantoms waits for no GPU
        self._places: list[torch.Tensor] = [parameter.data for parameter in self.trained] if not reduces else []
        self._places += self._statistics
        self._sizes = [place.numel() for place in self._places]
        one = self.trained[0].detach().new_ones(1) if not reduces else torch.ones(1)
        self._tail = [one] * (2 if self._counts else 1 if self._statistics else 0)
        self._placed: Any = None
        """The vector that the model contains, if it is known."""
        self._phantom = Phantom(self.num_parameters * self.trained[0].element_size(), self.trained[0].element_size())

    def initial(self) -> Any:
        """The model's weights."""
        return self.weights()

    def weights(self) -> Any:
        """The model's weights as a new vector."""
        if self.reduces:
            return self._phantom
        self._placed = torch.cat([*(place.reshape(-1) for place in self._places), *self._tail])
        return self._placed

    def squared_norm(self) -> float:
        """The sum of the squares of all weights. 0 for a model of which each rank has a part."""
        if any(isinstance(parameter, DTensor) for parameter in self.trained):
            return 0.0
        return float(torch.stack([parameter.detach().double().square().sum().cpu() for parameter in self.trained]).sum())

    def place(self, at: Any) -> None:
        """Set the model's weights to a vector, unless they are."""
        if at is self._placed or self.reduces:
            return
        parts = torch.split(at[: sum(self._sizes)], self._sizes)
        torch._foreach_copy_(self._places, [part.view(place.shape) for part, place in zip(parts, self._places, strict=True)])
        self._placed = at

    def set_gradient(self, gradient: torch.Tensor) -> None:
        """Give each parameter its part of a weighted sum of gradients, and each statistic the weighted mean."""
        if self.reduces:
            return
        if self._counts:
            terms, weight = gradient[-2:].tolist()
            if terms not in (0.0, weight):
                gradient = gradient.clone()
                gradient[: self.num_parameters] *= weight / terms
        parts = torch.split(gradient[: sum(self._sizes)], self._sizes)
        for parameter, part in zip(self.trained, parts, strict=False):
            parameter.grad = part.view(parameter.shape).to(parameter.dtype)
        if self._statistics and (weight := float(gradient[-1])):
            for place, part in zip(self._statistics, parts[len(self.trained) :], strict=True):
                place.copy_(part.view(place.shape) / weight)

    def collected_gradient(self, terms: float) -> Any:
        """The parameters' gradients and the running statistics as a new vector. The gradients are sums over `terms` terms, see the class.

        Without `counts`, they are divided by it.
        """
        if self.reduces:
            return self._phantom
        gradients = [
            parameter.new_zeros(parameter.numel()) if parameter.grad is None else parameter.grad.reshape(-1) for parameter in self.trained
        ]
        vector = torch.cat([*gradients, *(place.reshape(-1) for place in self._statistics), *self._tail])
        if terms != 1.0:
            if self._counts:
                vector[-2] = terms
            elif terms:
                vector[: self.num_parameters] /= terms
        return vector

    def scale_gradients(self, factor: float) -> None:
        """Multiply the parameters' gradients by a factor, where they are."""
        if factor != 1.0:
            gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
            torch._foreach_mul_(gradients, factor)

    def parameters(self) -> Sequence[ParameterSpec]:
        """The parameters in the order of the vector."""
        specs, start = [], 0
        for name, parameter in zip(self._names, self.trained, strict=True):
            specs.append(ParameterSpec(name, start, tuple(parameter.shape), parameter.ndim > 1))
            start += parameter.numel()
        return tuple(specs)

    def gradient(self, at: Any, batch: Batch) -> tuple[Any, float]:
        """Never called: the loop computes gradients."""
        raise AssertionError("the user's loop computes the gradients")

    def evaluate(self, at: Any) -> Evaluation:
        """Nothing: the user's script evaluates."""
        return Evaluation()

    def optimizer(self, recipe: OptimizerRecipe) -> Optimizer:
        """An optimizer of the method's own."""
        return FlatOptimizer(recipe, sum(parameter.numel() for parameter in self.trained), self.parameters())


class UsersOptimizer(Optimizer):
    """A step of the user's optimizer on the model's own parameters. Its memory stays in the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, task: ModelTask) -> None:
        self.optimizer = optimizer
        """None if the loop steps itself, along gradients that are reduced already."""
        self.task = task
        self.max_norm: float | None = None
        """The norm to which gradients are clipped."""
        self.scaler: Any = None
        """The GradScaler of the loss."""

    @property
    def learning_rate(self) -> float:
        """The sum of the rates of all groups of parameters. 0 without an optimizer."""
        return 0.0 if self.optimizer is None else float(sum(group.get("lr", 0.0) for group in self.optimizer.param_groups))

    def initial(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def step(self, memory: Any, weights: Any, gradient: Any, epoch: int, fragment: Fragment | None = None) -> tuple[Any, Any]:
        """Step from these weights along this gradient. The new weights are in the model, too."""
        task = self.task
        if self.optimizer is None:
            return memory, weights
        if fragment is not None:
            raise ValueError("this method steps a part of the weights at a time, which your optimizer cannot: take another method")
        task.place(weights)
        task.set_gradient(gradient)
        if self.max_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(task.trained, self.max_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return memory, task.weights()

    @contextmanager
    def tentatively(self) -> Iterator[None]:
        """Within this context, a step does not change the optimizer's memory."""
        assert self.optimizer is not None, "no tentative steps are along gradients that are reduced already"
        saved = deepcopy(self.optimizer.state_dict())
        yield
        self.optimizer.load_state_dict(saved)


def running_statistics(model: nn.Module) -> list[torch.Tensor]:
    """The running means and variances of the model's normalisations."""
    layers = (layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    return [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var) if buffer is not None]
