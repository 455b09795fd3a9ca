"""The leader's history of global versions, and the checkpoints of all ranks at a version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.divergence import Divergence
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.stop import StopRule
from hetsim.vector import Phantom


class History:
    """The leader's last commit. It reports commits to the recorders, and decides after each one whether the run continues.

    `divergence` detects divergence. In a run that only measures time, it detects none.
    """

    def __init__(
        self,
        start: State,
        stop: StopRule,
        recorders: Sequence[Recorder],
        *,
        keeps: bool = False,
        initial_loss: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.start = self.last = start
        self.recorders = tuple(recorders)
        self._commits = [recorder.commit for recorder in recorders]
        self._stop = stop
        self._keeps = keeps
        self.samples_per_epoch = stop.samples_per_epoch
        self.divergence = Divergence(stop.samples_per_epoch, num_samples=start.num_samples, initial_loss=initial_loss)
        self._observe = None if isinstance(start.weights, Phantom) else self.divergence.observe  # a phantom has no loss
        for recorder in recorders:
            recorder.begin(start)

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> bool:
        """Report that this rank, the leader, has committed a version. Returns whether the run continues."""
        for commit in self._commits:
            commit(seconds, rank, state, applied)
        diverged = self._observe is not None and self._observe(state.version, state.num_samples, applied)
        going = self._stop.leader_continues(state.version, seconds, diverged=diverged)
        if not going or self._keeps:
            state = state.evolve(outstanding=tuple(state.outstanding))  # the server's view would change
        self.last = state
        return going

    def record_discarded(self, state: State | None) -> None:
        """Count samples as discarded that the leader dropped after the last commit."""
        if state is not None:
            self.last = replace(
                self.last,
                next_sample=state.next_sample,
                num_samples_discarded=state.num_samples_discarded,
                outstanding=state.outstanding,
            )

    def close(self) -> None:
        """End the run."""
        for recorder in self.recorders:
            recorder.close(self.last)


class Checkpoints:
    """Collects each rank's state at its commit of a version. Calls `keep(checkpoint)` when it has the states of all ranks."""

    def __init__(self, keep: Callable[[Checkpoint], None], wants: Callable[[int], bool] | None = None) -> None:
        self.keep = keep
        self.wants = wants or (lambda _: True)
        """Whether a checkpoint is to be kept at this version."""
        self._ranks: dict[int, dict[int, RankState]] = {}
        self._seconds: dict[int, dict[int, float]] = {}
        self._states: dict[int, tuple[State, Sequence[int], dict[str, Any]]] = {}

    def add(self, rank: RankState, version: int, seconds: float) -> None:
        """Add the state of a rank that has committed this version at this time."""
        self._ranks.setdefault(version, {})[rank.rank] = rank.snapshot()
        self._seconds.setdefault(version, {})[rank.rank] = seconds

    def add_state(self, state: State, num_gradients: Sequence[int], progress: dict[str, Any]) -> None:
        """Add the leader's committed state, the number of applied gradients of each rank, and the recorders' progress."""
        self._states[state.version] = state, tuple(num_gradients), progress

    def complete(self, version: int, ranks: Collection[int], absent: Sequence[RankState]) -> None:
        """Call `keep` with the checkpoint of a version if it has the states of these ranks, which take part.

        Absent ranks get the states in which they will return. Older versions are dropped.
        """
        states = self._ranks.get(version, {})
        if version not in self._states or not states.keys() >= set(ranks):
            return
        state, num_gradients, progress = self._states[version]
        seconds = self._seconds.get(version, {})
        states.update({rank.rank: rank for rank in absent if rank.rank not in states})
        ordered = [states[rank] for rank in sorted(states)]
        for rank_state in ordered:
            if rank_state.rank < len(num_gradients):
                rank_state.num_gradients = num_gradients[rank_state.rank]
        latest = max(seconds.values(), default=0.0)
        for collected in (self._ranks, self._states, self._seconds):
            for older in [v for v in collected if v <= version]:
                del collected[older]
        at = tuple(seconds.get(rank_state.rank, latest) for rank_state in ordered)
        self.keep(Checkpoint(state=state, ranks=tuple(ordered), seconds=at, progress=progress))

    def forget(self) -> None:
        """Drop incomplete checkpoints, because they can never be complete after a change of membership."""
        self._ranks.clear()
        self._states.clear()
        self._seconds.clear()
