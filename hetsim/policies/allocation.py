"""How many samples each worker takes of the next global batch of B."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim import checks
from hetsim.effects import Contribution


def proportional(weights: Sequence[float], total: int, *, least: int = 1, most: Sequence[int] | None = None) -> tuple[int, ...]:
    """Split `total` in proportion to `weights` by largest remainder, at least `least` each; ties go to the lower rank.

    Nobody gets more than `most` allows; what would be more goes to the others in the same proportion.
    """
    shares = _by_remainder(weights, total, least)
    if most is None:
        return shares
    if sum(most) < total:
        raise ValueError(f"the nodes' max_samples hold {sum(most)} samples in all, but batch_size={total}: raise them, or lower it")
    if all(share <= bound for share, bound in zip(shares, most, strict=True)):
        return shares
    others = [rank for rank, (share, bound) in enumerate(zip(shares, most, strict=True)) if share < bound]
    split = list(most)
    left = total - sum(most) + sum(most[rank] for rank in others)
    rest = proportional([weights[rank] for rank in others], left, least=least, most=[most[rank] for rank in others]) if others else ()
    for rank, share in zip(others, rest, strict=True):
        split[rank] = share
    return tuple(split)


def _by_remainder(weights: Sequence[float], total: int, least: int) -> tuple[int, ...]:
    largest = max(weights)
    weights = [weight / largest for weight in weights]
    held = [False] * len(weights)
    while True:
        free = total - least * sum(held)
        scale = free / math.fsum(weight for weight, at_least in zip(weights, held, strict=True) if not at_least)
        quotas = [least if at_least else weight * scale for weight, at_least in zip(weights, held, strict=True)]
        short = [
            not at_least and quota < least * (1 - 1e-9) for quota, at_least in zip(quotas, held, strict=True)
        ]  # an exact quota may round to below
        if not any(short):
            break
        held = [at_least or lacks for at_least, lacks in zip(held, short, strict=True)]
    shares = [max(least, math.floor(quota)) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda rank: (round(shares[rank] - quotas[rank], 9), rank))
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


class Allocation(ABC):
    """Decides (b_1 … b_N) with Σ b_i = B and b_i ≥ 1, from what it has observed."""

    repetitions: int = 0
    """Gradients of B samples that each worker computes before the run begins, thrown away but for their times (see `profiled`)."""

    @abstractmethod
    def initial(self, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> Any:
        """The state before anything was observed; no worker may ever take more samples than `most` says (None: no bounds)."""

    def begun(self, num_workers: int, batch_size: int, most: Sequence[int] | None) -> Any:
        """`initial`, for rules that heed memory and, where no node has a bound, for those that do not know of it."""
        if most is None:
            return self.initial(num_workers, batch_size)
        if "most" not in inspect.signature(self.initial).parameters:
            raise ValueError(
                f"the nodes have max_samples, but {type(self).__name__}.initial takes no `most`: let it heed that, or leave max_samples out"
            )
        return self.initial(num_workers, batch_size, most)

    @abstractmethod
    def shares(self, state: Any) -> tuple[int, ...]:
        """Samples for each worker, in rank order."""

    def profiled(self, state: Any, timings: Sequence[Contribution]) -> Any:
        """The state at the beginning of the run, after `repetitions` gradients of everyone."""
        return state

    def asks(self, state: Any, epoch: int) -> bool:
        """Whether to measure at the end of this step: without a server that costs a `Gather`."""
        return False

    def observe(self, state: Any, timings: Sequence[Contribution], epoch: int = 0) -> Any:
        """The state after an update, or a drop, from `rank`, `samples` and `seconds` of what was measured at it, if anything was.

        `epoch` counts whole passes over the data that are behind this update.
        """
        return state


@dataclass(frozen=True)
class Even(Allocation):
    """Everyone takes B/N."""

    def initial(self, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> tuple[int, ...]:
        return proportional([1.0] * num_workers, batch_size, most=most)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


@dataclass(frozen=True, kw_only=True)
class Fixed(Allocation):
    """Worker i takes its given part of B for the whole run: `parts` are relative, [1, 1, 2, 4] as good as [32, 32, 64, 128]."""

    parts: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, list | tuple):
            raise ValueError(f"allocation.parts must be a list of positive numbers, one for each worker, not {self.parts!r}")
        if not self.parts:
            raise ValueError("allocation.parts is empty: give one positive number for each worker")
        for part in self.parts:
            if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part < math.inf:
                raise ValueError(f"allocation.parts must be positive numbers, one for each worker, not {part!r}")

    def initial(self, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> tuple[int, ...]:
        if len(self.parts) != num_workers:
            raise ValueError(
                f"allocation.parts has {len(self.parts)} numbers, but the cluster has {num_workers} workers: give one for each"
            )
        return proportional(self.parts, batch_size, most=most)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


@dataclass(frozen=True)
class Measured:
    """What a rule knows: the split in force, v_i as it holds them (None: not yet), and what was measured since it last decided."""

    batch_size: int
    shares: tuple[int, ...]
    v: tuple[float | None, ...]
    samples: tuple[int, ...]
    seconds: tuple[float, ...]
    num_updates: int = 0
    epoch: int = 0
    most: Sequence[int] | None = None

    @classmethod
    def nothing(cls, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> Measured:
        """Before the first update: even."""
        zeros, even = (0,) * num_workers, proportional([1.0] * num_workers, batch_size, most=most)
        return cls(batch_size, even, (None,) * num_workers, zeros, zeros, most=most)

    def and_these(self, timings: Sequence[Contribution]) -> Measured:
        """With these gradients; an update at which nothing was measured is counted."""
        if not timings:
            return replace(self, num_updates=self.num_updates + 1)
        samples, seconds = list(self.samples), list(self.seconds)
        for timing in timings:
            if timing.samples and timing.seconds > 0:
                samples[timing.rank] += timing.samples
                seconds[timing.rank] += timing.seconds
        return replace(self, samples=tuple(samples), seconds=tuple(seconds), num_updates=self.num_updates + 1)

    def decided(self, shares: tuple[int, ...], v: Sequence[float | None], epoch: int) -> Measured:
        """With this split, and a new beginning."""
        zeros = (0,) * len(shares)
        return replace(self, shares=shares, v=tuple(v), samples=zeros, seconds=zeros, num_updates=0, epoch=epoch)


@dataclass(frozen=True, kw_only=True)
class Periodic(Allocation):
    """A rule that decides every update, every k updates or at the end of each epoch, from what was measured since it last did."""

    reallocate_every: int | str = 1
    """Updates, or "epoch"."""
    smoothing: float = 0.0
    """The part that the past keeps in the moving average of what was measured."""
    dead_band: float = 0.0
    """The relative change below which the split stays."""

    def __post_init__(self) -> None:
        if self.reallocate_every != "epoch":
            if isinstance(self.reallocate_every, str):
                raise ValueError(f"allocation.reallocate_every must be a number of updates or epoch, not {self.reallocate_every!r}")
            checks.whole("allocation.reallocate_every", self.reallocate_every)
        checks.fraction("allocation.smoothing", self.smoothing)
        checks.number("allocation.dead_band", self.dead_band, zero=True)

    def initial(self, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> Measured:
        return Measured.nothing(num_workers, batch_size, most)

    def shares(self, state: Measured) -> tuple[int, ...]:
        return state.shares

    def asks(self, state: Measured, epoch: int) -> bool:
        return self._due(state.num_updates + 1, epoch != state.epoch)

    def observe(self, state: Measured, timings: Sequence[Contribution], epoch: int = 0) -> Measured:
        state = state.and_these(timings)
        if not self._due(state.num_updates, epoch != state.epoch):
            return state
        shares, v = self.decide(state)
        return state.decided(shares, v, epoch)

    @abstractmethod
    def decide(self, state: Measured) -> tuple[tuple[int, ...], Sequence[float | None]]:
        """The next split, and v_i to remember."""

    def _due(self, num_updates: int, epoch_passed: bool) -> bool:
        return epoch_passed if self.reallocate_every == "epoch" else num_updates >= int(self.reallocate_every)


def averaged(old: float | None, new: float, smoothing: float) -> float:
    """The exponential moving average: `smoothing` is the part that the past keeps."""
    return new if old is None else smoothing * old + (1 - smoothing) * new


@dataclass(frozen=True, kw_only=True)
class SpeedProportional(Periodic):
    """DBS: b_i = B · v_i / Σ v_j by the speeds measured, v_i = b_i / t_i; even until everyone has been measured.

    Ji et al. 2019 (10.7544/issn1000-1239.2019.20180880) modulate the batch "according to the runtime performance of
    each node" so that all step times agree; the rule as code, once an epoch: Ye et al., arXiv 2007.11831.
    `smoothing` is what the average of a speed keeps of the past; the split stays while no share would change by more
    than the part `dead_band` of it.
    """

    def decide(self, state: Measured) -> tuple[tuple[int, ...], Sequence[float | None]]:
        measured = zip(state.v, state.samples, state.seconds, strict=True)
        v = [averaged(old, b / t, self.smoothing) if b else old for old, b, t in measured]
        speeds = [speed for speed in v if speed is not None]
        if len(speeds) < len(v):
            return state.shares, v
        shares = proportional(speeds, state.batch_size, most=state.most)
        change = max(abs(new - old) / old for new, old in zip(shares, state.shares, strict=True))
        return (shares if change > self.dead_band else state.shares), v


@dataclass(frozen=True, kw_only=True)
class ProportionalController(Periodic):
    """b_i ← b_i · t̄/t_i, renormalised to Σ b_i = B, unless every t_i is within `dead_band` of the mean t̄. OmniLearn, arXiv 2503.17469.

    t_i = b_i · (smoothed seconds per sample). Without smoothing and dead band it is DBS.
    """

    smoothing: float = 0.5
    dead_band: float = 0.05

    def decide(self, state: Measured) -> tuple[tuple[int, ...], Sequence[float | None]]:
        """Remembers seconds per sample in place of v_i."""
        measured = zip(state.v, state.samples, state.seconds, strict=True)
        per_sample = [averaged(old, t / b, self.smoothing) if b else old for old, b, t in measured]
        t = [b * seconds for b, seconds in zip(state.shares, per_sample, strict=True) if seconds is not None]
        if len(t) < len(per_sample):
            return state.shares, per_sample
        mean = sum(t) / len(t)
        if max(abs(t_i - mean) for t_i in t) <= self.dead_band * mean:
            return state.shares, per_sample
        wanted = [b * mean / t_i for b, t_i in zip(state.shares, t, strict=True)]
        return proportional(wanted, state.batch_size, most=state.most), per_sample


@dataclass(frozen=True)
class Shifting:
    """The split of a gradual shift, the last step times (None: not since the last shift), Δ, and who received last."""

    shares: tuple[int, ...]
    t: tuple[float | None, ...]
    step: int
    receiver: int | None = None
    most: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class GradualShift(Allocation):
    """Move Δ samples from the slowest to the fastest worker; halve Δ when the one that received last is the slowest now.

    LB-BSP's rule where the time of a step is not known to be linear in its samples: arXiv 1806.02508. It shifts once
    everyone has been measured under the present split; at Δ = 1 a sample does not go back to where it would end no sooner.
    """

    step: int = 5
    """Δ to begin with, in samples."""

    def __post_init__(self) -> None:
        checks.whole("allocation.step", self.step)

    def initial(self, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> Shifting:
        return Shifting(proportional([1.0] * num_workers, batch_size, most=most), (None,) * num_workers, self.step, most=most)

    def shares(self, state: Shifting) -> tuple[int, ...]:
        return state.shares

    def asks(self, state: Shifting, epoch: int) -> bool:
        return True

    def observe(self, state: Shifting, timings: Sequence[Contribution], epoch: int = 0) -> Shifting:
        if not timings:
            return state
        t = list(state.t)
        for timing in timings:
            if timing.samples == state.shares[timing.rank]:
                t[timing.rank] = timing.seconds
        times = [seconds for seconds in t if seconds is not None]
        if len(times) < len(t):
            return replace(state, t=tuple(t))
        with_room = [rank for rank, b in enumerate(state.shares) if state.most is None or b < state.most[rank]]
        slowest, fastest = times.index(max(times)), min(with_room, key=times.__getitem__, default=0)
        if not with_room or times[slowest] == times[fastest]:
            return replace(state, t=(None,) * len(t))
        goes_back = slowest == state.receiver
        step = max(1, state.step // 2) if goes_back else state.step
        with_one_more = times[fastest] * (1 + 1 / state.shares[fastest])
        if goes_back and state.step == 1 and with_one_more >= times[slowest]:
            return replace(state, t=(None,) * len(t))
        moved = min(step, state.shares[slowest] - 1)
        if state.most is not None:
            moved = min(moved, state.most[fastest] - state.shares[fastest])
        shares = list(state.shares)
        shares[slowest] -= moved
        shares[fastest] += moved
        return Shifting(tuple(shares), (None,) * len(t), step, fastest, state.most)


@dataclass(frozen=True)
class Settled:
    """A split that stays, and what fits into each worker's memory."""

    shares: tuple[int, ...]
    most: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Static(Allocation):
    """b_i = rint(B · s_i) by the speeds s_i measured once before training, what is left over to the fastest; fixed for the run.

    Moreno-Álvarez, Paoletti, Rico-Gallego, Haut 2020 (10.1007/s11227-020-03200-6). A share that rint makes empty is one
    sample; what rint gave too much is taken from the fastest.
    """

    repetitions: int = 5

    def __post_init__(self) -> None:
        checks.whole("allocation.repetitions", self.repetitions)

    def initial(self, num_workers: int, batch_size: int, most: Sequence[int] | None = None) -> Settled:
        return Settled(proportional([1.0] * num_workers, batch_size, most=most), most)

    def shares(self, state: Settled) -> tuple[int, ...]:
        return state.shares

    def profiled(self, state: Settled, timings: Sequence[Contribution]) -> Settled:
        """Where a bound binds, the split is the one in proportion to the speeds that memory allows."""
        samples, seconds = [0] * len(state.shares), [0.0] * len(state.shares)
        for timing in timings:
            samples[timing.rank] += timing.samples
            seconds[timing.rank] += timing.seconds
        speeds = [b / max(samples) / t for b, t in zip(samples, seconds, strict=True)]
        total, batch_size = sum(speeds), sum(state.shares)
        shares = [max(1, round(batch_size * speed / total)) for speed in speeds]
        by_speed = sorted(range(len(shares)), key=lambda rank: (-speeds[rank], rank))
        shares[by_speed[0]] += max(0, batch_size - sum(shares))
        while sum(shares) > batch_size:
            shares[next(rank for rank in by_speed if shares[rank] > 1)] -= 1
        if state.most is not None and any(share > bound for share, bound in zip(shares, state.most, strict=True)):
            return replace(state, shares=proportional(speeds, batch_size, most=state.most))
        return replace(state, shares=tuple(shares))
