"""torch.optim on a flat vector, or on views of it by parameter, as a pure step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from hetsim import checks
from hetsim.effects import Fragment
from hetsim.trust.names import argument_names, resolve
from hetsim.vector import piece, with_piece
from hetsim.workloads.task import Optimizer, OptimizerRecipe, ParameterSpec, Recipe

Memory = Mapping[str, Any]
"""The memory of an optimizer, by name. Its tensors are vectors or scalars, in the device and precision of the weights."""
MAX_RATE = 1e30
"""The maximum learning rate. A larger one times any gradient is beyond float32."""

# An optimizer would import PyTorch's compiler, for two seconds, in order to keep it out of this method: that is what is kept there already.
_add_parameters: Any = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
if _add_parameters is not None:
    _add_parameters.__dynamo_disable = _add_parameters


class FlatOptimizer(Optimizer):
    """Any torch.optim class that works on dense vectors.

    Most classes step each number by itself, so they step the whole vector as a single parameter. A class with `by_parameter = True` gets
    the `parameters` one by one, as views of the vector, and torch.optim.Adafactor does, too. Hidden matrices are in a parameter group
    with `hidden` True, and have two dimensions there: a convolution's weights of shape (a, b, c, d) are a × bcd.

    After the first `num_parameters` numbers a vector may hold a model's running statistics (batch norm) and a 1. There a
    "gradient" is [new statistics, 1], so a weighted sum of gradients carries the sum of its weights, and a step sets the
    statistics to their weighted mean.

    The learning rate follows a torch.optim.lr_scheduler, stepped once per epoch of applied samples: a method with four times
    the updates has the same decay.
    """

    def __init__(self, recipe: OptimizerRecipe, num_parameters: int, parameters: Sequence[ParameterSpec] = ()) -> None:
        self.recipe = recipe
        self.num_parameters = num_parameters
        cls = self._class()
        self.by_parameter = getattr(cls, "by_parameter", cls is torch.optim.Adafactor)
        all_weights = ParameterSpec("weights", 0, (num_parameters,))
        self._specs = tuple(parameters or [all_weights]) if self.by_parameter else ()
        self._prefixes = [spec.name for spec in self._specs] or [""]
        self._parameters, self._optimizer, self._scheduler = self._build(cls)
        # without the hooks of torch's profiler, which take longer than a step of a small model
        self._unhooked = getattr(type(self._optimizer).step, "__wrapped__", type(self._optimizer).step)
        self._shapes: dict[str, torch.Size] = {}
        self._initial = self._memory()  # Adagrad begins with a sum
        self._settings = [self._current()]
        self._check_rate(0)
        self._epoch = 0
        setting = self._settings[0][0]
        self._is_sgd = type(self._optimizer) is torch.optim.SGD and not (setting["fused"] or setting["differentiable"])
        self._try()

    def initial(self) -> Memory:
        return self._initial

    def in_place(self, *, memory: bool) -> FlatOptimizer:
        return InPlaceSGD(self, overwrites_memory=memory) if self._is_sgd else self

    def learning_rate(self, epoch: int) -> float:
        """η in this epoch."""
        return float(self._setting(epoch)[0]["lr"])

    @cached_property
    def scale_sensitive(self) -> bool:  # type: ignore[override]
        """Whether doubling the gradient changes the step, at learning rate 1 and after warm-up (RAdam's takes six steps)."""
        target, options = self.recipe.optimizer.target, dict(self.recipe.optimizer.options)
        if "lr" in options:
            options["lr"] = 1.0
        moved = []
        for scale in (1.0, 2.0):
            trial = FlatOptimizer(OptimizerRecipe(Recipe(target, options), None, self.recipe.trust), 1)
            memory, earlier, at = trial.initial(), torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
            for _ in range(20):
                earlier = at
                memory, at = trial.step(memory, at, torch.full_like(at, scale), 0)
            moved.append((at - earlier).item())
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
        assert not self.by_parameter or stop - start == self.num_parameters, "a fragment cuts parameters"
        if memory is None:
            memory = {name: value[start:stop] if getattr(value, "ndim", 0) else value for name, value in self._initial.items()}
        memory, moved = self._step_part(memory, piece(weights, start, fragment.stop), gradient, epoch, stop - start)
        return memory, with_piece(weights, start, moved)

    def _step_part(
        self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int, size: int
    ) -> tuple[Memory, torch.Tensor]:
        """A step of the first `size` entries, which are parameters. Any further entries are statistics and a 1."""
        if len(weights) == size:
            return self._step(memory, weights, gradient, epoch)
        memory, moved = self._step(memory, weights[:size], gradient[:size], epoch)
        summed, weight = gradient[size:-1], gradient[-1:]
        return memory, torch.cat([moved, summed / weight if weight else weights[size:-1], weights[-1:]])

    def _step(self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int) -> tuple[Memory, torch.Tensor]:
        """A step on copies of weights and memory, because torch steps in place."""
        if self._is_sgd:
            return sgd(memory, weights, gradient, **self._setting(epoch)[0])
        if epoch != self._epoch:
            for group, setting in zip(self._optimizer.param_groups, self._setting(epoch), strict=True):
                group.update(setting)
            self._epoch = epoch
        moved = weights.clone()
        if self._specs:
            for spec, parameter in zip(self._specs, self._parameters, strict=True):
                parameter.data, parameter.grad = _view(moved, spec), _view(gradient, spec)
        else:
            (parameter,) = self._parameters
            parameter.data, parameter.grad = moved, gradient
        self._remember(memory, weights)
        self._unhooked(self._optimizer)
        return self._memory(), moved

    def _remember(self, memory: Memory, weights: torch.Tensor) -> None:
        """Give torch's optimizer a copy of this memory, with tensors in torch's shapes."""
        states: dict[str, dict[str, Any]] = {prefix: {} for prefix in self._prefixes}
        for name, value in memory.items():
            prefix, _, key = name.rpartition("/")
            if isinstance(value, torch.Tensor):
                value = _copy(value, weights)
                value = value.view(self._shapes[name]) if name in self._shapes else value
            states[prefix][key] = value
        for parameter, state in zip(self._parameters, states.values(), strict=True):
            self._optimizer.state[parameter] = state

    def _memory(self) -> Memory:
        """The memory of torch's optimizer by torch's names, with tensors as vectors. With several parameters, their names come first."""
        memory: dict[str, Any] = {}
        for prefix, parameter in zip(self._prefixes, self._parameters, strict=True):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                name = f"{prefix}/{key}" if prefix else key
                if isinstance(value, torch.Tensor) and value.ndim > 1:
                    self._shapes[name] = value.shape
                    value = value.reshape(-1)
                memory[name] = value
        return memory

    def _class(self) -> Any:
        """The class in the recipe. Raises ValueError if it does not exist, or lacks one of the options."""
        recipe = self.recipe
        name = recipe.optimizer.target
        cls: Any = resolve(name, key=f"{recipe.key}._target_", group="optimizer", kind=torch.optim.Optimizer, trust=recipe.trust)
        if cls is torch.optim.Muon:
            raise ValueError(f"{recipe.key}._target_={name} is for matrices alone: take hetsim.workloads.muon.Muon, as optimizer=muon does")
        for option in recipe.optimizer.options:
            if option not in argument_names(cls):
                raise ValueError(f"{recipe.key}.{option} is not an option of {name}: " + checks.without(f"{recipe.key}.{option}"))
        return cls

    def _build(self, cls: Any) -> tuple[Sequence[torch.nn.Parameter], torch.optim.Optimizer, Any]:
        recipe = self.recipe
        name, options = recipe.optimizer.target, dict(recipe.optimizer.options)
        parameters = [torch.nn.Parameter(torch.zeros(spec.view_shape)) for spec in self._specs]
        by_kind = {
            hidden: [parameter for spec, parameter in zip(self._specs, parameters, strict=True) if spec.hidden is hidden]
            for hidden in (True, False)
        }
        groups = [{"params": some, "hidden": hidden} for hidden, some in by_kind.items() if some]
        parameters = parameters or [torch.nn.Parameter(torch.zeros(self.num_parameters))]
        try:
            optimizer = cls(groups or parameters, **options)
        except Exception as error:
            raise ValueError(f"{recipe.key}: {name} refuses {options}: {_first_line(error)}") from None
        if not groups and optimizer.param_groups[0].get("foreach", False) is None:
            optimizer.param_groups[0]["foreach"] = False  # there is one tensor: torch need not decide at each step
        schedule = recipe.schedule
        return parameters, optimizer, None if schedule is None else _scheduler(schedule, optimizer, recipe.trust, recipe.schedule_key)

    def _try(self) -> None:
        """Take two steps, to refuse an optimizer that needs a closure, a sparse gradient or a matrix, and options that fail."""
        recipe, name = self.recipe, self.recipe.optimizer.target
        try:
            ones = torch.ones(self.num_parameters)
            memory, weights = self.step(self._initial, torch.zeros(self.num_parameters), ones, 0)
            self.step(memory, weights, ones, 0)
            if self._scheduler is not None or not self._is_sgd:
                for parameter in self._parameters:
                    parameter.grad = torch.ones_like(parameter)
                self._optimizer.step()  # with its hooks: a schedule warns unless it has seen a step
        except Exception as error:
            raise ValueError(
                f"{recipe.key}._target_={name} does not work on one flat dense vector ({_first_line(error)}): "
                "choose another, such as torch.optim.SGD"
            ) from None

    def _current(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in group.items() if name != "params"} for group in self._optimizer.param_groups]

    def _check_rate(self, epoch: int) -> None:
        """Raise ValueError for a learning rate with which no step can be computed."""
        for rate in (setting.get("lr", 0.0) for setting in self._settings[epoch]):
            if not abs(rate) <= MAX_RATE:  # also of NaN, and of an integer that is no float
                key = self.recipe.key if self.recipe.schedule is None else self.recipe.schedule_key
                raise ValueError(f"{key} gives a learning rate of {checks.shown(rate)} in epoch {epoch}: keep it below {MAX_RATE:g}")

    def _setting(self, epoch: int) -> list[dict[str, Any]]:
        """Each parameter group's settings in this epoch. A schedule is a function of the epoch, so it is tabulated as far as needed."""
        if self._scheduler is None:
            return self._settings[0]
        while len(self._settings) <= epoch:
            for group, setting in zip(self._optimizer.param_groups, self._settings[-1], strict=True):
                group.update(setting)
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


