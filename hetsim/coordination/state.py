"""The state of a run at a commit, on which all ranks agree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.effects import Batch
from hetsim.vector import Vector

_new, _set = object.__new__, object.__setattr__


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a run at a commit, on which all ranks agree, and from which every program can start.

    It contains the `version`, its `weights` (a flat vector), the samples that were applied (`num_samples`) and dropped
    (`num_samples_discarded`), and the states of the policies: `allocation`, `compensation`, `admission`.

    It does not contain values that belong to one rank: the optimizer's memory, and the values of `Node.own`. A checkpoint
    (`hetsim.runtime.rank.Checkpoint`) is a State together with the state of each rank.
    """

    version: int = 0
    weights: Vector
    next_sample: int | Cursors = 0
    """The first position that is not assigned yet; `Cursors` if data belong to workers."""
    num_samples: int = 0
    num_samples_discarded: int = 0
    allocation: Any = None
    compensation: Any = None
    admission: Any = None
    measured: Any = None
    """Measurements of the coordination itself, such as the speeds that set the numbers of local steps."""
    outstanding: Collection[Batch] = ()
    """Ranges that are assigned and not applied yet. A restart assigns them again."""

    def evolve(self, /, **changes: Any) -> State:
        """A changed copy, like `dataclasses.replace`, but several times as fast, because programs make one for every gradient.

        Args:
            changes: new values, by name of the field.
        """
        copy = _new(State)
        _set(copy, "__dict__", self.__dict__ | changes)
        return copy

    def rewound(self) -> State:
        """The state before the outstanding ranges, so that they are assigned again."""
        if isinstance(self.next_sample, Cursors):
            return replace(self, next_sample=self.next_sample.rewound(self.outstanding), outstanding=())
        return replace(self, next_sample=min([self.next_sample, *(batch.start for batch in self.outstanding)]), outstanding=())

    @property
    def num_samples_in_flight(self) -> int:
        """The number of positions that were assigned, but neither applied nor discarded yet."""
        return self.next_sample - self.num_samples - self.num_samples_discarded
