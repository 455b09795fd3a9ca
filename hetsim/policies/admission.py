"""Which gradients the server applies, and which workers it releases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim import checks
from hetsim.effects import Contribution


@dataclass(slots=True, unsafe_hash=True)
class Decision:
    """Apply the contributions in `apply` as one group, drop those in `drop`, and let the ranks in `release` take their next range."""

    apply: tuple[Contribution, ...] = ()
    drop: tuple[Contribution, ...] = ()
    release: tuple[int, ...] = ()


class Admission(ABC):
    """Decides what the server does when a gradient arrives or a worker leaves."""

    lets_gradients_be_late: ClassVar[bool] = True
    """Whether a gradient can be applied to a newer version than the one that it was computed at."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checks.refuse_renamed(cls, left="worker_left", joined="worker_joined")

    @abstractmethod
    def initial(self, num_workers: int) -> Any:
        """The state before the first gradient; ValueError, with one sentence, if the rule cannot work with so many workers."""

    def group_size(self, num_workers: int) -> int:
        """How many gradients make a version; if it is one, a weight only scales that gradient."""
        return 1

    @abstractmethod
    def arrived(self, state: Any, contribution: Contribution) -> tuple[Any, Decision]:
        """The state and the decision after this gradient has arrived."""

    def worker_left(self, state: Any, rank: int) -> tuple[Any, Decision]:
        """The state and the decision after this worker has sent its last gradient; after the last worker, apply what is still held."""
        return state, Decision()

    def worker_joined(self, state: Any, rank: int) -> Any:
        """The state after this worker, which had left or was lost, takes part again."""
        return state

    def resumed(self, state: Any, num_workers: int) -> Any:
        """The state after a restart, in which all workers take part again."""
        return state

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """An equal share of the global batch that this group belongs to, in samples."""
        return batch_size / num_workers


@dataclass(frozen=True)
class EveryGradient(Admission):
    """Apply each gradient on arrival and release its worker: asynchronous SGD (Downpour)."""

    def initial(self, num_workers: int) -> None:
        return None

    def arrived(self, state: None, contribution: Contribution) -> tuple[None, Decision]:
        return None, Decision((contribution,), (), (contribution.rank,))


@dataclass(frozen=True)
class ArrivalState:
    """The workers that take part, how many gradients make a version, and the gradients that wait for the rest of them."""

    members: frozenset[int]
    size: int
    waiting: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Barrier(Admission):
    """Wait for the gradients of all workers, apply them as one group, release all workers: synchronous SGD."""

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
        """The group *is* the global batch, also the last, shorter one."""
        return sum(contribution.samples for contribution in group) / len(group)


def _completed(state: ArrivalState) -> tuple[ArrivalState, Decision]:
    """Apply the waiting gradients in rank order and release their workers, if they are enough or no worker is still to send one."""
    count = len(state.waiting)
    if not count or (count < state.size and (count < len(state.members) or not state.members <= {c.rank for c in state.waiting})):
        return state, Decision()
    group = tuple(sorted(state.waiting, key=lambda contribution: contribution.rank))
    return replace(state, waiting=()), Decision(apply=group, release=tuple(c.rank for c in group))


@dataclass(frozen=True)
class ClockState:
    """How many steps each worker has done, and which workers wait for the slowest."""

    done: Mapping[int, int]
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class BoundedStaleness(Admission):
    """Apply each gradient on arrival; a worker that is more than `bound` steps ahead of the slowest waits for it.

    Stale synchronous parallel, Ho et al. 2013 (NIPS 26): a worker that has done c steps may go on iff c − min c ≤ bound.
    With bound 0 no worker begins a step before all have done the one before; null is no bound: asynchronous SGD.
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
        return self._release(ClockState(done, state.waiting | {rank}), apply=(contribution,))

    def worker_left(self, state: ClockState, rank: int) -> tuple[ClockState, Decision]:
        return self._release(ClockState({other: c for other, c in state.done.items() if other != rank}, state.waiting - {rank}))

    def worker_joined(self, state: ClockState, rank: int) -> ClockState:
        """It has done as many steps as the slowest of the others."""
        return ClockState({**state.done, rank: min(state.done.values(), default=0)}, state.waiting)

    def resumed(self, state: ClockState, num_workers: int) -> ClockState:
        return self.initial(num_workers)

    def _release(self, state: ClockState, *, apply: tuple[Contribution, ...] = ()) -> tuple[ClockState, Decision]:
        slowest = min(state.done.values(), default=0)
        released = tuple(rank for rank in sorted(state.waiting) if self.bound is None or state.done[rank] - slowest <= self.bound)
        return ClockState(state.done, state.waiting.difference(released)), Decision(apply, release=released)


@dataclass(frozen=True, kw_only=True)
class SoftSync(Admission):
    """Apply every c = ⌊N/n⌋ gradients, from any workers, as one group; a worker goes on at once with the newest weights.

    n-softsync, Zhang, Gupta, Lian, Liu, arXiv 1511.05950. n = N is asynchronous SGD; n = 1 is not synchronous SGD, as no worker waits.
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
    """Apply the first N − `spares` gradients of each version as one group and drop later ones: no worker waits for stragglers.

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
    """Apply a gradient iff it is less than `max_delay` versions old, drop it otherwise; its worker goes on at the newest weights.

    Ringmaster ASGD, arXiv 2501.16168, where `max_delay` is R.
    """

    max_delay: int

    def __post_init__(self) -> None:
        checks.whole("admission.max_delay", self.max_delay)

    def initial(self, num_workers: int) -> None:
        return None

    def arrived(self, state: None, contribution: Contribution) -> tuple[None, Decision]:
        one, rank = (contribution,), (contribution.rank,)
        return None, Decision(apply=one, release=rank) if contribution.staleness < self.max_delay else Decision(drop=one, release=rank)
