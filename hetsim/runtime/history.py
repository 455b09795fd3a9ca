"""What becomes of the commits: the learning curve, the verdict on going on, and a bar for who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.metrics import Applied
from hetsim.runtime.progress import Bar
from hetsim.runtime.trace import APPLY, COMMIT, LIST, Trace
from hetsim.vector import Vector
from hetsim.workloads.task import Evaluation, Task


@dataclass(frozen=True)
class Point:
    """A version on the learning curve."""

    seconds: float
    version: int
    samples: int
    evaluation: Evaluation


@dataclass
class History:
    """The leader's record of the global versions. Weights are immutable, so they can be evaluated when there is time for it."""

    experiment: Experiment
    task: Task
    trace: Trace
    start: State
    keep: Callable[[State], None] | None = None
    """Called with the state of every commit, by whoever wants to start again from one."""
    profile_seconds: float = 0.0
    """What measuring the workers took before the run began."""
    at_once: bool = False
    """Whether versions are evaluated when they are committed, as where time can stand still, rather than at the end."""
    points: list[Point] = field(default_factory=list)
    leader: int = field(init=False)
    """The rank whose commits these are."""
    last: State = field(init=False)
    applied: Applied = field(init=False)

    def __post_init__(self) -> None:
        self.last, self.leader = self.start, self.experiment.leader
        self.applied = Applied(self.experiment.num_workers)
        self._every = self.experiment.evaluate_every_epochs * self.task.num_samples
        self._kept: list[tuple[float, int, int, Vector]] = []
        self._allows = self.experiment.budget.allows
        self._bar = Bar(self.experiment, self.experiment.plan(self.task).num_positions)
        self._note(0.0, self.start)

    def commit(self, seconds: float, state: State, applied: Sequence[Contribution], memory: Any = None) -> bool:
        """Record a version, with the optimizer's memory; whether updates and seconds allow another one."""
        trace, version, num_samples = self.trace, state.version, state.num_samples
        staleness = self.applied.commit(seconds, applied)
        if trace.commits:
            record = trace.record
            if trace.full:
                for c in applied:
                    record((seconds, seconds, c.rank, APPLY, version, c.batch.samples, c.staleness, 0))
            record((seconds, seconds, self.leader, COMMIT, version, num_samples - self.last.num_samples, staleness, 0))
            if len(trace.rows) >= LIST:
                trace.spill()
        if num_samples // self._every > self._evaluated:
            self._note(seconds, state)
        going = self._allows(version, seconds)
        if not going or self.keep is not None:
            state = state.evolve(outstanding=tuple(state.outstanding))  # which a server goes on changing
        self.last = state
        if self.keep is not None:
            before = self.start.num_gradients or (0,) * self.experiment.num_workers
            num_gradients = tuple(earlier + now for earlier, now in zip(before, self.applied.count, strict=True))
            self.keep(replace(state, optimizer=memory, num_gradients=num_gradients))
        if self._bar.shown:
            self._bar.move(seconds, state, applied)
        return going

    def record_discarded(self, state: State | None) -> None:
        """What the leader dropped behind the last commit counts as discarded."""
        if state is not None:
            self.last = replace(self.last, num_samples_discarded=state.num_samples_discarded, outstanding=state.outstanding)

    def evaluate(self) -> None:
        """Evaluate the versions that were kept for it."""
        for seconds, version, samples, weights in self._kept:
            self.points.append(Point(seconds, version, samples, self.task.evaluate(weights)))
        self._kept.clear()

    def close(self) -> None:
        """The last version belongs on the curve."""
        self._bar.close()
        if self.last.version != max([self.start.version, *(kept[1] for kept in self._kept), *(point.version for point in self.points)]):
            self._note(self.applied.seconds, self.last)
        self.evaluate()

    def _note(self, seconds: float, state: State) -> None:
        self._evaluated = state.num_samples // self._every
        self._kept.append((seconds, state.version, state.num_samples, state.weights))
        if self.at_once:
            self.evaluate()
