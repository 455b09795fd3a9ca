"""The interface of an allocation, proportional splits of whole samples, and the rules with a constant split."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim import checks
from hetsim.effects import Contribution


def proportional(weights: Sequence[float], total: int, *, least: int = 1, max_samples: Sequence[int] | None = None) -> tuple[int, ...]:
    """Split `total` in proportion to `weights` by largest remainder, with at least `least` for each worker.

    Ties go to the lower rank. Remainders that agree to nine digits count as ties, because equal speeds may differ by a rounding error.
    No worker gets more than its `max_samples`; the excess goes to the other workers in the same proportion. Raises ValueError
    if there is no such split.
    """
    shares = _largest_remainder(weights, total, least)
    if max_samples is None:
        return shares
    if sum(max_samples) < total:
        raise ValueError(f"the nodes' max_samples hold {sum(max_samples)} samples in all, but batch_size={total}: raise them, or lower it")
    if all(share <= bound for share, bound in zip(shares, max_samples, strict=True)):
        return shares
    others = [rank for rank, (share, bound) in enumerate(zip(shares, max_samples, strict=True)) if share < bound]
    split = list(max_samples)
    remaining = total - sum(max_samples) + sum(max_samples[rank] for rank in others)
    rest = (
        proportional([weights[rank] for rank in others], remaining, least=least, max_samples=[max_samples[rank] for rank in others])
        if others
        else ()
    )
    for rank, share in zip(others, rest, strict=True):
        split[rank] = share
    return tuple(split)


def _largest_remainder(weights: Sequence[float], total: int, least: int) -> tuple[int, ...]:
    largest = max(weights)
    weights = [weight / largest for weight in weights]
    held = [False] * len(weights)
    while True:
        scale = (total - least * sum(held)) / math.fsum(weight for weight, at_least in zip(weights, held, strict=True) if not at_least)
        quotas = [least if at_least else weight * scale for weight, at_least in zip(weights, held, strict=True)]
        short = [
            not at_least and quota < least * (1 - 1e-9) for quota, at_least in zip(quotas, held, strict=True)
        ]  # an exact quota may round to below
        if not any(short):
            break
        held = [at_least or lacks for at_least, lacks in zip(held, short, strict=True)]
    shares = [max(least, math.floor(quota)) for quota in quotas]
    remainders = [round(share - quota, 9) for share, quota in zip(shares, quotas, strict=True)]
    for rank in sorted(range(len(quotas)), key=remainders.__getitem__)[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def relative_speeds(timings: Sequence[Contribution], num_workers: int) -> list[float]:
    """Each worker's samples per second, divided by the largest sample count of any worker."""
    samples, seconds = [0] * num_workers, [0.0] * num_workers
    for timing in timings:
        samples[timing.rank] += timing.samples
        seconds[timing.rank] += timing.seconds
    return [b / max(samples) / t for b, t in zip(samples, seconds, strict=True)]


def check_repetitions(repetitions: int, *, least: int = 0) -> None:
    """Raise ValueError if the number of measurements before the run is invalid."""
    checks.whole("allocation.repetitions", repetitions, least=least, most=1000)


