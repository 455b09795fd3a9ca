"""A syncer's data about its learners, and the messages between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hetsim.coordination.held import HeldRanges
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution

HELLO, MORE, EMPTY, REPORT, ANSWER = range(5)
"""Messages from a learner: it has joined, needs more ranges, has no range left, has taken its steps, or sends its fragment."""
START, RANGES, PULL, FRAGMENT, END = range(5)
"""Messages from the syncer: weights and first ranges, more ranges, a request for a fragment, a fragment's new weights, the run is over."""
LOST = -1
"""The kind of a message that reports the loss of a learner."""


class Answer(NamedTuple):
    """A learner's answer: its change of a fragment, its total number of steps (`done`), and how many of the last steps it has `kept`.

    The weights that the learner received have overwritten the earlier steps in all fragments.
    """

    contribution: Contribution
    done: int
    kept: int


class Answers(list[Contribution]):
    """The new contributions of a version, one for each local step. `merged` contains one contribution for each learner."""

    def __init__(self, new: Iterable[Contribution], merged: list[Contribution]) -> None:
        super().__init__(new)
        self.merged = merged


class Learners:
    """The learners that take part, which have reported, which have no range left, and the ranges that each one holds."""

    def __init__(self, plan: Plan, state: State) -> None:
        self.members = set(plan.active_ranks)
        """The learners that take part or are about to begin."""
        self.started: set[int] = set()
        """The learners that have sent HELLO."""
        self.held = HeldRanges.of(plan, state, self.members)
        self.wanting: set[int] = set()
        """The learners that asked for more ranges when none were left."""
        self._num_grants: dict[int, int] = {}
        self._num_settled: dict[int, int] = {}
        self._empty: set[int] = set()
        self._reported: set[int] = set()
        self._version = -1
        """The version that the reports belong to."""

    def join(self, rank: int) -> None:
        """Add a learner. It may have restarted before its loss was noticed."""
        self.lose(rank)
        self.members.add(rank)
        self.started.add(rank)

    def lose(self, rank: int) -> None:
        """Remove a learner. Its ranges are assigned again."""
        self.held.lose(rank)
        for place in (self.members, self.started, self.wanting, self._empty, self._reported):
            place.discard(rank)
        for known in (self._num_grants, self._num_settled):
            known.pop(rank, None)

    def grant(self, rank: int, batches: list[Batch]) -> None:
        """Record batches for a learner, one for each step. A learner without batches is added to `wanting`."""
        if batches or rank not in self._num_grants:
            self._num_grants[rank] = self._num_grants.get(rank, 0) + 1
        if batches:
            self.held.hold(rank, batches)
            self.wanting.discard(rank)
            self._empty.discard(rank)
        else:
            self.wanting.add(rank)

    def settle(self, rank: int, done: int) -> list[Batch]:
        """Remove and return the batches that a learner has computed since the last call. `done` is its total number of steps."""
        new = self.held.settle(rank, done - self._num_settled.get(rank, 0))
        self._num_settled[rank] = done
        return new

    def is_empty(self, rank: int, num_grants: int) -> None:
        """Record that a learner has used up its first `num_grants` grants. Further grants may be in transit."""
        if num_grants == self._num_grants[rank]:
            self._empty.add(rank)

    def has_reported(self, rank: int, version: int) -> None:
        """Record that a learner has received this version and taken its steps since its last answer. Older versions are ignored."""
        if version > self._version:
            self._version = version
            self._reported.clear()
        if version == self._version:
            self._reported.add(rank)

    def num_reported(self, version: int) -> int:
        """The number of learners that have reported for this version."""
        return len(self._reported) if version == self._version else 0

    def ready(self, version: int) -> set[int]:
        """The learners that have reported for this version, and the learners that have no steps left."""
        return self._empty | self._reported if version == self._version else set(self._empty)

    def no_others(self, version: int) -> bool:
        """Whether no other learner will report."""
        return len(self._empty) + self.num_reported(version) >= len(self.members) > 0 and self.members <= self.ready(version)
