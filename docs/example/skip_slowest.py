"""Synchronous SGD that does not wait for the slowest worker. docs/guide/own-method.md explains this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.effects import Contribution
from hetsim.policies.admission import Admission, Decision


@dataclass(frozen=True)
class Arrived:
    """The state: the ranks that take part, how many gradients make a version, and those that have arrived for the next version."""

    ranks: frozenset[int]
    size: int
    gradients: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class SkipSlowest(Admission):
    """Apply the first N − 1 gradients of each version as one group, and drop the last one."""

    lets_gradients_be_late: ClassVar[bool] = False

    def group_size(self, num_workers: int) -> int:
        """N − 1."""
        return max(1, num_workers - 1)

    def initial(self, num_workers: int) -> Arrived:
        """The state before the first gradient."""
        return Arrived(frozenset(range(num_workers)), self.group_size(num_workers))

    def arrived(self, state: Arrived, contribution: Contribution) -> tuple[Arrived, Decision]:
        """Drop a late gradient and release its worker; keep any other gradient until the group is complete."""
        if contribution.staleness:  # its version exists already
            return state, Decision(drop=(contribution,), release=(contribution.rank,))
        return self.decided(replace(state, gradients=(*state.gradients, contribution)))

    def worker_left(self, state: Arrived, rank: int) -> tuple[Arrived, Decision]:
        """The worker sends no more gradients: the others may be complete without it."""
        return self.decided(replace(state, ranks=state.ranks - {rank}))

    def worker_joined(self, state: Arrived, rank: int) -> Arrived:
        """A lost worker returns."""
        return replace(state, ranks=state.ranks | {rank})

    def resumed(self, state: Arrived, num_workers: int) -> Arrived:
        """After a restart, all workers take part."""
        return replace(state, ranks=frozenset(range(num_workers)))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """An equal share of the group's samples, also if the batch is shorter than B."""
        return sum(c.samples for c in group) / len(group)

    def decided(self, state: Arrived) -> tuple[Arrived, Decision]:
        """Apply the gradients that have arrived, if they are enough or if no other worker will send one."""
        group = tuple(sorted(state.gradients, key=lambda c: c.rank))
        if not group or (len(group) < state.size and not state.ranks <= {c.rank for c in group}):
            return state, Decision()
        return replace(state, gradients=()), Decision(apply=group, release=tuple(c.rank for c in group))
