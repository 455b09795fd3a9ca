"""What a syncer knows of its learners, and the messages between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hetsim.coordination.held import HeldRanges
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution

HELLO, MORE, EMPTY, REPORT, ANSWER = range(5)
"""What a learner says: it is there; it needs more ranges; it has none left; it has taken its steps; what its fragment is now."""
START, RANGES, PULL, FRAGMENT, END = range(5)
"""What a syncer says: weights and ranges to begin with; ranges; a question for a fragment; a fragment's new weights; the run is over."""
LOST = -1
"""In the place of what a learner says: it is lost."""


class Answer(NamedTuple):
    """What a learner answered: its change of a fragment, how many steps it has taken in all, and how many of the last are `kept`.

    Those before have been overwritten in all fragments by what it has received.
    """

    contribution: Contribution
    done: int
    kept: int


class Answers(list[Contribution]):
    """The contributions that are new in a version, one for each local step, and what it was `merged` of: one for each learner."""

    def __init__(self, new: Iterable[Contribution], merged: list[Contribution]) -> None:
        super().__init__(new)
        self.merged = merged


class Learners:
    """Who is there, who has taken enough steps since its last answer, who has none left to take, and the ranges that each holds."""

    def __init__(self, plan: Plan, state: State) -> None:
        self.members = set(plan.active_ranks)
        """Those that are there, or are about to begin."""
        self.started: set[int] = set()
        """Those that have said so."""
        self.held = HeldRanges.of(plan, state, self.members)
        self.wanting: set[int] = set()
        """Those that asked for more ranges when there were none."""
        self._num_grants: dict[int, int] = {}
        self._num_settled: dict[int, int] = {}
        self._empty: set[int] = set()
        self._reported: set[int] = set()
        self._version = -1
        """That the reports are of."""

    def join(self, rank: int) -> None:
        """A learner is there; perhaps again, before its loss was noticed."""
        self.lose(rank)
        self.members.add(rank)
        self.started.add(rank)

    def lose(self, rank: int) -> None:
        """Its ranges are to be assigned again."""
        self.held.lose(rank)
        for place in (self.members, self.started, self.wanting, self._empty, self._reported):
            place.discard(rank)
        for known in (self._num_grants, self._num_settled):
            known.pop(rank, None)

    def grant(self, rank: int, batches: list[Batch]) -> None:
        """It is sent these batches, one for each step, or learns at its start that there are none: then it wants some."""
        if batches or rank not in self._num_grants:
            self._num_grants[rank] = self._num_grants.get(rank, 0) + 1
        if batches:
            self.held.hold(rank, batches)
            self.wanting.discard(rank)
            self._empty.discard(rank)
        else:
            self.wanting.add(rank)

    def settle(self, rank: int, done: int) -> list[Batch]:
        """The batches that a learner has computed since it was last settled, after this total number of steps."""
        new = self.held.settle(rank, done - self._num_settled.get(rank, 0))
        self._num_settled[rank] = done
        return new

    def is_empty(self, rank: int, num_grants: int) -> None:
        """The learner has used up this number of grants; further grants may be under way."""
        if num_grants == self._num_grants[rank]:
            self._empty.add(rank)

    def has_reported(self, rank: int, version: int) -> None:
        """It has received this version, and taken its steps since its last answer. A report of an older version is too late."""
        if version > self._version:
            self._version = version
            self._reported.clear()
        if version == self._version:
            self._reported.add(rank)

    def num_reported(self, version: int) -> int:
        """How many have reported since they received this version."""
        return len(self._reported) if version == self._version else 0

    def ready(self, version: int) -> set[int]:
        """Those that have reported since then, and those that have no steps left to take."""
        return self._empty | self._reported if version == self._version else set(self._empty)

    def no_others(self, version: int) -> bool:
        """Whether nobody else will report."""
        return len(self._empty) + self.num_reported(version) >= len(self.members) > 0 and self.members <= self.ready(version)