class InPlaceSGD(FlatOptimizer):
    """SGD in place: new weights overwrite the gradient. If allowed, new momentum overwrites the momentum of the previous step."""

    def __init__(self, optimizer: FlatOptimizer, *, overwrites_memory: bool) -> None:
        self.__dict__.update(optimizer.__dict__)
        self._overwrites_memory = overwrites_memory
        self._last: Memory | None = None
        """The memory that the previous step returned. No other object keeps it."""

    def _step(self, memory: Memory, weights: torch.Tensor, gradient: torch.Tensor, epoch: int) -> tuple[Memory, torch.Tensor]:
        overwrites_memory = self._overwrites_memory and memory is self._last
        setting = self._setting(epoch)[0]
        self._last, moved = sgd(memory, weights, gradient, **setting, out=gradient, overwrites_memory=overwrites_memory)
        return self._last, moved


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
    out: torch.Tensor | None = None,
    overwrites_memory: bool = False,
    **_: Any,
) -> tuple[Memory, torch.Tensor]:
    """torch.optim.SGD's step with identical bits, into new vectors. It takes a third of the time of copying and stepping in place.

    The new weights are written to `out`, which may be the gradient. With `overwrites_memory`, the new momentum replaces the old one.
    """
    d = torch.neg(gradient, out=out) if maximize else gradient
    if weight_decay:
        d = torch.add(d, weights, alpha=weight_decay, out=out)
    if momentum:
        b = memory.get("momentum_buffer")
        if b is None:
            b = d if out is None else d.clone()
        else:
            b = b.to(weights.dtype)
            b = torch.mul(b, momentum, out=b if overwrites_memory else None).add_(d, alpha=1 - dampening)
        memory = {"momentum_buffer": b}
        d = torch.add(d, b, alpha=momentum, out=out) if nesterov else b
    return memory, torch.add(weights, d, alpha=-lr, out=out)


