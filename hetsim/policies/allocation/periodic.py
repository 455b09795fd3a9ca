"""Rules that decide every k updates or once in each epoch, from the timings since their last decision: DBS and OmniLearn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, check_repetitions, proportional


@dataclass(frozen=True)
class PeriodicState:
    """The current split, each worker's moving average v_i (None if not measured yet), and samples and seconds since the last decision."""

    batch_size: int
    shares: tuple[int, ...]
    v: tuple[float | None, ...]
    samples: tuple[int, ...]
    seconds: tuple[float, ...]
    num_updates: int = 0
    epoch: int = 0
    max_samples: Sequence[int] | None = None

    @classmethod
    def initial(cls, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> PeriodicState:
        """Before the first update: an even split."""
        zeros, even = (0,) * num_workers, proportional([1.0] * num_workers, batch_size, max_samples=max_samples)
        return cls(batch_size, even, (None,) * num_workers, zeros, zeros, max_samples=max_samples)

    def appended(self, timings: Sequence[Contribution]) -> PeriodicState:
        """The state after one more update and these timings. There may be no timings."""
        if not timings:
            return replace(self, num_updates=self.num_updates + 1)
        samples, seconds = list(self.samples), list(self.seconds)
        for timing in timings:
            if timing.samples and timing.seconds > 0:
                samples[timing.rank] += timing.samples
                seconds[timing.rank] += timing.seconds
        return replace(self, samples=tuple(samples), seconds=tuple(seconds), num_updates=self.num_updates + 1)

    def reset(self, shares: tuple[int, ...], v: Sequence[float | None], epoch: int) -> PeriodicState:
        """The state with this split and no timings."""
        zeros = (0,) * len(shares)
        return replace(self, shares=shares, v=tuple(v), samples=zeros, seconds=zeros, num_updates=0, epoch=epoch)


@dataclass(frozen=True, kw_only=True)
class Periodic(Allocation):
    """A rule that decides every k updates or at the end of each epoch, from the timings since its last decision."""

    reallocate_every: int | str = 1
    """The number of updates between decisions, or "epoch"."""
    smoothing: float = 0.0
    """The weight of past values in the moving average of the measurements."""
    dead_band: float = 0.0
    """The relative change up to which the rule keeps the split."""
    repetitions: int = 0
    """How many B-sample gradients each worker computes before the run. They are the first measurement, and decide the first split."""

    def __post_init__(self) -> None:
        if self.reallocate_every != "epoch":
            if isinstance(self.reallocate_every, str):
                raise ValueError(f"allocation.reallocate_every must be a number of updates or epoch, not {self.reallocate_every!r}")
            checks.whole("allocation.reallocate_every", self.reallocate_every)
        checks.fraction("allocation.smoothing", self.smoothing)
        checks.number("allocation.dead_band", self.dead_band, zero=True)
        check_repetitions(self.repetitions)

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> PeriodicState:
        return PeriodicState.initial(num_workers, batch_size, max_samples)

    def shares(self, state: PeriodicState) -> tuple[int, ...]:
        return state.shares

    def observe_profile(self, state: PeriodicState, timings: Sequence[Contribution]) -> PeriodicState:
        return state.reset(*self.decide(state.appended(timings)), state.epoch)

    def asks(self, state: PeriodicState, epoch: int) -> bool:
        return self._due(state.num_updates + 1, epoch != state.epoch)

    def observe(self, state: PeriodicState, timings: Sequence[Contribution], epoch: int = 0) -> PeriodicState:
        state = state.appended(timings)
        if not self._due(state.num_updates, epoch != state.epoch):
            return state
        shares, v = self.decide(state)
        return state.reset(shares, v, epoch)

    def remark(self, num_epochs: float) -> str | None:
        if self.reallocate_every != "epoch" or self.repetitions or num_epochs >= 2:
            return None
        return (
            f"allocation.reallocate_every=epoch splits by speed from the second epoch on, and the run had {num_epochs:.3g}: "
            "give it two or more, or set allocation.repetitions=3, which measures before it"
        )

    @abstractmethod
    def decide(self, state: PeriodicState) -> tuple[tuple[int, ...], Sequence[float | None]]:
        """The next split, and the moving averages v_i to keep."""

    def _due(self, num_updates: int, epoch_passed: bool) -> bool:
        return epoch_passed if self.reallocate_every == "epoch" else num_updates >= int(self.reallocate_every)


def moving_average(old: float | None, new: float, smoothing: float) -> float:
    """The exponential moving average. `smoothing` is the weight of past values."""
    return new if old is None else smoothing * old + (1 - smoothing) * new


@dataclass(frozen=True, kw_only=True)
class SpeedProportional(Periodic):
    """DBS: b_i = B · v_i / Σ v_j, with the measured speeds v_i = b_i / t_i. The split is even until all workers have been measured.

    Ji et al. 2019 (10.7544/issn1000-1239.2019.20180880) modulate the batch "according to the runtime performance of
    each node" so that all step times agree. Ye et al., arXiv 2007.11831, give the rule as code, once in each epoch.
    `smoothing` is the weight of past values in the average of a speed. The split stays while no share would change by more
    than the fraction `dead_band`.
    """

    keeps_gradients = False

    def decide(self, state: PeriodicState) -> tuple[tuple[int, ...], Sequence[float | None]]:
        measured = zip(state.v, state.samples, state.seconds, strict=True)
        v = [moving_average(old, b / t, self.smoothing) if b else old for old, b, t in measured]
        speeds = [speed for speed in v if speed is not None]
        if len(speeds) < len(v):
            return state.shares, v
        shares = proportional(speeds, state.batch_size, max_samples=state.max_samples)
        change = max(abs(new - old) / old for new, old in zip(shares, state.shares, strict=True))
        return (shares if change > self.dead_band else state.shares), v


@dataclass(frozen=True, kw_only=True)
class ProportionalController(Periodic):
    """b_i ← b_i · t̄/t_i, renormalised to Σ b_i = B, unless every t_i is within `dead_band` of the mean t̄. OmniLearn, arXiv 2503.17469.

    t_i = b_i · (smoothed seconds per sample). Without smoothing and dead band, the rule is DBS.
    """

    keeps_gradients = False
    smoothing: float = 0.5
    dead_band: float = 0.05

    def decide(self, state: PeriodicState) -> tuple[tuple[int, ...], Sequence[float | None]]:
        """Average seconds per sample instead of speeds v_i."""
        measured = zip(state.v, state.samples, state.seconds, strict=True)
        per_sample = [moving_average(old, t / b, self.smoothing) if b else old for old, b, t in measured]
        t = [b * seconds for b, seconds in zip(state.shares, per_sample, strict=True) if seconds is not None]
        if len(t) < len(per_sample):
            return state.shares, per_sample
        mean = sum(t) / len(t)
        if max(abs(t_i - mean) for t_i in t) <= self.dead_band * mean:
            return state.shares, per_sample
        wanted = [b * mean / t_i for b, t_i in zip(state.shares, t, strict=True)]
        return proportional(wanted, state.batch_size, max_samples=state.max_samples), per_sample
