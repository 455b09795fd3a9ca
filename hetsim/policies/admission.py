"""Which gradients the server applies, and which workers it releases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.vector import Vector


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
    keeps_table: ClassVar[bool] = False
    """Whether its state has a table `current` of the workers' mean gradients, along which a server with a table steps."""

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


@dataclass(frozen=True)
class Grouped(Admission):
    """Apply every `group_size` gradients, from any workers, as one group; a worker goes on at once with the newest weights."""

    @abstractmethod
    def group_size(self, num_workers: int) -> int: ...

    def initial(self, num_workers: int) -> ArrivalState:
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
class SoftSync(Grouped):
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
class Rennala(Grouped):
    """Apply the first `batch` gradients that were computed at the present weights, whoever made them; drop late ones. No worker waits.

    Rennala SGD, arXiv 2305.12387, where `batch` is B. A worker that is done computes another gradient at the same weights. Late gradients
    are ignored, as in the paper; its authors' code stops them.
    """

    lets_gradients_be_late: ClassVar[bool] = False

    batch: int

    def __post_init__(self) -> None:
        checks.whole("admission.batch", self.batch)

    def group_size(self, num_workers: int) -> int:
        return self.batch

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        if contribution.staleness:
            return state, Decision(drop=(contribution,), release=(contribution.rank,))
        return super().arrived(state, contribution)

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """The group is the global batch of its version."""
        return sum(contribution.samples for contribution in group) / len(group)


@dataclass(frozen=True)
class Malenia(Admission):
    """Collect gradients at the present weights until there is one of every worker, apply all of them; drop late ones. No worker waits.

    Malenia SGD, arXiv 2305.12387; with `weighting=per_worker_mean` along (1/N) Σ μ_i, as its authors' code. Late gradients are ignored,
    where that code stops them. A worker that is absent, or has nothing left to compute, is not waited for.
    """

    lets_gradients_be_late: ClassVar[bool] = False

    def initial(self, num_workers: int) -> ArrivalState:
        return ArrivalState(frozenset(range(num_workers)), size=num_workers)

    def group_size(self, num_workers: int) -> int:
        return num_workers

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        if contribution.staleness:
            return state, Decision(drop=(contribution,), release=(contribution.rank,))
        return self._collected(replace(state, waiting=(*state.waiting, contribution)), release=(contribution.rank,))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        return self._collected(replace(state, members=state.members - {rank}))

    def worker_joined(self, state: ArrivalState, rank: int) -> ArrivalState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: ArrivalState, num_workers: int) -> ArrivalState:
        return replace(state, members=frozenset(range(num_workers)))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        """The group is the global batch of its version."""
        return sum(contribution.samples for contribution in group) / len(group)

    def _collected(self, state: ArrivalState, release: tuple[int, ...] = ()) -> tuple[ArrivalState, Decision]:
        if not state.waiting or not state.members <= {c.rank for c in state.waiting}:
            return state, Decision(release=release)
        return replace(state, waiting=()), Decision(apply=state.waiting, release=release)


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


@dataclass(frozen=True)
class Mean:
    """The mean of so many gradients of one worker."""

    gradient: Vector
    count: int


@dataclass(frozen=True)
class RoundState:
    """The workers that take part, and Ringleader's two tables of their mean gradients: of this round, and of the next one.

    `turned` are those that have made an update in this round, `waiting` the contributions since the last version.
    """

    members: frozenset[int]
    current: Mapping[int, Mean] = field(default_factory=dict)
    following: Mapping[int, Mean] = field(default_factory=dict)
    turned: frozenset[int] = frozenset()
    waiting: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Ringleader(Admission):
    """Once the table has a gradient of every worker, each makes one update in a round; what it sends before the next round is for that one.

    Ringleader ASGD, arXiv 2509.22860, as its authors' code, in which a worker always goes on at the newest weights. In the first phase of a
    round every gradient enters the current table. The one that completes it makes an update, and so does the next gradient of every
    other worker, which enters it, too: N updates. Gradients of workers that have had their turn enter the next round's table. No
    worker waits, nothing is dropped, no gradient is more than 2N − 2 versions old. The entries of a worker that leaves are taken out;
    what is left when all have gone is applied along the mean of its workers' means.
    """

    keeps_table: ClassVar[bool] = True

    def initial(self, num_workers: int) -> RoundState:
        return RoundState(frozenset(range(num_workers)))

    def arrived(self, state: RoundState, contribution: Contribution) -> tuple[RoundState, Decision]:
        if state.members <= state.turned:
            state = replace(state, current=state.following, following={}, turned=frozenset())
        release, waiting = (contribution.rank,), (*state.waiting, contribution)
        if contribution.rank in state.turned:
            return replace(state, following=entered(state.following, contribution), waiting=waiting), Decision(release=release)
        state = replace(state, current=entered(state.current, contribution), waiting=waiting)
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
            rest = entered(rest, contribution)
        return RoundState(members, rest), Decision(apply=state.waiting)

    def worker_joined(self, state: RoundState, rank: int) -> RoundState:
        return replace(state, members=state.members | {rank})

    def resumed(self, state: RoundState, num_workers: int) -> RoundState:
        return replace(state, members=frozenset(range(num_workers)))


def entered(table: Mapping[int, Mean], contribution: Contribution) -> Mapping[int, Mean]:
    """The table with one more gradient in its worker's running mean: μ ← μ + (g − μ)/b."""
    old, g = table.get(contribution.rank), contribution.gradient
    mean = Mean(g, 1) if old is None else Mean(old.gradient + (g - old.gradient) / (old.count + 1), old.count + 1)
    return {**table, contribution.rank: mean}