def _scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, trust: tuple[str, ...], key: str) -> Any:
    """The scheduler, including the schedulers that it is composed of."""
    name, options = recipe.target, dict(recipe.options)
    kind = torch.optim.lr_scheduler.LRScheduler
    cls: Any = resolve(name, key=f"{key}._target_", group="learning_rate_schedule", kind=kind, trust=trust)
    if issubclass(cls, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(f"{key}._target_={name} needs a validation loss during training: choose a schedule by epochs")
    for option, value in options.items():
        if option not in argument_names(cls):
            raise ValueError(f"{key}.{option} is not an option of {name}{checks.suggestion(option, argument_names(cls))}")
        if isinstance(value, list) and value and all(isinstance(part, Recipe) for part in value):
            options[option] = [_scheduler(part, optimizer, trust, key) for part in value]
    try:
        return cls(optimizer=optimizer, **options)
    except Exception as error:
        raise ValueError(f"{key}: {name} refuses {recipe.options}: {_first_line(error)}") from None


def _view(vector: torch.Tensor, spec: ParameterSpec) -> torch.Tensor:
    """The entries of one parameter, in its shape."""
    return vector[spec.start : spec.start + math.prod(spec.shape)].view(spec.view_shape)


def _copy(value: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of the optimizer's memory; a vector has the weights' device and precision."""
    return value.to(weights, copy=True) if value.ndim else value.clone()


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
