"""The leader's record of the global versions, and checkpoints of all ranks at one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recorder import Recorder
from hetsim.runtime.stop import StopRule


class History:
    """What the leader has committed: reports it to the recorders, and decides whether the run goes on."""

    def __init__(self, start: State, stop: StopRule, recorders: Sequence[Recorder], *, keeps: bool = False) -> None:
        self.start = self.last = start
        self.recorders = tuple(recorders)
        self._commits = [recorder.commit for recorder in recorders]
        self._goes_on = stop.leader_goes_on
        self._keeps = keeps
        for recorder in recorders:
            recorder.begin(start)

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> bool:
        """This rank, which leads, has committed a version; whether updates and seconds allow another one."""
        for commit in self._commits:
            commit(seconds, rank, state, applied)
        going = self._goes_on(state.version, seconds)
        if not going or self._keeps:
            state = state.evolve(outstanding=tuple(state.outstanding))  # which a server goes on changing
        self.last = state
        return going

    def record_discarded(self, state: State | None) -> None:
        """What the leader dropped after the last commit counts as discarded."""
        if state is not None:
            self.last = replace(self.last, num_samples_discarded=state.num_samples_discarded, outstanding=state.outstanding)

    def close(self) -> None:
        """The run is over."""
        for recorder in self.recorders:
            recorder.close(self.last)


class Checkpoints:
    """Collects each rank's state at its commit of a version, and hands on a checkpoint once it has those of all ranks."""

    def __init__(self, keep: Callable[[Checkpoint], None]) -> None:
        self.keep = keep
        self._ranks: dict[int, dict[int, RankState]] = {}
        self._states: dict[int, tuple[State, Sequence[int]]] = {}

    def add(self, rank: RankState, version: int) -> None:
        """A rank stands at this version."""
        self._ranks.setdefault(version, {})[rank.rank] = rank.snapshot()

    def add_state(self, state: State, num_gradients: Sequence[int]) -> None:
        """The leader has committed this state, in which so many gradients of each rank are applied."""
        self._states[state.version] = state, tuple(num_gradients)

    def complete(self, version: int, ranks: Collection[int]) -> None:
        """Hand on the checkpoint of a version if it is complete: these ranks take part."""
        found = self._ranks.get(version, {})
        if version not in self._states or not found.keys() >= set(ranks):
            return
        state, num_gradients = self._states.pop(version)
        del self._ranks[version]
        parts = [found[rank] for rank in sorted(found)]
        for part in parts:
            if part.rank < len(num_gradients):
                part.num_gradients = num_gradients[part.rank]
        self.keep(Checkpoint(state=state, ranks=tuple(parts)))

    def forget(self) -> None:
        """Who takes part has changed: what is not complete never will be."""
        self._ranks.clear()
        self._states.clear()
