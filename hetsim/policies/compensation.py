"""How a late gradient is corrected before it is applied, and which weights the server sends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.vector import Vector, sqrt, zeros_like


class Compensation(ABC):
    """Estimates a late gradient at the current weights."""

    keeps_gradients: ClassVar[bool] = True
    """Whether its state may refer to a gradient after a decision. A class says so itself: its subclasses do not inherit `False`."""
    corrects_locally: ClassVar[bool] = True
    """Whether a worker can use it to correct its own step. False if the correction needs data from the server."""
    requires_plain_sgd: ClassVar[bool] = False
    """Whether it must know each step exactly. The server then applies gradients one by one, without weights or discounts."""

    corrects_differences: ClassVar[bool] = False
    """Whether it corrects a difference of weights, which workers push after local steps, instead of a gradient."""
    operations: ClassVar[int] = 0
    """How many operations on whole vectors, such as a sum or a product, `correct` and `outgoing` take together."""

    def suits(self, optimizer: str, options: Mapping[str, Any], schedule: str | None) -> None:  # noqa: B027
        """Check that the compensation suits an optimizer.

        Args:
            optimizer: the optimizer's class name.
            options: the optimizer's arguments.
            schedule: the class name of the learning-rate schedule; None means no schedule.

        Raises:
            ValueError: the compensation does not suit this optimizer. The message gives the reason.
        """

    @abstractmethod
    def initial(self, weights: Vector, num_workers: int) -> Any:
        """The state before the first gradient is applied.

        Args:
            weights: the initial weights W, a flat vector.
            num_workers: N.
        """

    @abstractmethod
    def correct(self, state: Any, contribution: Contribution, now: Vector) -> tuple[Any, Vector]:
        """The new state, and the gradient to apply, which has the shape of `contribution.gradient`.

        Args:
            state: the state of this rule.
            contribution: the gradient, computed at the weights `contribution.used`.
            now: the weights W at which the gradient is applied.
        """

    def outgoing(self, state: Any, weights: Vector) -> Vector:
        """The weights that the server sends to workers, a vector of W's shape.

        Args:
            state: the state of this rule.
            weights: W.
        """
        return weights


@dataclass(frozen=True)
class NoCompensation(Compensation):
    """Apply gradients uncorrected."""

    keeps_gradients = False

    def initial(self, weights: Vector, num_workers: int) -> None:
        return None

    def correct(self, state: None, contribution: Contribution, now: Vector) -> tuple[None, Vector]:
        return None, contribution.gradient


@dataclass(frozen=True)
class Mixing(Compensation):
    """W − x_i in place of w_i − x_i: a step of rate α d(τ) is then W ← (1 − α d(τ)) W + α d(τ) x_i. FedAsync, arXiv 1903.03934."""

    corrects_locally: ClassVar[bool] = False
    corrects_differences: ClassVar[bool] = True
    operations: ClassVar[int] = 2

    def initial(self, weights: Vector, num_workers: int) -> None:
        return None

    def correct(self, state: None, contribution: Contribution, now: Vector) -> tuple[None, Vector]:
        return None, (now - contribution.used) + contribution.gradient


def _check_plain_momentum(options: Mapping[str, Any]) -> None:
    """Raise ValueError for options with which the optimizer takes other steps than the compensation assumes."""
    for name in ("dampening", "nesterov", "weight_decay", "maximize"):
        if options.get(name):
            raise ValueError(f"compensation assumes steps of plain momentum SGD, but optimizer.{name}={options[name]}: leave it out")


def _first_order_correction(factor: Any, contribution: Contribution, now: Vector) -> Vector:
    """g + factor g⊙g⊙(W − w_i). In one vector of its own: fresh memory for each product takes 1.3 to 2 times as long."""
    g = contribution.gradient
    total = factor * g
    total *= g
    total *= now - contribution.used
    total += g
    return total


@dataclass(frozen=True, kw_only=True)
class DelayCompensation(Compensation):
    """g + λ g⊙g⊙(W − w_i): the gradient at W, to first order, from g at w_i. DC-ASGD-c, arXiv 1609.08326.

    λ g⊙g approximates the diagonal of the Hessian.
    """

    keeps_gradients = False
    operations: ClassVar[int] = 5

    strength: float
    """λ"""

    def __post_init__(self) -> None:
        checks.number("compensation.strength", self.strength, zero=True)

    def initial(self, weights: Vector, num_workers: int) -> None:
        return None

    def correct(self, state: None, contribution: Contribution, now: Vector) -> tuple[None, Vector]:
        return None, _first_order_correction(self.strength, contribution, now)


@dataclass(frozen=True, kw_only=True)
class AdaptiveDelayCompensation(Compensation):
    """g + λ0/√(MS + ε) g⊙g⊙(W − w_i), MS = m·MS + (1−m) g⊙g. DC-ASGD-a, arXiv 1609.08326; m = 0 is OD-SGD, arXiv 2005.06728."""

    keeps_gradients = False
    operations: ClassVar[int] = 12

    strength: float
    """λ0"""
    decay: float
    """m"""
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        checks.number("compensation.strength", self.strength, zero=True)
        checks.fraction("compensation.decay", self.decay)
        checks.number("compensation.epsilon", self.epsilon)

    def initial(self, weights: Vector, num_workers: int) -> Vector:
        return zeros_like(weights)

    def correct(self, state: Vector, contribution: Contribution, now: Vector) -> tuple[Vector, Vector]:
        g = contribution.gradient
        mean_square = self.decay * state + (1 - self.decay) * g * g
        return mean_square, _first_order_correction(self.strength / sqrt(mean_square + self.epsilon), contribution, now)


@dataclass(frozen=True)
class GapAwareState:
    """The momentum buffer u of the server's optimizer, the moving average v of its square, and the number of averaged steps."""

    u: Vector
    v: Vector
    num_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class GapAware(Compensation):
    """g / (1 + |W − w_i| / C), elementwise: the further the weights have moved, the smaller the step. Gap-Aware, arXiv 1909.10802.

    C = scale · η(√v̂ + ε) is the size of a typical step: v̂ is the (bias-corrected) moving average of the squared momentum
    buffer u = γu + g. `learning_rate` and `momentum` are the optimizer's η and γ; `scale` is 1 in the paper.
    """

    keeps_gradients = False
    corrects_locally: ClassVar[bool] = False
    requires_plain_sgd: ClassVar[bool] = True
    operations: ClassVar[int] = 15

    learning_rate: float
    momentum: float
    decay: float = 0.999
    epsilon: float = 1e-8
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.number("compensation.learning_rate", self.learning_rate)
        checks.fraction("compensation.momentum", self.momentum)
        checks.fraction("compensation.decay", self.decay)
        checks.number("compensation.epsilon", self.epsilon)
        if self.scale != float("inf"):
            checks.number("compensation.scale", self.scale)

    def suits(self, optimizer: str, options: Mapping[str, Any], schedule: str | None) -> None:
        for name, mine, theirs in (("lr", self.learning_rate, options.get("lr")), ("momentum", self.momentum, options.get("momentum", 0))):
            if not optimizer.endswith(".SGD") or mine != theirs:
                raise ValueError(
                    f"compensation measures gaps in steps of torch.optim.SGD with {name}={mine}, but the optimizer is {optimizer} with "
                    f"{name}={theirs}: set learning_rate and momentum, which both read"
                )

        _check_plain_momentum(options)

    def initial(self, weights: Vector, num_workers: int) -> GapAwareState:
        return GapAwareState(zeros_like(weights), zeros_like(weights))

    def correct(self, state: GapAwareState, contribution: Contribution, now: Vector) -> tuple[GapAwareState, Vector]:
        seen = 1 - self.decay ** max(1, state.num_steps)
        step = self.scale * self.learning_rate * (sqrt(state.v / seen) + self.epsilon)
        g = contribution.gradient / (1 + abs(now - contribution.used) / step)
        u = self.momentum * state.u + g
        return GapAwareState(u, self.decay * state.v + (1 - self.decay) * u * u, state.num_steps + 1), g


