"""The state of one rank: everything mutable that belongs to it, and so the unit of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.coordination.state import State
from hetsim.vector import Vector
from hetsim.workloads.task import Optimizer


@dataclass(slots=True, kw_only=True)
class RankState:
    """Everything mutable that belongs to one rank. The values in it are immutable, so a copy of it is a snapshot.

    A resume restores all of it, so a synchronous run goes on bit-equal, local steps and compression included. A rank that
    crashed begins afresh, and so do all ranks after a regroup: they keep their rank and the positions of their streams, take
    version, epoch and the optimizer's memory from the last commit, and lose the local optimizer's memory and `own`.
    """

    rank: Any
    """In lockstep one object stands for all ranks."""
    version: int = 0
    """That it committed last or, on a worker of a server, that of the global weights which it works with."""
    epoch: int = 0
    """Whole passes over the data in what was applied up to that version; the learning-rate schedule goes by it."""
    optimizer: Any = None
    """The memory of the optimizer that makes versions."""
    local_optimizer: Any = None
    """The memory of the optimizer of its own steps; None where a worker takes none."""
    own: dict[str, Any] = field(default_factory=dict)
    """What its program keeps from one version to the next (`Node.own`): the residual of a compression, timings to be reported."""
    num_gradients: int = 0
    """Its gradients that were applied up to the version: where its stream of gradient times stands."""
    num_updates: int = 0
    """Optimizer steps of the server: where the stream of its service times stands."""
    num_messages: dict[int, int] = field(default_factory=dict)
    """By receiver, messages that it has sent: where the streams of their jitter stand."""

    def update(self, optimizer: Optimizer, at: Vector, gradient: Vector) -> Vector:
        """One step of the optimizer that makes versions: the new weights."""
        self.optimizer, weights = optimizer.step(self.optimizer, at, gradient, self.epoch)
        self.num_updates += 1
        return weights

    def local_update(self, optimizer: Optimizer, at: Vector, gradient: Vector, epoch: int) -> Vector:
        """One step of its own optimizer in this epoch: its next weights."""
        self.local_optimizer, weights = optimizer.step(self.local_optimizer, at, gradient, epoch)
        return weights

    def committed(self, version: int, epoch: int) -> None:
        """It has committed this version."""
        self.version = version
        self.epoch = epoch

    def restart(self, *, version: int, epoch: int, optimizer: Any, local_optimizer: Any) -> None:
        """Begin afresh at a commit: what only this rank knew is lost."""
        self.committed(version, epoch)
        self.optimizer = optimizer
        self.local_optimizer = local_optimizer
        self.own.clear()

    def snapshot(self) -> RankState:
        """A copy, which stays as this rank is now."""
        return replace(self, own=dict(self.own), num_messages=dict(self.num_messages))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that a run needs to go on from a commit: what all ranks agree on, and what each rank owns.

    `ranks` is empty for the beginning of a run: then each rank begins afresh at `state`.
    """

    state: State
    ranks: tuple[RankState, ...] = ()
