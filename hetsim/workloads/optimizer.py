"""torch.optim on one flat vector, as a pure step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from hetsim import checks
from hetsim.effects import Fragment
from hetsim.trust.names import argument_names, resolve
from hetsim.vector import piece, with_piece
from hetsim.workloads.task import Optimizer, OptimizerRecipe, Recipe

Memory = Mapping[str, Any]
MAX_RATE = 1e30
"""A larger learning rate times any gradient is beyond float32."""

# An optimizer would import PyTorch's compiler, for two seconds, in order to keep it out of this method: that is what is kept there already.
_add_parameters: Any = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
if _add_parameters is not None:
    _add_parameters.__dynamo_disable = _add_parameters


class FlatOptimizer(Optimizer):
    """Any torch.optim class that works on one flat dense vector.

    After the first `num_parameters` numbers a vector may hold a model's running statistics (batch norm) and a 1. There a
    "gradient" is [new statistics, 1], so a weighted sum of gradients carries the sum of its weights, and a step sets the
    statistics to their weighted mean.
    The learning rate follows a torch.optim.lr_scheduler, stepped once per epoch of applied samples: a method with four times
    the updates has the same decay.
    """

    def __init__(self, recipe: OptimizerRecipe, num_parameters: int) -> None:
        self.recipe = recipe
        self.num_parameters = num_parameters
        self._parameter, self._optimizer, self._scheduler = self._build(num_parameters)
        # without the hooks of torch's profiler, which take longer than a step of a small model
        self._unhooked = getattr(type(self._optimizer).step, "__wrapped__", type(self._optimizer).step)
        self._initial: Memory = dict(self._optimizer.state.get(self._parameter, {}))  # Adagrad begins with a sum
        self._settings = [self._current()]
        self._check_rate(0)
        self._epoch = 0
        self._is_sgd = type(self._optimizer) is torch.optim.SGD and not (self._settings[0]["fused"] or self._settings[0]["differentiable"])
        self._try()

    def initial(self) -> Memory:
        return self._initial

    def learning_rate(self, epoch: int) -> float:
        """η in this epoch."""
        return float(self._setting(epoch)["lr"])

    @cached_property
    def scale_sensitive(self) -> bool:  # type: ignore[override]
        """Whether, at learning rate 1 and after warm-up (RAdam's takes six steps), twice the gradient makes another step."""
        target, options = self.recipe.optimizer.target, dict(self.recipe.optimizer.options)
        if "lr" in options:
            options["lr"] = 1.0
        moved = []
        for scale in (1.0, 2.0):
            other = FlatOptimizer(OptimizerRecipe(Recipe(target, options), None, self.recipe.trust), 1)
            memory, before, at = other.initial(), torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
            for _ in range(20):
                before = at
                memory, at = other.step(memory, at, torch.full_like(at, scale), 0)
            moved.append((at - before).item())
        return abs(moved[1] - moved[0]) > 1e-2 * abs(moved[0])

    def foresee(self, num_epochs: int) -> None:
        self._setting(num_epochs - 1)

    def step(
        self, memory: Memory | None, weights: torch.Tensor, gradient: torch.Tensor, epoch: int, fragment: Fragment | None = None
    ) -> tuple[Memory, torch.Tensor]:
        if fragment is None:
            assert memory is not None
            return self._step_part(memory, weights, gradient, epoch, self.num_parameters)
        start, stop = fragment.start, min(fragment.stop, self.num_parameters)
        if memory is None:
            memory = {name: value[start:stop] if getattr(value, "ndim", 0) else value for name, value in self._initial.items()}
        memory, moved = self._step_part(memory, piece(weights, start, fragment.stop), gradient, epoch, stop - start)
        return memory, with_piece(weights, start, moved)

    def _step_part(
        self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int, size: int
    ) -> tuple[Memory, torch.Tensor]:
        """A step of the first `size` numbers, which are parameters; those after them, if any, are statistics and a 1."""
        if len(weights) == size:
            return self._step(memory, weights, gradient, epoch)
        memory, moved = self._step(memory, weights[:size], gradient[:size], epoch)
        summed, weight = gradient[size:-1], gradient[-1:]
        return memory, torch.cat([moved, summed / weight if weight else weights[size:-1], weights[-1:]])

    def _step(self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int) -> tuple[Memory, torch.Tensor]:
        """torch steps in place, so each step works on its own copy of weights and memory."""
        if self._is_sgd:
            return sgd(memory, weights, gradient, **self._setting(epoch))
        parameter = self._parameter
        parameter.data, parameter.grad = weights.clone(), gradient
        if epoch != self._epoch:
            self._optimizer.param_groups[0].update(self._setting(epoch))
            self._epoch = epoch
        self._optimizer.state[parameter] = {
            name: _copy(value, weights) if isinstance(value, torch.Tensor) else value for name, value in memory.items()
        }
        self._unhooked(self._optimizer)
        return self._optimizer.state[parameter], parameter.data

    def _build(self, size: int) -> tuple[torch.nn.Parameter, torch.optim.Optimizer, Any]:
        parameter = torch.nn.Parameter(torch.zeros(size))
        recipe, trust = self.recipe, self.recipe.trust
        name, options = recipe.optimizer.target, dict(recipe.optimizer.options)
        cls: Any = resolve(name, key=f"{recipe.key}._target_", group="optimizer", kind=torch.optim.Optimizer, trust=trust)
        for option in options:
            if option not in argument_names(cls):
                raise ValueError(f"{recipe.key}.{option} is no option of {name}: " + checks.without(f"{recipe.key}.{option}"))
        try:
            optimizer = cls([parameter], **options)
        except Exception as error:
            raise ValueError(f"{recipe.key}: {name} refuses {options}: {_first_line(error)}") from None
        if optimizer.param_groups[0].get("foreach", False) is None:
            optimizer.param_groups[0]["foreach"] = False  # there is one tensor: torch need not decide at each step
        return parameter, optimizer, None if recipe.schedule is None else _scheduler(recipe.schedule, optimizer, trust, recipe.schedule_key)

    def _try(self) -> None:
        """Take two steps, to refuse an optimizer that needs a closure, a sparse gradient or a matrix, and options that fail."""
        recipe, name = self.recipe, self.recipe.optimizer.target
        try:
            ones = torch.ones(self.num_parameters)
            memory, weights = self.step(self._initial, torch.zeros(self.num_parameters), ones, 0)
            self.step(memory, weights, ones, 0)
            if self._scheduler is not None or not self._is_sgd:
                self._parameter.grad = ones
                self._optimizer.step()  # with its hooks: a schedule warns unless it has seen a step
        except Exception as error:
            raise ValueError(
                f"{recipe.key}._target_={name} does not work on one flat dense vector ({_first_line(error)}): "
                "choose another, such as torch.optim.SGD"
            ) from None

    def _current(self) -> dict[str, Any]:
        return {name: value for name, value in self._optimizer.param_groups[0].items() if name != "params"}

    def _check_rate(self, epoch: int) -> None:
        """ValueError with one sentence for a learning rate with which no step can be computed."""
        rate = self._settings[epoch].get("lr", 0.0)
        if not abs(rate) <= MAX_RATE:  # also of NaN, and of an integer that is no float
            key = self.recipe.key if self.recipe.schedule is None else self.recipe.schedule_key
            raise ValueError(f"{key} gives a learning rate of {checks.shown(rate)} in epoch {epoch}: keep it below {MAX_RATE:g}")

    def _setting(self, epoch: int) -> dict[str, Any]:
        """The optimizer's settings in this epoch, tabulated as far as needed: a schedule is a function of the epoch."""
        if self._scheduler is None:
            return self._settings[0]
        while len(self._settings) <= epoch:
            self._optimizer.param_groups[0].update(self._settings[-1])
            try:
                self._scheduler.step()
            except Exception as error:
                raise ValueError(
                    f"{self.recipe.schedule_key} breaks off before epoch {len(self._settings)} ({_first_line(error)}): "
                    "make it reach to the end of budget.epochs"
                ) from None
            self._settings.append(self._current())
            self._check_rate(len(self._settings) - 1)
            self._epoch = -1
        return self._settings[epoch]


def sgd(
    memory: Memory,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    **_: Any,
) -> tuple[Memory, torch.Tensor]:
    """torch.optim.SGD's step, bit for bit, into new vectors: a third of the time of copying and stepping in place."""
    d = -gradient if maximize else gradient
    if weight_decay:
        d = d.add(weights, alpha=weight_decay)
    if momentum:
        b = memory.get("momentum_buffer")
        b = d if b is None else b.to(weights.dtype).mul(momentum).add_(d, alpha=1 - dampening)
        memory = {"momentum_buffer": b}
        d = d.add(b, alpha=momentum) if nesterov else b
    return memory, weights.add(d, alpha=-lr)


def _scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, trust: tuple[str, ...], key: str) -> Any:
    """The scheduler, and those that it is composed of."""
    name, options = recipe.target, dict(recipe.options)
    kind = torch.optim.lr_scheduler.LRScheduler
    cls: Any = resolve(name, key=f"{key}._target_", group="learning_rate_schedule", kind=kind, trust=trust)
    if issubclass(cls, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(f"{key}._target_={name} needs a validation loss during training: choose a schedule by epochs")
    for option, value in options.items():
        if option not in argument_names(cls):
            raise ValueError(f"{key}.{option} is no option of {name}{checks.suggestion(option, argument_names(cls))}")
        if isinstance(value, list) and value and all(isinstance(part, Recipe) for part in value):
            options[option] = [_scheduler(part, optimizer, trust, key) for part in value]
    try:
        return cls(optimizer=optimizer, **options)
    except Exception as error:
        raise ValueError(f"{key}: {name} refuses {recipe.options}: {_first_line(error)}") from None


def _copy(value: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of the optimizer's memory; a vector has the weights' device and precision."""
    return value.to(weights, copy=True) if value.ndim else value.clone()


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
