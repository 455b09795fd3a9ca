"""How far a run has come: what every rank agrees on at a commit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from hetsim.effects import Batch
from hetsim.vector import Vector

_new, _set = object.__new__, object.__setattr__


@dataclass(frozen=True, kw_only=True)
class State:
    """A run at a commit: what all ranks agree on, and every program can start from.

    What belongs to one rank is not in it: the optimizer's memory, and what the program keeps in `Node.own`. A checkpoint
    (`hetsim.runtime.rank.Checkpoint`) is a State together with the state of each rank.
    """

    version: int = 0
    weights: Vector
    next_sample: int = 0
    num_samples: int = 0
    num_samples_discarded: int = 0
    allocation: Any = None
    compensation: Any = None
    admission: Any = None
    outstanding: Collection[Batch] = ()
    """Ranges that were handed out and not applied yet: they are handed out again on a new start."""

    def evolve(self, **changes: Any) -> State:
        """A copy with these changes: `dataclasses.replace`, several times as fast, for what happens at every gradient."""
        other = _new(State)
        _set(other, "__dict__", self.__dict__ | changes)
        return other

    def rewound(self) -> State:
        """Before the ranges that were handed out and not applied, so that they are handed out again."""
        return replace(self, next_sample=min([self.next_sample, *(batch.start for batch in self.outstanding)]), outstanding=())

    @property
    def num_samples_in_flight(self) -> int:
        """Positions handed out that were neither applied nor discarded."""
        return self.next_sample - self.num_samples - self.num_samples_discarded
