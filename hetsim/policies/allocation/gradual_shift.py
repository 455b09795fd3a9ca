"""LB-BSP's rule for nodes with a step time that may not be linear in the samples: it moves a few samples at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, check_repetitions, proportional, relative_speeds


@dataclass(frozen=True)
class GradualShiftState:
    """The split, the step times since the last shift (None if not measured), Δ, and the worker that last received samples."""

    shares: tuple[int, ...]
    t: tuple[float | None, ...]
    step: int
    receiver: int | None = None
    max_samples: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class GradualShift(Allocation):
    """Move Δ samples from the slowest to the fastest worker; halve Δ if the last receiver is now the slowest.

    LB-BSP's rule for step times that may not be linear in the samples: arXiv 1806.02508. It shifts once all workers have been
    measured with the current split. At Δ = 1, the rule moves a sample back only to a worker that would finish it sooner.
    """

    keeps_gradients = False
    step: int = 5
    """The first Δ, in samples."""
    repetitions: int = 0
    """How many B-sample gradients each worker computes before the run; the first split is then proportional to speed."""

    def __post_init__(self) -> None:
        checks.whole("allocation.step", self.step)
        check_repetitions(self.repetitions)

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> GradualShiftState:
        return GradualShiftState(
            proportional([1.0] * num_workers, batch_size, max_samples=max_samples),
            (None,) * num_workers,
            self.step,
            max_samples=max_samples,
        )

    def shares(self, state: GradualShiftState) -> tuple[int, ...]:
        return state.shares

    def observe_profile(self, state: GradualShiftState, timings: Sequence[Contribution]) -> GradualShiftState:
        speeds = relative_speeds(timings, len(state.shares))
        return replace(state, shares=proportional(speeds, sum(state.shares), max_samples=state.max_samples))

    def asks(self, state: GradualShiftState, epoch: int) -> bool:
        return True

    def observe(self, state: GradualShiftState, timings: Sequence[Contribution], epoch: int = 0) -> GradualShiftState:
        if not timings:
            return state
        t = list(state.t)
        for timing in timings:
            if timing.samples == state.shares[timing.rank]:
                t[timing.rank] = timing.seconds
        times = [seconds for seconds in t if seconds is not None]
        if len(times) < len(t):
            return replace(state, t=tuple(t))
        with_room = [rank for rank, b in enumerate(state.shares) if state.max_samples is None or b < state.max_samples[rank]]
        slowest, fastest = times.index(max(times)), min(with_room, key=times.__getitem__, default=0)
        if not with_room or times[slowest] == times[fastest]:
            return replace(state, t=(None,) * len(t))
        goes_back = slowest == state.receiver
        step = max(1, state.step // 2) if goes_back else state.step
        with_one_more = times[fastest] * (1 + 1 / state.shares[fastest])
        if goes_back and state.step == 1 and with_one_more >= times[slowest]:
            return replace(state, t=(None,) * len(t))
        moved = min(step, state.shares[slowest] - 1)
        if state.max_samples is not None:
            moved = min(moved, state.max_samples[fastest] - state.shares[fastest])
        shares = list(state.shares)
        shares[slowest] -= moved
        shares[fastest] += moved
        return GradualShiftState(tuple(shares), (None,) * len(t), step, fastest, state.max_samples)
