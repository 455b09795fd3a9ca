"""Rules that drop late gradients while no worker waits. The gradients at the current weights make a version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.admission.base import Decision
from hetsim.policies.admission.groups import ArrivalState, Collecting, Grouped, equal_share


@dataclass(frozen=True, kw_only=True)
class Rennala(Grouped):
    """Apply the first `batch` gradients at the current weights, from any workers, and drop late ones. No worker waits.

    Rennala SGD, arXiv 2305.12387, where `batch` is B. A worker that finishes computes another gradient at the same weights. The
    rule ignores late gradients, as in the paper. The authors' code stops them instead.
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
        return equal_share(group)


@dataclass(frozen=True, kw_only=True)
class RennalaStops(Rennala):
    """Rennala SGD as its authors run it: a new version stops all workers, and they begin at its weights."""

    stops: ClassVar[bool] = True

    def gives_up(self, delay: int) -> bool:
        return delay > 0


@dataclass(frozen=True)
class Malenia(Collecting):
    """Collect gradients at the current weights until every worker has sent one, then apply all; drop late ones. No worker waits.

    Malenia SGD, arXiv 2305.12387; with `weighting=per_worker_mean`, the step is along (1/N) Σ μ_i, as in the authors' code. The rule
    ignores late gradients; that code stops them instead. The rule waits for no worker that is absent or has nothing left.
    """

    lets_gradients_be_late: ClassVar[bool] = False

    def group_size(self, num_workers: int) -> int:
        return num_workers

    def arrived(self, state: ArrivalState, contribution: Contribution) -> tuple[ArrivalState, Decision]:
        if contribution.staleness:
            return state, Decision(drop=(contribution,), release=(contribution.rank,))
        return self._apply_if_complete(replace(state, waiting=(*state.waiting, contribution)), release=(contribution.rank,))

    def worker_left(self, state: ArrivalState, rank: int) -> tuple[ArrivalState, Decision]:
        return self._apply_if_complete(replace(state, members=state.members - {rank}))

    def fair_share(self, group: Sequence[Contribution], batch_size: int, num_workers: int) -> float:
        return equal_share(group)

    def _apply_if_complete(self, state: ArrivalState, release: tuple[int, ...] = ()) -> tuple[ArrivalState, Decision]:
        if not state.waiting or not state.members <= {c.rank for c in state.waiting}:
            return state, Decision(release=release)
        return replace(state, waiting=()), Decision(apply=state.waiting, release=release)
