"""Rules that bound how far a worker is ahead of the slowest, or how old a gradient is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.admission.base import Admission, Decision


@dataclass(frozen=True)
class ClockState:
    """How many steps each worker has completed, and which workers wait for the slowest worker."""

    num_steps: Mapping[int, int]
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class BoundedStaleness(Admission):
    """Apply each gradient on arrival. A worker that is more than `bound` steps ahead of the slowest worker waits for that worker.

    Stale synchronous parallel, Ho et al. 2013 (NIPS 26): a worker that has completed c steps may continue iff c − min c ≤ bound.
    With bound 0, no worker begins a step before all workers have completed the previous step. null means no bound: asynchronous SGD.
    """

    bound: int | None

    def __post_init__(self) -> None:
        if self.bound is not None:
            checks.whole("admission.bound", self.bound, least=0)

    def initial(self, num_workers: int) -> ClockState:
        return ClockState(dict.fromkeys(range(num_workers), 0))

    def arrived(self, state: ClockState, contribution: Contribution) -> tuple[ClockState, Decision]:
        rank = contribution.rank
        num_steps = {**state.num_steps, rank: state.num_steps[rank] + 1}
        return self._release(ClockState(num_steps, state.waiting | {rank}), apply=(contribution,))

    def worker_left(self, state: ClockState, rank: int) -> tuple[ClockState, Decision]:
        return self._release(ClockState({worker: c for worker, c in state.num_steps.items() if worker != rank}, state.waiting - {rank}))

    def worker_joined(self, state: ClockState, rank: int) -> ClockState:
        """The worker starts with as many steps as the slowest other worker."""
        return ClockState({**state.num_steps, rank: min(state.num_steps.values(), default=0)}, state.waiting)

    def resumed(self, state: ClockState, num_workers: int) -> ClockState:
        return self.initial(num_workers)

    def _release(self, state: ClockState, *, apply: tuple[Contribution, ...] = ()) -> tuple[ClockState, Decision]:
        slowest = min(state.num_steps.values(), default=0)
        released = tuple(rank for rank in sorted(state.waiting) if self.bound is None or state.num_steps[rank] - slowest <= self.bound)
        return ClockState(state.num_steps, state.waiting.difference(released)), Decision(apply, release=released)


@dataclass(frozen=True, kw_only=True)
class Ringmaster(Admission):
    """Apply a gradient iff it is less than `max_delay` versions old, and drop it otherwise. Its worker continues at the newest weights.

    Ringmaster ASGD, arXiv 2501.16168, where `max_delay` is R.
    """

    max_delay: int

    def __post_init__(self) -> None:
        checks.whole("admission.max_delay", self.max_delay)

    def initial(self, num_workers: int) -> None:
        return None

    def arrived(self, state: None, contribution: Contribution) -> tuple[None, Decision]:
        group, release = (contribution,), (contribution.rank,)
        if contribution.staleness < self.max_delay:
            return None, Decision(apply=group, release=release)
        return None, Decision(drop=group, release=release)


@dataclass(frozen=True, kw_only=True)
class RingmasterStops(Ringmaster):
    """Ringmaster ASGD as its authors run it: a worker stops when its weights become `max_delay` versions old, and restarts at the newest.

    So the rule drops no gradient, and no worker completes a useless gradient.
    """

    stops: ClassVar[bool] = True

    def gives_up(self, delay: int) -> bool:
        return delay >= self.max_delay
