"""What the server applies, and whom it frees to go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim import checks
from hetsim.effects import Contribution


@dataclass(slots=True, unsafe_hash=True)
class Decision:
    """Apply these as one group, drop those, and let these ranks take their next range."""

    apply: tuple[Contribution, ...] = ()
    drop: tuple[Contribution, ...] = ()
    release: tuple[int, ...] = ()


class Admission(ABC):
    """Decides what happens when a gradient arrives, or a worker leaves."""

    lets_gradients_be_late: ClassVar[bool] = True
    """Whether what it applies can be older than the version that it is applied to."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checks.refuse_renamed(cls, left="worker_left", joined="worker_joined")

    @abstractmethod
    def initial(self, num_workers: int) -> Any:
        """The state before anything has arrived; ValueError, with one sentence, if so many workers make no sense of it."""

    def group_size(self, num_workers: int) -> int:
        """How many gradients make a version; a weight acts on a single one through its scale alone."""
        return 1

    @abstractmethod
    def arrived(self, state: Any, contribution: Contribution) -> tuple[Any, Decision]:
        """What to do now that this gradient is here."""

    def worker_left(self, state: Any, rank: int) -> tuple[Any, Decision]:
        """What to do now that this worker will send no more (at the end, whatever is still held is to be applied)."""
        return state, Decision()

    def worker_joined(self, state: Any, rank: int) -> Any:
        """The state now that this worker takes part, which had left or was lost."""
        return state

    def resumed(self, state: Any, num_workers: int) -> Any:
        """The state at a new start, where all workers take part again."""
        return state

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """An equal part of the global batch that this group belongs to, in samples."""
        return batch_size / num_workers


@dataclass(frozen=True)
class EveryGradient(Admission):
    """Apply each gradient as it arrives, and free its worker: asynchronous SGD (Downpour)."""

    def initial(self, num_workers: int) -> None:
        return None

    def arrived(self, state: None, contribution: Contribution) -> tuple[None, Decision]:
        return None, Decision(apply=(contribution,), release=(contribution.rank,))


@dataclass(frozen=True)
class ArrivalState:
    """What is held back: who takes part, how many gradients make a round, and what has arrived of this one."""

    members: frozenset[int]
    size: int
    waiting: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Barrier(Admission):
    """Wait for everyone, apply all as one, free everyone: synchronous SGD."""

    lets_gradients_be_late: ClassVar[bool] = False

    def group_size(self, num_workers: int) -> int:
        return num_workers

    def initial(self, num_workers: int) -> ArrivalState:
        return ArrivalState(frozenset(range(num_workers)), size=num_workers)

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        return _completed(replace(state, waiting=(*state.waiting, contribution)))

    def worker_joined(self, state: ArrivalState, rank: int) -> ArrivalState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: ArrivalState, num_workers: int) -> ArrivalState:
        return replace(state, members=frozenset(range(num_workers)))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        return _completed(replace(state, members=state.members - {rank}))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """The group *is* the global batch, also when that is the last, shorter one."""
        return sum(contribution.samples for contribution in group) / len(group)


def _completed(state: ArrivalState) -> tuple[ArrivalState, Decision]:
    """Apply a round, in rank order, and free those who made it, if enough of it is here or nobody is left to wait for."""
    count = len(state.waiting)
    if not count or (count < state.size and (count < len(state.members) or not state.members <= {c.rank for c in state.waiting})):
        return state, Decision()
    group = tuple(sorted(state.waiting, key=lambda contribution: contribution.rank))
    return replace(state, waiting=()), Decision(apply=group, release=tuple(c.rank for c in group))


