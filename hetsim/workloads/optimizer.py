"""torch.optim on one flat vector, as a pure step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from hetsim import checks, trusted
from hetsim.workloads.task import Optimizer, OptimizerRecipe, Recipe

Memory = Mapping[str, Any]


class FlatOptimizer(Optimizer):
    """Any torch.optim class that works on one flat dense vector.

    What a model keeps beside its parameters (batch-norm statistics) stands behind the first `num_parameters` entries:
    there a "gradient" is old minus new statistics, and a step takes it as it is, at rate 1.
    The learning rate follows a torch.optim.lr_scheduler that is stepped once per epoch of applied samples, so that a
    method which makes four times the updates decays alike.
    """

    def __init__(self, recipe: OptimizerRecipe, num_parameters: int) -> None:
        self.recipe = recipe
        self.num_parameters = num_parameters
        self._parameter, self._optimizer, self._scheduler = self._build(num_parameters)
        self._settings = [self._current()]
        self._epoch = 0
        self._try()

    def initial(self) -> Memory:
        return {}

    def step(self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int) -> tuple[Memory, torch.Tensor]:
        return self._step(memory, weights, gradient, epoch)

    def learning_rate(self, epoch: int) -> float:
        """η in this epoch."""
        return float(self._setting(epoch)["lr"])

    @cached_property
    def feels_scale(self) -> bool:  # type: ignore[override]
        """Whether a first step along twice the gradient goes further."""
        other = FlatOptimizer(self.recipe, 4)
        at = torch.zeros(4, dtype=torch.float64)
        once, twice = (other.step({}, at, torch.full_like(at, scale), 0)[1] for scale in (1.0, 2.0))
        return not torch.allclose(once, twice, rtol=1e-3)

    def _step(self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int) -> tuple[Memory, torch.Tensor]:
        size = self.num_parameters
        parameter = self._parameter
        parameter.data = weights[:size].clone()
        parameter.grad = gradient[:size]
        if epoch != self._epoch:
            self._optimizer.param_groups[0].update(self._setting(epoch))
            self._epoch = epoch
        # torch steps in place, so each step works on its own copy of the memory
        copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in memory.items()}
        self._optimizer.state.clear()
        if copies:
            self._optimizer.state[parameter] = copies
        self._optimizer.step()
        memory = dict(self._optimizer.state[parameter]) if parameter in self._optimizer.state else {}
        moved = parameter.data
        if len(weights) > size:
            moved = torch.cat([moved, weights[size:] - gradient[size:]])
        return memory, moved

    def _build(self, size: int) -> tuple[torch.nn.Parameter, torch.optim.Optimizer, Any]:
        parameter = torch.nn.Parameter(torch.zeros(size))
        recipe, trust = self.recipe, self.recipe.trust
        name, options = recipe.optimizer.target, dict(recipe.optimizer.options)
        cls = trusted.resolve(name, key="optimizer._target_", trust=trust)
        if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
            raise ValueError(f"optimizer._target_={name} is no optimizer: choose a class of torch.optim, such as torch.optim.SGD")
        for option in options:
            if option not in trusted.options(cls):
                raise ValueError(f"optimizer.{option} is no option of {name}: add '~optimizer.{option}' to leave it out")
        try:
            optimizer = cls([parameter], **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"optimizer: {name} refuses {options}: {_first_line(error)}") from None
        return parameter, optimizer, None if recipe.schedule is None else _scheduler(recipe.schedule, optimizer, trust)

    def _try(self) -> None:
        """Refuse what needs a closure, a sparse gradient or a matrix, by taking one step."""
        name = self.recipe.optimizer.target
        try:
            self._step({}, torch.zeros(self.num_parameters), torch.ones(self.num_parameters), 0)
        except Exception as error:
            raise ValueError(
                f"optimizer._target_={name} does not work on one flat dense vector ({_first_line(error)}): "
                "choose another, such as torch.optim.SGD"
            ) from None

    def _current(self) -> dict[str, Any]:
        return {name: value for name, value in self._optimizer.param_groups[0].items() if name != "params"}

    def _setting(self, epoch: int) -> dict[str, Any]:
        """The optimizer's settings in this epoch; a schedule is a function of the epoch, so it is tabulated as it is asked for."""
        if self._scheduler is None:
            return self._settings[0]
        while len(self._settings) <= epoch:
            self._optimizer.param_groups[0].update(self._settings[-1])
            self._scheduler.step()
            self._settings.append(self._current())
            self._epoch = -1
        return self._settings[epoch]


def _scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, trust: tuple[str, ...]) -> Any:
    """The scheduler, and those that it is made of."""
    key = "learning_rate_schedule"
    name, options = recipe.target, dict(recipe.options)
    cls = trusted.resolve(name, key=f"{key}._target_", trust=trust)
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.lr_scheduler.LRScheduler)):
        raise ValueError(f"{key}._target_={name} is no scheduler: choose a class of torch.optim.lr_scheduler")
    if issubclass(cls, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(f"{key}._target_={name} needs a validation loss during training: choose a schedule by epochs")
    for option, value in options.items():
        if option not in trusted.options(cls):
            raise ValueError(f"{key}.{option} is no option of {name}{checks.suggestion(option, trusted.options(cls))}")
        if isinstance(value, list) and value and all(isinstance(part, Recipe) for part in value):
            options[option] = [_scheduler(part, optimizer, trust) for part in value]
    try:
        return cls(optimizer, **options)
    except Exception as error:
        raise ValueError(f"{key}: {name} refuses {recipe.options}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
