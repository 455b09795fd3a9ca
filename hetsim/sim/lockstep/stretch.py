"""A stretch of an event-by-event run in lockstep: from a regroup, or the beginning, to the last commit before the next change of members.

After a regroup, all members begin again at the same time from the same state. Until the next crash or return, they do what `LockstepWorld`
computes at a fraction of the cost. At the last commit before it, each rank's program begins again, event by event. So a stretch needs a
coordination with nothing under way at a commit (`Coordination.begins_at_commits`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hetsim import effects as fx
from hetsim.cluster.compute_times import StepTimes
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.history import History
from hetsim.runtime.recording.recorder import ALL_REDUCE, GATHER, GRADIENT, UPDATE, Recorder, RecordInterval, Row, interval_recorder
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.world import handlers
from hetsim.sim.clock import VirtualClock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.lockstep.plan import ALL_RANKS, VectorizedPlan, VectorizedSplit
from hetsim.sim.lockstep.times import Counts, Seconds
from hetsim.sim.lockstep.world import Answered, LockstepWorld, join_states, value_of_rank
from hetsim.sim.membership import Membership
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Phantom
from hetsim.workloads.task import Task

MIN_MEMBERS = 4
"""The fewest members for which arrays are faster than one event after another."""


class StretchedWorld(Protocol):
    """The interface that a stretch needs of its event-by-event world."""

    experiment: Experiment
    prepared: Preparation
    task: Task
    record: RunRecord
    history: History
    observers: list[Recorder]
    env: VirtualClock
    membership: Membership
    collectives: PendingCollectives
    processes: list[RankProcess]
    times: list[StepTimes]
    optimizer_at_commit: Any
    keeps_checkpoints: bool

    def reset_compute(self, rank: int, now: float) -> None:
        """The node's next gradient starts at this time or later."""

    def save_weights_at(self, seconds: float, leader: RankProcess) -> None:
        """The leader's last commit is complete as a checkpoint at this time."""


class Overrun(Exception):
    """The current step belongs to the event world: it ends the run, or ends after the stretch."""


class Rewindable:
    """An iterator that can give items again."""

    def __init__(self, source: Iterator[float]) -> None:
        self._source = source
        self._again: deque[float] = deque()
        self._taken: list[float] | None = None

    @classmethod
    def of(cls, source: Iterator[float]) -> Rewindable:
        """This iterator, or one of its items."""
        return source if isinstance(source, Rewindable) else cls(source)

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        item = self._again.popleft() if self._again else next(self._source)
        if self._taken is not None:
            self._taken.append(item)
        return item

    def keep(self) -> None:
        """The items taken from now on can be given again."""
        self._taken = []

    def rewind(self) -> None:
        """Give the items again that were taken since the last `keep`."""
        self._again.extendleft(reversed(self._taken or []))
        self._taken = None


class MemberTimes:
    """The next seconds of the members' gradients and updates, from their own `StepTimes`."""

    def __init__(self, times: Sequence[StepTimes]) -> None:
        self._times = times
        self._draws = []
        for one in times:
            if one.factors is not None:
                one.factors = draws = Rewindable.of(one.factors)
                self._draws.append(draws)
        self.keep()
        self._steady = not self._draws and all(one.slowdown is None for one in times)
        self._latest: dict[bytes | bool, Seconds] = {}

    def seconds(self, samples: Counts, start: Seconds) -> Seconds:
        """Each member's seconds for a gradient over its samples that begins at `start`; 0 without samples."""
        questions = zip(self._times, samples.tolist(), start.tolist(), strict=True)
        return self._seconds(samples.tobytes(), (times.seconds(num, at) if num else 0.0 for times, num, at in questions))

    def update_seconds(self, start: Seconds, *, local: bool) -> Seconds:
        """Each member's seconds for an optimizer step that begins at `start`. `local`: for a local step."""
        questions = zip(self._times, start.tolist(), strict=True)
        return self._seconds(local, (times.update_seconds(at, local=local) for times, at in questions))

    def _seconds(self, question: bytes | bool, answers: Iterator[float]) -> Seconds:
        """The answers as an array. Members whose speed never changes are not asked again."""
        if not self._steady:
            return np.array([*answers])
        if question not in self._latest:
            self._latest[question] = np.array([*answers])
        return self._latest[question].copy()

    def keep(self) -> None:
        """The numbers drawn so far count."""
        for draws in self._draws:
            draws.keep()

    def rewind(self) -> None:
        """The numbers drawn since the last `keep` are drawn again."""
        for draws in self._draws:
            draws.rewind()


class NoMetrics:
    """The metrics of a stretch: the event world has its own, which observe the rows."""

    def gradient(self, start: Seconds, end: Seconds, samples: Counts) -> None:
        """Do nothing."""

    def update(self, start: Seconds, end: Seconds) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class MembersPlan(VectorizedPlan):
    """A plan whose splits, indexed by `ALL_RANKS`, are arrays of the present workers only."""

    members: NDArray[np.intp] = field(kw_only=True)

    def split(self, start: int, shares: Sequence[int]) -> VectorizedSplit:
        split = VectorizedPlan.split(self, start, shares)
        assert isinstance(split, VectorizedSplit)
        samples, offsets = split.arrays
        return replace(split, arrays=(samples[self.members], offsets[self.members]))


@dataclass(frozen=True)
class LastCommit:
    """The members' states at a commit, and the time at which each of them continues."""

    state: State
    ranks: RankState
    clock: Seconds
    computes_until: Seconds


