"""Ringleader: a table of every worker's mean gradient, and rounds in which each worker makes one update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hetsim.effects import Contribution
from hetsim.policies.admission.base import Admission, Decision
from hetsim.vector import Vector


@dataclass(frozen=True)
class Mean:
    """The mean of several gradients of one worker, and their number."""

    gradient: Vector
    count: int


@dataclass(frozen=True)
class RoundState:
    """The workers that take part, and Ringleader's two tables of their mean gradients: one for this round, and one for the next.

    `turned` contains the workers that have made an update in this round. `waiting` contains the contributions since the last version.
    """

    members: frozenset[int]
    current: Mapping[int, Mean] = field(default_factory=dict)
    following: Mapping[int, Mean] = field(default_factory=dict)
    turned: frozenset[int] = frozenset()
    waiting: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Ringleader(Admission):
    """In each round, every worker makes one update, once the table contains all workers' gradients. Ringleader ASGD, arXiv 2509.22860.

    The class follows the authors' code, in which a worker always continues at the newest weights. In the first phase of a round, every
    gradient enters the current table. The gradient that completes the table makes an update. So does the next gradient of every
    other worker, which also enters the table. That makes N updates. A worker's later gradients in this round enter the next round's table.

    No worker waits, nothing is dropped, and no gradient is more than 2N − 2 versions old. A worker that leaves
    loses its entries. When all workers have left, the last step is along the mean of the workers' means.
    """

    keeps_table: ClassVar[bool] = True

    def initial(self, num_workers: int) -> RoundState:
        return RoundState(frozenset(range(num_workers)))

    def arrived(self, state: RoundState, contribution: Contribution) -> tuple[RoundState, Decision]:
        if state.members <= state.turned:
            state = replace(state, current=state.following, following={}, turned=frozenset())
        release, waiting = (contribution.rank,), (*state.waiting, contribution)
        if contribution.rank in state.turned:
            return replace(state, following=update_mean(state.following, contribution), waiting=waiting), Decision(release=release)
        state = replace(state, current=update_mean(state.current, contribution), waiting=waiting)
        if not state.members <= state.current.keys():
            return state, Decision(release=release)
        return replace(state, turned=state.turned.union(release), waiting=()), Decision(apply=waiting, release=release)

    def worker_left(self, state: RoundState, rank: int) -> tuple[RoundState, Decision]:
        members = state.members - {rank}
        if members:
            current, following = ({r: mean for r, mean in table.items() if r != rank} for table in (state.current, state.following))
            return replace(state, members=members, current=current, following=following, turned=state.turned - {rank}), Decision()
        rest: Mapping[int, Mean] = {}
        for contribution in state.waiting:
            rest = update_mean(rest, contribution)
        return RoundState(members, rest), Decision(apply=state.waiting)

    def worker_joined(self, state: RoundState, rank: int) -> RoundState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: RoundState, num_workers: int) -> RoundState:
        return replace(state, members=frozenset(range(num_workers)))


def update_mean(table: Mapping[int, Mean], contribution: Contribution) -> Mapping[int, Mean]:
    """The table with one more gradient in its worker's running mean: μ ← μ + (g − μ)/b."""
    old, g = table.get(contribution.rank), contribution.gradient
    mean = Mean(g, 1) if old is None else Mean(old.gradient + (g - old.gradient) / (old.count + 1), old.count + 1)
    return {**table, contribution.rank: mean}
