"""Rules that collect gradients and apply them as one group: from all workers, from the first workers, or a fixed number of gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.admission.base import Admission, Decision


@dataclass(frozen=True)
class ArrivalState:
    """The workers that take part, how many gradients make a version, and the gradients that wait for the rest of their group."""

    members: frozenset[int]
    size: int
    waiting: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Collecting(Admission):
    """Keeps the gradients that wait for the rest of their group, and the workers that take part."""

    @abstractmethod
    def group_size(self, num_workers: int) -> int: ...

    def initial(self, num_workers: int) -> ArrivalState:
        return ArrivalState(frozenset(range(num_workers)), size=self.group_size(num_workers))

    def worker_joined(self, state: ArrivalState, rank: int) -> ArrivalState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: ArrivalState, num_workers: int) -> ArrivalState:
        return replace(state, members=frozenset(range(num_workers)))


def equal_share(group: Sequence[Contribution]) -> float:
    """An equal share of a group that *is* the global batch of its version, including a shorter batch."""
    return sum(contribution.samples for contribution in group) / len(group)


@dataclass(frozen=True)
class Barrier(Collecting):
    """Wait for the gradients of all workers, apply them as one group, and release all workers: synchronous SGD."""

    lets_gradients_be_late: ClassVar[bool] = False

    def group_size(self, num_workers: int) -> int:
        return num_workers

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        return _apply_if_complete(replace(state, waiting=(*state.waiting, contribution)))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        return _apply_if_complete(replace(state, members=state.members - {rank}))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        return equal_share(group)


@dataclass(frozen=True, kw_only=True)
class Backup(Collecting):
    """Apply the first N − `spares` gradients of each version as one group and drop later ones: no worker waits for stragglers.

    Chen, Monga, Bengio, Jozefowicz, arXiv 1604.00981. Without spares, the rule is a barrier.
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
        return super().initial(num_workers)

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        if contribution.staleness:
            return state, Decision(drop=(contribution,), release=(contribution.rank,))
        return _apply_if_complete(replace(state, waiting=(*state.waiting, contribution)))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        return _apply_if_complete(replace(state, members=state.members - {rank}))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        return equal_share(group)


def _apply_if_complete(state: ArrivalState) -> tuple[ArrivalState, Decision]:
    """Apply the waiting gradients in rank order and release their workers, if they are enough or no worker will send another one."""
    count = len(state.waiting)
    if not count or (count < state.size and (count < len(state.members) or not state.members <= {c.rank for c in state.waiting})):
        return state, Decision()
    group = tuple(sorted(state.waiting, key=lambda contribution: contribution.rank))
    return replace(state, waiting=()), Decision(apply=group, release=tuple(c.rank for c in group))


@dataclass(frozen=True)
class Grouped(Collecting):
    """Apply every `group_size` gradients, from any workers, as one group; a worker continues at once with the newest weights."""

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


@dataclass(frozen=True, kw_only=True)
class SoftSync(Grouped):
    """Apply every c = ⌊N/n⌋ gradients, from any workers, as one group; a worker continues at once with the newest weights.

    n-softsync, Zhang, Gupta, Lian, Liu, arXiv 1511.05950. n = N is asynchronous SGD. n = 1 is not synchronous SGD, because no worker waits.
    """

    n: int

    def __post_init__(self) -> None:
        checks.whole("admission.n", self.n)

    def group_size(self, num_workers: int) -> int:
        return num_workers // self.n

    def initial(self, num_workers: int) -> ArrivalState:
        if self.n > num_workers:
            raise ValueError(f"admission.n={self.n} is more than the cluster's {num_workers} workers: give at most {num_workers}")
        return super().initial(num_workers)


@dataclass(frozen=True, kw_only=True)
class Buffer(Grouped):
    """Apply every `size` contributions, from any workers, as one group: FedBuff, arXiv 2106.06639, where `size` is K.

    K may be more than N. K = 1 applies every contribution on arrival.
    """

    size: int

    def __post_init__(self) -> None:
        checks.whole("admission.size", self.size)

    def group_size(self, num_workers: int) -> int:
        return self.size