@dataclass(frozen=True)
class ClockState:
    """How many steps each worker has done, and who waits for the slowest."""

    done: Mapping[int, int]
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class BoundedStaleness(Admission):
    """Apply each gradient as it arrives; a worker that is more than `bound` steps ahead of the slowest waits for it.

    Stale synchronous parallel, Ho et al. 2013 (NIPS 26): a worker that has done c steps may go on iff c − min c ≤ bound.
    Bound 0 lets nobody begin a step before all have done the last one; null is no bound, asynchronous SGD.
    """

    bound: int | None

    def __post_init__(self) -> None:
        if self.bound is not None:
            checks.whole("admission.bound", self.bound, least=0)

    def initial(self, num_workers: int) -> ClockState:
        return ClockState(dict.fromkeys(range(num_workers), 0))

    def arrived(self, state: ClockState, contribution: Contribution) -> tuple[ClockState, Decision]:
        rank = contribution.rank
        done = {**state.done, rank: state.done[rank] + 1}
        return self._go_on(ClockState(done, state.waiting | {rank}), apply=(contribution,))

    def worker_left(self, state: ClockState, rank: int) -> tuple[ClockState, Decision]:
        return self._go_on(ClockState({other: c for other, c in state.done.items() if other != rank}, state.waiting - {rank}))

    def worker_joined(self, state: ClockState, rank: int) -> ClockState:
        """With the slowest of the others."""
        return ClockState({**state.done, rank: min(state.done.values(), default=0)}, state.waiting)

    def resumed(self, state: ClockState, num_workers: int) -> ClockState:
        return self.initial(num_workers)

    def _go_on(self, state: ClockState, *, apply: tuple[Contribution, ...] = ()) -> tuple[ClockState, Decision]:
        slowest = min(state.done.values(), default=0)
        free = tuple(rank for rank in sorted(state.waiting) if self.bound is None or state.done[rank] - slowest <= self.bound)
        return ClockState(state.done, state.waiting.difference(free)), Decision(apply, release=free)


@dataclass(frozen=True, kw_only=True)
class SoftSync(Admission):
    """Apply every c = ⌊N/n⌋ gradients as one, whoever they are from; a worker goes on at once with the newest weights.

    n-softsync, Zhang, Gupta, Lian, Liu, arXiv 1511.05950. n = N is asynchronous SGD; n = 1 is not synchronous SGD, as nobody waits.
    """

    n: int

    def __post_init__(self) -> None:
        checks.whole("admission.n", self.n)

    def group_size(self, num_workers: int) -> int:
        return num_workers // self.n

    def initial(self, num_workers: int) -> ArrivalState:
        if self.n > num_workers:
            raise ValueError(f"admission.n={self.n} is more than the cluster's {num_workers} workers: give at most so many")
        return ArrivalState(frozenset(range(num_workers)), size=self.group_size(num_workers))

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        waiting = (*state.waiting, contribution)
        if len(waiting) < state.size:
            return replace(state, waiting=waiting), Decision(release=(contribution.rank,))
        return replace(state, waiting=()), Decision(apply=waiting, release=(contribution.rank,))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        members = state.members - {rank}
        if members:
            return replace(state, members=members), Decision()
        return replace(state, members=members, waiting=()), Decision(apply=state.waiting)

    def worker_joined(self, state: ArrivalState, rank: int) -> ArrivalState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: ArrivalState, num_workers: int) -> ArrivalState:
        return replace(state, members=frozenset(range(num_workers)))


@dataclass(frozen=True, kw_only=True)
class Backup(Admission):
    """Apply the first N − `spares` gradients of each version as one and drop those that come later: nobody waits for stragglers.

    Chen, Monga, Bengio, Jozefowicz, arXiv 1604.00981. Without spares it is a barrier.
    """

    lets_gradients_be_late: ClassVar[bool] = False

    spares: int

    def __post_init__(self) -> None:
        checks.whole("admission.spares", self.spares, least=0)

    def group_size(self, num_workers: int) -> int:
        return num_workers - self.spares

    def initial(self, num_workers: int) -> ArrivalState:
        if self.spares >= num_workers:
            raise ValueError(f"admission.spares={self.spares} leaves none of the cluster's {num_workers} workers: give fewer")
        return ArrivalState(frozenset(range(num_workers)), size=self.group_size(num_workers))

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        if contribution.staleness:
            return state, Decision(drop=(contribution,), release=(contribution.rank,))
        return _completed(replace(state, waiting=(*state.waiting, contribution)))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        return _completed(replace(state, members=state.members - {rank}))

    def worker_joined(self, state: ArrivalState, rank: int) -> ArrivalState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: ArrivalState, num_workers: int) -> ArrivalState:
        return replace(state, members=frozenset(range(num_workers)))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """The group is the global batch of its version."""
        return sum(contribution.samples for contribution in group) / len(group)


@dataclass(frozen=True, kw_only=True)
class Ringmaster(Admission):
    """Apply a gradient iff it is less than `max_delay` versions old, drop it otherwise; its worker begins anew at the newest weights.

    Ringmaster ASGD, arXiv 2501.16168, whose R this is.
    """

    max_delay: int

    def __post_init__(self) -> None:
        checks.whole("admission.max_delay", self.max_delay)

    def initial(self, num_workers: int) -> None:
        return None

    def arrived(self, state: None, contribution: Contribution) -> tuple[None, Decision]:
        only, free = (contribution,), (contribution.rank,)
        return None, Decision(apply=only, release=free) if contribution.staleness < self.max_delay else Decision(drop=only, release=free)