@dataclass(frozen=True)
class DanaState:
    """Each worker's momentum v_i, and their sum."""

    v: tuple[Vector, ...]
    total: Vector


@dataclass(frozen=True, kw_only=True)
class Dana(Compensation):
    """v_i = γ v_i + g_i, W ← W − η v_i; workers compute at W − ηγ Σ_j v_j, the weights that the momenta predict.

    DANA, arXiv 1907.11612. Each worker has its own momentum here, so the server's optimizer must have none; `learning_rate` is its η.
    """

    corrects_locally: ClassVar[bool] = False
    requires_plain_sgd: ClassVar[bool] = True
    operations: ClassVar[int] = 6

    momentum: float
    learning_rate: float

    def __post_init__(self) -> None:
        checks.fraction("compensation.momentum", self.momentum)
        checks.number("compensation.learning_rate", self.learning_rate)

    def suits(self, optimizer: str, options: Mapping[str, Any], schedule: str | None) -> None:
        if not optimizer.endswith(".SGD") or options.get("momentum", 0):
            raise ValueError(
                f"compensation=dana keeps a momentum for each worker, so the server's optimizer must be torch.optim.SGD without one, not "
                f"{optimizer} with momentum={options.get('momentum', 0)}: set momentum=0 and compensation.momentum"
            )
        if options.get("lr") != self.learning_rate:
            raise ValueError(
                f"compensation.learning_rate={self.learning_rate} is not the optimizer's ({options.get('lr')}): "
                "set learning_rate, which both read"
            )
        _check_plain_momentum(options)
        if schedule is not None:
            raise ValueError("compensation=dana looks ahead by steps of one learning rate: leave learning_rate_schedule out")

    def initial(self, weights: Vector, num_workers: int) -> DanaState:
        return DanaState((zeros_like(weights),) * num_workers, zeros_like(weights))

    def correct(self, state: DanaState, contribution: Contribution, now: Vector) -> tuple[DanaState, Vector]:
        old = state.v[contribution.rank]
        v_i = self.momentum * old + contribution.gradient
        v = (*state.v[: contribution.rank], v_i, *state.v[contribution.rank + 1 :])
        return DanaState(v, state.total + (v_i - old)), v_i

    def outgoing(self, state: DanaState, weights: Vector) -> Vector:
        return weights - self.learning_rate * self.momentum * state.total
