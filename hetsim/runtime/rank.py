"""The state of one rank, which is the unit of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hetsim.coordination.state import State
from hetsim.effects import Fragment, Update
from hetsim.vector import Vector
from hetsim.workloads.task import Optimizer

Memory: TypeAlias = Mapping[str, Any] | Mapping[Fragment, Any]
"""The memory of an optimizer by name, or by fragment if it steps one fragment at a time."""


def fragment_memories(memory: Any) -> Mapping[Fragment, Any]:
    """The memories of an optimizer that steps one fragment at a time; empty if it steps whole vectors, or has not stepped yet."""
    return memory if isinstance(memory, Mapping) and memory and all(isinstance(key, Fragment) for key in memory) else {}


@dataclass(slots=True, kw_only=True)
class RankState:
    """All mutable data of one rank. Its values are immutable, so a shallow copy is a snapshot.

    A resume restores all of it, so a synchronous run continues bit-equal, including local steps and compression. A rank restarts after its
    crash, and all ranks restart after a regroup. A restart keeps the rank and the stream positions. It takes version, epoch and the
    optimizer's memory from the last commit, and loses the local optimizer's memory and `own`.
    """

    rank: Any
    """Its number. In lockstep, it is an object that stands for all ranks."""
    version: int = 0
    """The last version that it committed. On a worker of a server, the version of the weights with which it computes."""
    epoch: int = 0
    """The number of whole passes over the data in the samples applied up to that version. The learning-rate schedule depends on it."""
    optimizer: Memory | None = None
    """The memory of the optimizer that makes versions."""
    local_optimizer: Memory | None = None
    """The memory of the local optimizer; None if there is none."""
    own: dict[str, Any] = field(default_factory=dict)
    """Values that its program keeps between versions (`Node.own`): the residual of a compression, unreported timings."""
    num_gradients: int = 0
    """The number of its gradients that were applied up to that version: the position of its stream of gradient times."""
    num_updates: int = 0
    """The number of the server's optimizer steps: the position of its stream of service times."""
    num_messages: dict[int, int] = field(default_factory=dict)
    """The number of messages that it has sent, by receiver: the positions of the jitter's streams."""
    _next_collective: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._next_collective = (self.version, 0)

    def enter_collective(self) -> tuple[int, int]:
        """The number of a collective: the version that the rank committed last, and the number of collectives since.

        It is equal on all ranks without a message, even on a rank that resumes, returns or joins. Jitters depend on it.
        """
        version, count = number = self._next_collective
        self._next_collective = (version, count + 1)
        return number

    def update(self, optimizer: Optimizer, effect: Update) -> Vector:
        """Take one step of the optimizer that makes versions, of all entries or of a fragment. Returns the new weights."""
        self.num_updates += 1
        at, gradient, fragment = effect.at, effect.gradient, effect.fragment
        if fragment is None:
            memory, weights = optimizer.step(self.optimizer, at, gradient, self.epoch)
            if not effect.tentative:
                self.optimizer = memory
            return weights
        memories = fragment_memories(self.optimizer)
        memory, weights = optimizer.step(memories.get(fragment), at, gradient, self.epoch, fragment)
        if not effect.tentative:
            self.optimizer = {**memories, fragment: memory}
        return weights

    def local_update(self, optimizer: Optimizer, at: Vector, gradient: Vector, epoch: int) -> Vector:
        """Take one step of the local optimizer in this epoch. Returns the worker's next weights."""
        self.local_optimizer, weights = optimizer.step(self.local_optimizer, at, gradient, epoch)
        return weights

    def set_commit(self, version: int, epoch: int) -> None:
        """Set the version that the rank has committed, and its epoch."""
        self.version = version
        self.epoch = epoch
        self._next_collective = (version, 0)

    def restart(self, *, version: int, epoch: int, optimizer: Any, local_optimizer: Any) -> None:
        """Restart from a commit. Data that only this rank had are lost."""
        self.set_commit(version, epoch)
        self.optimizer = optimizer
        self.local_optimizer = local_optimizer
        self.own.clear()

    def snapshot(self) -> RankState:
        """A copy that does not change when the rank does."""
        return replace(self, own=dict(self.own), num_messages=dict(self.num_messages))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All data that a run needs to resume from a commit: the state on which all ranks agree, and the state of each rank.

    At the beginning of a run, `ranks` is empty. Then each rank begins with a new state at `state.version`.
    """

    state: State
    ranks: tuple[RankState, ...] = ()
    seconds: tuple[float, ...] = ()
    """The run's clock at the commit of each rank, or of the server, by rank; empty: the run continues at 0."""
    progress: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The recorders' progress at the commit (`hetsim.runtime.recording.run_record`); empty: none."""

    @property
    def began(self) -> float:
        """The time at which the first rank continues, by the run's clock."""
        return min(self.seconds, default=0.0)
