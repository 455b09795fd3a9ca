"""What the server applies, and whom it frees to go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim.effects import Contribution


@dataclass(frozen=True)
class Decision:
    """Apply these as one group, drop those, and let these ranks take their next range."""

    apply: tuple[Contribution, ...] = ()
    drop: tuple[Contribution, ...] = ()
    free: tuple[int, ...] = ()


class Admission(ABC):
    """Decides what happens when a gradient arrives, or a worker leaves."""

    @abstractmethod
    def initial(self, num_workers: int) -> Any:
        """The state before anything has arrived."""

    @abstractmethod
    def arrived(self, state: Any, contribution: Contribution) -> tuple[Any, Decision]:
        """What to do now that this gradient is here."""

    def left(self, state: Any, rank: int) -> tuple[Any, Decision]:
        """What to do now that this worker will send no more (at the end, whatever is still held is to be applied)."""
        return state, Decision()

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
        return None, Decision(apply=(contribution,), free=(contribution.rank,))


@dataclass(frozen=True)
class Arrivals:
    """What a barrier holds: who belongs to it, and what has arrived of this round."""

    members: frozenset[int]
    waiting: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Barrier(Admission):
    """Wait for everyone, apply all as one, free everyone: synchronous SGD."""

    def initial(self, num_workers: int) -> Arrivals:
        return Arrivals(frozenset(range(num_workers)))

    def arrived(self, state: Arrivals, contribution: Contribution) -> tuple[Arrivals, Decision]:
        return self._complete(replace(state, waiting=(*state.waiting, contribution)))

    def resumed(self, state: Arrivals, num_workers: int) -> Arrivals:
        return replace(state, members=frozenset(range(num_workers)))

    def left(self, state: Arrivals, rank: int) -> tuple[Arrivals, Decision]:
        return self._complete(replace(state, members=state.members - {rank}))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """The group *is* the global batch, also when that is the last, shorter one."""
        return sum(contribution.samples for contribution in group) / len(group)

    def _complete(self, state: Arrivals) -> tuple[Arrivals, Decision]:
        if not state.waiting or {contribution.rank for contribution in state.waiting} < state.members:
            return state, Decision()
        group = tuple(sorted(state.waiting, key=lambda contribution: contribution.rank))
        return Arrivals(state.members), Decision(apply=group, free=tuple(c.rank for c in group))