def signature(value: Any) -> str:
    """A policy's class and public values, such as Fixed(parts=[1, 2]): the same text in every process, even for a user's class."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(signature, value))}]"
    public = {name: part for name, part in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return f"{type(value).__qualname__}({', '.join(f'{name}={signature(part)}' for name, part in public.items())})"


class Allocation(ABC):
    """Decides (b_1 … b_N) with Σ b_i = B and b_i ≥ 1, from what it has observed.

    A rule that `leaves_out` workers may decide b_i = 0.
    """

    keeps_gradients: ClassVar[bool] = True
    """Whether its state may refer to a gradient after a decision. A class says so itself: its subclasses do not inherit `False`."""
    leaves_out: ClassVar[bool] = False
    """Whether a worker may get no samples. Allowed only with a coordination whose `may_leave_out` is True."""

    repetitions: int = 0
    """How many B-sample gradients each worker computes before the run. hetsim keeps only their times, for `observe_profile`.

    A worker with a CPU quota computes more of them, until ten periods of the quota have passed.

    Every rule that measures has this option. With 0, the rule measures only during the run.
    """

    @abstractmethod
    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        """The state before the first observation.

        Args:
            num_workers: N.
            batch_size: B, the samples of a global batch.
            max_samples: the largest share of each worker, in samples and rank order; None means no bounds.
        """

    def initial_within(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None) -> Any:
        """`initial`, also for a rule without the argument `max_samples`.

        Args:
            num_workers: N.
            batch_size: B, the samples of a global batch.
            max_samples: the largest share of each worker, in samples and rank order; None means no bounds.

        Raises:
            ValueError: there are bounds, but the rule's `initial` does not accept them.
        """
        if max_samples is None:
            return self.initial(num_workers, batch_size)
        if "max_samples" not in inspect.signature(self.initial).parameters:
            raise ValueError(
                f"the nodes have max_samples, but {type(self).__name__}.initial takes no argument of this name: "
                "add it and respect it, or leave max_samples out"
            )
        return self.initial(num_workers, batch_size, max_samples)

    @abstractmethod
    def shares(self, state: Any) -> tuple[int, ...]:
        """The split: whole numbers of samples b_i ≥ 1 with Σ b_i = B, in rank order; b_i ≥ 0 for a rule that `leaves_out` workers.

        Args:
            state: the state of this rule.
        """

    def observe_profile(self, state: Any, timings: Sequence[Contribution]) -> Any:
        """The state at the beginning of the run, with the measured split.

        Args:
            state: the state of this rule.
            timings: the times of `repetitions` gradients or more of each worker, measured before the run.
        """
        return state

    def asks(self, state: Any, epoch: int) -> bool:
        """Whether `observe` needs timings at the end of this step: at every step, if the class has an `observe` of its own.

        Without a server, timings cost a `Gather`.

        Args:
            state: the state of this rule.
            epoch: whole passes over the data before this step.
        """
        return self.has("observe")

    def has(self, name: str) -> bool:
        """Whether the class has a method of this name of its own.

        Args:
            name: the name of a method of Allocation.
        """
        return getattr(type(self), name) is not getattr(Allocation, name)

    def observe(self, state: Any, timings: Sequence[Contribution], epoch: int = 0) -> Any:
        """The state after gradients were applied or dropped.

        Args:
            state: the state of this rule.
            timings: measured gradients. The rule reads their `rank`, `samples` and `seconds`. The sequence may be empty.
            epoch: whole passes over the data before this update.
        """
        return state

    def remark(self, num_epochs: float) -> str | None:
        """A remark for the user about a run, for example that no split was ever decided; None without a remark.

        Args:
            num_epochs: the passes over the data in the run.
        """
        return None


@dataclass(frozen=True)
class Even(Allocation):
    """Each worker takes B/N samples."""

    keeps_gradients = False

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> tuple[int, ...]:
        return proportional([1.0] * num_workers, batch_size, max_samples=max_samples)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


@dataclass(frozen=True, kw_only=True)
class Fixed(Allocation):
    """Worker i takes a fixed part of B for the whole run. `parts` are relative: with B = 256, [1, 1, 2, 4] gives [32, 32, 64, 128]."""

    keeps_gradients = False
    parts: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, list | tuple):
            raise ValueError(f"allocation.parts must be a list of positive numbers, one for each worker, not {self.parts!r}")
        if not self.parts:
            raise ValueError("allocation.parts is empty: give one positive number for each worker")
        for part in self.parts:
            if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part < math.inf:
                raise ValueError(f"allocation.parts must be positive numbers, one for each worker, not {part!r}")

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> tuple[int, ...]:
        if len(self.parts) != num_workers:
            raise ValueError(
                f"allocation.parts has {len(self.parts)} numbers, but the cluster has {num_workers} workers: give one for each"
            )
        return proportional(self.parts, batch_size, max_samples=max_samples)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


@dataclass(frozen=True)
class StaticState:
    """The split, and how many samples fit into each worker's memory."""

    shares: tuple[int, ...]
    max_samples: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Static(Allocation):
    """b_i = rint(B · s_i) with the relative speeds s_i, measured once before training; fixed for the run.

    Moreno-Álvarez, Paoletti, Rico-Gallego, Haut 2020 (10.1007/s11227-020-03200-6). A share of zero becomes one sample. If the
    rounded shares do not add up to B, the fastest worker gains or loses the difference.
    """

    keeps_gradients = False
    repetitions: int = 5

    def __post_init__(self) -> None:
        check_repetitions(self.repetitions, least=1)

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> StaticState:
        return StaticState(proportional([1.0] * num_workers, batch_size, max_samples=max_samples), max_samples)

    def shares(self, state: StaticState) -> tuple[int, ...]:
        return state.shares

    def observe_profile(self, state: StaticState, timings: Sequence[Contribution]) -> StaticState:
        """If a share exceeds a worker's memory, the split is proportional to the speeds within `max_samples`."""
        speeds = relative_speeds(timings, len(state.shares))
        total, batch_size = sum(speeds), sum(state.shares)
        shares = [max(1, round(batch_size * speed / total)) for speed in speeds]
        by_speed = sorted(range(len(shares)), key=lambda rank: (-speeds[rank], rank))
        shares[by_speed[0]] += max(0, batch_size - sum(shares))
        while sum(shares) > batch_size:
            shares[next(rank for rank in by_speed if shares[rank] > 1)] -= 1
        if state.max_samples is not None and any(share > bound for share, bound in zip(shares, state.max_samples, strict=True)):
            return replace(state, shares=proportional(speeds, batch_size, max_samples=state.max_samples))
        return replace(state, shares=tuple(shares))