class Stretch(LockstepWorld):
    """The members of an event world in lockstep from now on, until this second of the run."""

    def __init__(self, world: StretchedWorld, state: State, *, until: float) -> None:
        membership = world.membership
        self.world = world
        self.until = until
        self.experiment, self.prepared, self.task = world.experiment, world.prepared, world.task
        self.optimizers, self.record, self.history = world.prepared.optimizers, world.record, world.history
        self.members = np.array(sorted(world.collectives.members), np.intp)
        """The ranks, by their place in the arrays."""
        self.leader = int(np.searchsorted(self.members, membership.leader))
        self.nodes = tuple(self.experiment.cluster.nodes[rank] for rank in self.members)
        self._processes = [world.processes[rank] for rank in self.members]
        self.state = join_states([process.state for process in self._processes])
        absent = frozenset(range(self.experiment.num_workers)) - world.collectives.members
        self.plan = replace(world.prepared.plan, absent=absent)
        entries = {entry.name: getattr(self.plan, entry.name) for entry in fields(Plan) if entry.init}
        node = fx.Node(ALL_RANKS, self.experiment.num_workers, self.state.own)
        self.program = self.experiment.coordination.program(node, MembersPlan(**entries, members=self.members), state)
        self.metrics: Any = NoMetrics()
        self._times: Any = MemberTimes([world.times[rank] for rank in self.members])
        self._collectives = world.collectives.among_members
        self.clock = np.full(len(self.members), world.env.now)
        self._computes_until = np.zeros(len(self.members))
        self._computed = np.zeros(len(self.members), np.bool_)
        self._recorders = {kind: interval_recorder(world.observers, kind) for kind in (GRADIENT, UPDATE, ALL_REDUCE, GATHER)}
        self._rows: list[tuple[RecordInterval, list[Row]]] = []
        """The rows since the last commit. They count if the next commit is within the stretch."""
        self.last: LastCommit | None = None
        self.handlers = handlers(self)

    @classmethod
    def begin(cls, world: StretchedWorld, state: State) -> bool:
        """Run the members from this state, and let them continue event by event afterwards. Returns whether any version was made."""
        if len(world.collectives.members) < MIN_MEMBERS:
            return False
        stretch = cls(world, state, until=world.membership.next_change)
        stretch._run_to_last_commit()
        if stretch.last is None:
            return False
        stretch._hand_over(stretch.last)
        return True

    @staticmethod
    def suits_members(world: StretchedWorld) -> bool:
        """Whether the members of this world can run in lockstep between two changes."""
        experiment = world.experiment
        declared = vars(type(experiment.coordination))
        same = declared.get("same_on_every_rank", False) and declared.get("begins_at_commits", False)
        alike = same and isinstance(world.prepared.start.weights, Phantom) and world.prepared.plan.pools is None
        faults = experiment.cluster.faults
        changes = bool(faults.nodes) or faults.checkpoint is not None
        return alike and changes and not experiment.cluster.shares_cores and not world.keeps_checkpoints

    @np.errstate(over="ignore", invalid="ignore")  # times that are too large are an error at the end of the run
    def _run_to_last_commit(self) -> None:
        answer: Any = None
        try:
            while True:
                effect = self.program.send(answer)
                answer, self.clock = self.handlers[type(effect)](self.state, effect, None)
        except (Overrun, StopIteration):
            self._times.rewind()
        finally:
            self.program.close()

    def commit(self, state: RankState, effect: fx.Commit, context: None) -> Answered:
        """As in lockstep, if the version and a described checkpoint at it are complete within the stretch. Raises Overrun otherwise."""
        world, storage = self.world, self.world.membership.storage
        committed: State = effect.state
        at = float(self.clock[self.leader])
        clock = np.maximum(self.clock, at) if self.prepared.stop.waits else self.clock
        first = float(self.clock.min())
        pause = storage.seconds_if_due(effect.version, first)
        if pause is not None:
            clock = clock + pause
        if not self.prepared.stop.leader_continues(effect.version, at) or not float(clock.max()) < self.until:
            raise Overrun
        self._report_rows()
        self._times.keep()
        state.set_commit(effect.version, self.prepared.epoch(committed))
        world.optimizer_at_commit = state.optimizer
        going = self.history.commit(at, int(self.members[self.leader]), committed, self._use_leaders_seconds(effect.applied))
        if pause is not None:
            storage.pause(effect.version, first)
            world.save_weights_at(at + pause, self._processes[self.leader])
        self.last = LastCommit(committed, state.snapshot(), clock, self._computes_until)
        return going, clock

    def gather(self, state: RankState, effect: fx.Gather, context: None) -> Answered:
        """As in lockstep. Absent ranks have 0."""
        numbers, end = super().gather(state, effect, context)
        by_rank = np.zeros(self.experiment.num_workers)
        by_rank[self.members] = numbers
        return tuple(by_rank.tolist()), end

    def _report_rows(self) -> None:
        for record, rows in self._rows:
            for row in rows:
                record(row)
        self._rows.clear()

    def _report(self, record: RecordInterval, rows: list[Row]) -> None:
        self._rows.append((record, rows))

    def _hand_over(self, last: LastCommit) -> None:
        """Let each rank's own program continue from the last commit, at its time."""
        world, shape = self.world, last.clock.shape
        coordination = self.experiment.coordination
        for place, (process, seconds) in enumerate(zip(self._processes, last.clock.tolist(), strict=True)):
            state, ranks = process.state, last.ranks
            state.restart(version=ranks.version, epoch=ranks.epoch, optimizer=ranks.optimizer, local_optimizer=ranks.local_optimizer)
            state.num_updates = ranks.num_updates
            state.own.update({name: value_of_rank(value, place, shape) for name, value in ranks.own.items()})
            world.reset_compute(process.rank, float(last.computes_until[place]))
            node = fx.Node(process.rank, self.experiment.num_workers, state.own)
            process.begin(coordination.restart_on_change(node, self.plan, last.state))
            world.env.at(seconds, process.resume)
