"""The simulator's world, event by event: each effect's answer, and its time in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from hetsim import effects as fx
from hetsim.coordination.state import State
from hetsim.effects import Fragment
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.nonfinite import NonfiniteGradients
from hetsim.runtime.preparation import prepare
from hetsim.runtime.profiling import Profile
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.history import Checkpoints
from hetsim.runtime.recording.metrics import Metrics
from hetsim.runtime.recording.outcome import RunOutcome
from hetsim.runtime.recording.recorder import GRADIENT, UPDATE, Recorder, Row, ignore, interval_recorder
from hetsim.runtime.recording.run_record import RunRecord, activity_until
from hetsim.runtime.stop import StopDecision
from hetsim.runtime.world import handlers
from hetsim.sim.attempts import Attempts
from hetsim.sim.clock import SUSPENDED, Callback, VirtualClock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.gradient_processes import gradients_of
from hetsim.sim.gradient_sums import GradientSums, Mark
from hetsim.sim.lockstep.stretch import Stretch
from hetsim.sim.membership import Membership
from hetsim.sim.messages import Messaging
from hetsim.sim.profiling import run_profiling
from hetsim.sim.rank_process import LOST, OUTDATED, PendingAnswer, RankProcess
from hetsim.sim.weight_checkpoints import SavedVersion
from hetsim.vector import Phantom, Vector
from hetsim.workloads.task import Optimizer, Task

MAX_NAMED = 8
"""The maximum number of ranks in one list of the error."""


class EventWorld:
    """One run in virtual time, with computed gradients. After `run`, its results are in `metrics`, `curve` and `history`."""

    name: ClassVar[str] = "backend=sim"

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        optimizers: Optimizers,
        recorders: Sequence[Recorder] = (),
        *,
        checkpoint: Checkpoint | None = None,
        keep: Callable[[Checkpoint], None] | None = None,
        wants: Callable[[int], bool] | None = None,
        processes: int | str = 1,
        batched: bool | str = False,
    ) -> None:
        self.experiment = experiment
        self.task = task
        num_workers, coordination = experiment.num_workers, experiment.coordination
        began = checkpoint.began if checkpoint is not None else 0.0
        self.env = VirtualClock(began)
        self.metrics = Metrics(num_workers, num_ahead=coordination.num_ahead, weights=experiment.weights_of(task))
        self.observers = observers = [self.metrics, *recorders]
        self.membership = Membership(self, experiment, observers, began=began)
        self.prepared = prepare(
            experiment, task, optimizers,
            profile=self._profile, checkpoint=checkpoint, absent=self.membership.absent,
        )  # fmt: skip
        self.prepared.profile.record(observers, experiment.profile_batches)
        self.record = RunRecord(self.prepared, self.metrics, recorders, at_once=True, keeps=keep is not None)
        self.curve, self.history = self.record.curve, self.record.history
        self._stop, self._samples_per_epoch = self.prepared.stop, task.num_samples
        self.keeps_checkpoints = keep is not None
        self._checkpoints = None if keep is None else Checkpoints(partial(self._keep_with_activity, keep), wants)
        self._committed_at = [began] * experiment.num_ranks
        self._optimizer = optimizers.main if coordination.needs_server else SharedSteps(optimizers.main)
        self._local_optimizer = optimizers.local
        self._regional_optimizer: Any = optimizers.regional
        states = [self.prepared.rank_state(rank) for rank in range(experiment.num_ranks)]
        self.optimizer_at_commit: Any = states[experiment.leader].optimizer
        positions = enumerate(self.record.num_gradients_before)
        self.times = [self.prepared.step_times(rank, num_gradients=count) for rank, count in positions]
        self._service = {state.rank: self.prepared.service_times(state) for state in states[num_workers:]}
        self._num_workers = num_workers
        self._without_storage = experiment.cluster.faults.checkpoint is None or coordination.needs_server
        self._may_crash = self.membership.faults.nodes
        self._record_gradient = interval_recorder(observers, GRADIENT) or ignore
        self._record_update = interval_recorder(observers, UPDATE) or ignore
        self._record_service = interval_recorder(recorders, UPDATE) or ignore  # metrics are of workers
        self._under_way = {kind: self.membership.recorders(kind) for kind in (GRADIENT, UPDATE)}
        self._computes_until = [0.0] * num_workers
        computes = not isinstance(self.prepared.start.weights, Phantom)
        self._batcher = gradients_of(experiment, task, self.prepared.gradient, processes, batched) if computes else None
        self._nonfinite = NonfiniteGradients(experiment.nonfinite, self.metrics.activity)
        self._end_gradient = self._compute_due  # bound once: binding a method for every gradient is costly
        self._decisions: dict[int, StopDecision] = {}
        self.processes: list[RankProcess] = []
        self.collectives, self.messaging = self._communication(observers)
        self.all_reduce, self.gather = self.collectives.all_reduce, self.collectives.gather
        self.all_gather = self.collectives.all_gather
        self.gradient_sum = GradientSums(self.collectives, self.prepared.buckets, self.gradient).gradient_sum
        self.send, self.receive = self.messaging.send, self.messaging.receive
        self.receive_within = self.messaging.receive_within
        self.regroup = self.membership.regroup
        self._stretches = Stretch.suits_members(self)
        self._released: list[tuple[Callback, fx.Regrouped]] = []
        """The members that a regroup has released, before they continue in lockstep or one by one."""
        if self._stretches:
            self.regroup = self._regroup_before_stretch
        self.attempt = self._attempts().attempt
        self.handlers = handlers(self)
        for state in states:
            self.messaging.skip(state.rank, state.num_messages)
            self.processes.append(self._process(state, self.prepared.start))

    @property
    def last(self) -> State:
        """The state of the last commit."""
        return self.history.last

    def run(self) -> Checkpoint | None:
        """Run every program to its end. Returns the final checkpoint if checkpoints are kept."""
        if self._batcher is None:
            return self._run()
        with closing(self._batcher):
            self._batcher.begin()
            return self._run()

    def _run(self) -> Checkpoint | None:
        self.membership.begin(self._saved_version())
        seconds = self.prepared.checkpoint.seconds
        begun = self._stretches and not seconds and Stretch.begin(self, self.prepared.start)
        for process in [process for process in self.processes if not (begun or process.lost)]:
            if process.rank < len(seconds) and seconds[process.rank] > self.env.now:
                self.env.at(seconds[process.rank], process.resume)
            else:
                process.resume()
        self.env.run_all()
        if not self.membership.over():
            total_loss = self.membership.total_loss(self.metrics.applied.num_updates)
            raise RunFailed(total_loss or describe_standstill(self.processes, self.collectives, leader=self.membership.leader))
        self.history.record_discarded(self.processes[self.membership.leader].result)
        at_end = None if self._checkpoints is None else self._final_checkpoint()
        self.membership.end(self.metrics.applied.seconds)
        self.history.close()
        return at_end

    @property
    def outcome(self) -> RunOutcome:
        """The outcome of the finished run."""
        return self.record.outcome(self.membership.absent_at_end, num_restarts=self.membership.storage.num_restarts)

    def spawn(self, rank: int) -> RankProcess:
        """A new process that joins the run at the last commit."""
        state = RankState(rank=rank)
        self._restart(state)
        return self._process(state, None)

    def restart(self, process: RankProcess) -> None:
        """Restart the state of a process from the last commit. Positions of its streams are kept."""
        self._restart(process.state)

    def restore(self, version: SavedVersion) -> None:
        """Continue from this version as the last commit. What was recorded of later versions no longer counts, but the work does."""
        self.history.last, self.optimizer_at_commit, progress = version
        self.record.roll_back(progress)

    def _saved_version(self) -> SavedVersion:
        """The last commit, as a checkpoint of the training contains it."""
        return SavedVersion(self.history.last, self.optimizer_at_commit, self.record.progress())

    def _profile(self) -> Profile:
        return run_profiling(self.experiment)

    def _communication(self, observers: Collection[Recorder]) -> tuple[PendingCollectives, Messaging]:
        experiment = self.experiment
        collectives = PendingCollectives(self.env, experiment.cluster, observers, seed=experiment.seed)
        return collectives, Messaging(self.env, experiment.cluster, self.processes, observers, seed=experiment.seed)

    def _attempts(self) -> Any:
        return Attempts(self.env, self.compute_at, self.times, self.membership, self._record_gradient)

    def _process(self, state: RankState, start: State | None) -> RankProcess:
        node = fx.Node(state.rank, self._num_workers, state.own)
        program = self.experiment.coordination.with_recovery(node, self.prepared.plan, start, self.history.last)
        return RankProcess(self.env, state, program, self.handlers)

    def _restart(self, state: RankState) -> None:
        self.prepared.restart(state, self.history.last, optimizer=self.optimizer_at_commit)

    def gradient(self, process: RankProcess, effect: fx.Gradient, callback: Callback, marks: Sequence[Mark] = ()) -> Any:
        """Takes the time of the node's model. The gradient is computed when it is due. Calls each of the `marks` on the way."""
        rank, samples, now = process.rank, effect.batch.samples, self.env.now
        start = self._computes_until[rank]
        if start < now:  # one gradient at a time, if more than one was started
            start = now
        seconds = self.times[rank].seconds(samples, start)
        self._computes_until[rank] = end = start + seconds
        process.state.version = effect.version
        row = (start, end, rank, GRADIENT, effect.version, samples, 0, 0)
        if rank in self._may_crash:
            callback = self._record_under_way(row, callback)
        else:
            self._record_gradient(row)
        for share, mark in marks:
            self.env.at(start + share * seconds, mark)
        due = -1 if self._batcher is None else self._batcher.expect(end, process, effect)
        return self.env.far(end, self._end_gradient, (process, effect, seconds, callback, due))

    def _compute_due(self, gradient_due: tuple[RankProcess, fx.Gradient, float, Callback, int]) -> None:
        """Compute the gradient only when it is due, so that it needs no memory before, and is never computed on a lost node."""
        process, effect, seconds, callback, due = gradient_due
        if process.status != LOST:
            batcher = self._batcher
            gradient, loss = batcher.gradient(due) if batcher is not None else self.prepared.gradient(process.rank, effect.at, effect.batch)
            gradient = self._nonfinite.check(gradient, rank=process.rank, version=effect.version, batch=effect.batch)
            callback(fx.Computed(gradient, loss, effect.batch.samples, seconds))

    def compute_at(self, rank: int, effect: fx.Gradient | fx.Attempt) -> tuple[Vector, float]:
        """A rank's gradient and loss; zeros if the gradient is not finite."""
        gradient, loss = self.prepared.gradient(rank, effect.at, effect.batch)
        return self._nonfinite.check(gradient, rank=rank, version=effect.version, batch=effect.batch), loss

    def _record_under_way(self, row: Row, callback: Callback) -> Callback:
        """Record an interval on a node that may crash before its end."""
        at_once, when_done = self._under_way[row[3]]
        at_once(row)
        return when_done(row, callback)

    def update(self, process: RankProcess, effect: fx.Update, callback: Callback) -> Any:
        """Takes seconds_per_update of the server or the node."""
        state, rank = process.state, process.rank
        optimizer = self._optimizer if rank <= self._num_workers else self._regional_optimizer
        weights = state.update(optimizer, effect)
        if rank < self._num_workers:
            seconds = self.times[rank].update_seconds(self.env.now)
        else:
            seconds = self._service[rank].update_seconds(effect.gradient, effect.operations)
        return self._end_update(rank, seconds, state.version, weights, callback)

    def local_update(self, process: RankProcess, effect: fx.LocalUpdate, callback: Callback) -> Any:
        """Takes the node's seconds_per_local_update. Without a local optimizer there is no step."""
        if self._local_optimizer is None:
            return effect.at
        process.state.version = effect.version
        weights = process.state.local_update(self._local_optimizer, effect.at, effect.gradient, effect.epoch)
        seconds = self.times[process.rank].update_seconds(self.env.now, local=True)
        return self._end_update(process.rank, seconds, effect.version, weights, callback)

    def _end_update(self, rank: int, seconds: float, version: int, weights: Vector, callback: Callback) -> Any:
        if not seconds:
            return weights
        now = self.env.now
        row = (now, now + seconds, rank, UPDATE, version, 0, 0, 0)
        if rank in self._may_crash:
            callback = self._record_under_way(row, callback)
        elif rank < self._num_workers:
            self._record_update(row)
        else:  # metrics are of workers
            self._record_service(row)
        return self.env.after(seconds, callback, weights)

    def start(self, process: RankProcess, effect: fx.Start[Any], callback: Callback) -> PendingAnswer:
        """Takes no time; the started effect takes its own."""
        started = PendingAnswer(effect.effect)
        answer = self.handlers[effect.effect.__class__](process, effect.effect, started.resolve)
        if answer is not SUSPENDED:
            started.resolve(answer)
        return started

    def wait(self, process: RankProcess, effect: fx.Wait[Any], callback: Callback) -> Any:
        """Waits until the started effect is answered."""
        started = effect.pending
        assert isinstance(started, PendingAnswer)
        started.callback = callback
        return started.answer

    def done(self, process: RankProcess, effect: fx.Done, callback: Callback) -> bool:
        """Whether the started effect is answered."""
        assert isinstance(effect.pending, PendingAnswer)
        return effect.pending.answer is not SUSPENDED

    def commit(self, process: RankProcess, effect: fx.Commit, callback: Callback) -> Any:
        """Takes no time, unless this version is saved: then the ranks continue when it is."""
        if self._without_storage or process.status == OUTDATED:
            return self._decide(process, effect, callback)
        env = self.env
        seconds = self.membership.storage.pause(effect.version, env.now)
        if seconds is None:
            return self._decide(process, effect, callback)

        def resume(going: bool) -> None:
            if process.waits_for is effect:  # and not of an earlier generation
                callback(going)

        def wait(going: bool) -> Any:
            return env.after(seconds, resume, going) if going else resume(going)

        going = self._decide(process, effect, wait)
        if process.rank == self.membership.leader:
            env.after(seconds, self._save_weights, (process, self._saved_version()))
        return going if going is SUSPENDED or not going else wait(going)

    def _save_weights(self, saved: tuple[RankProcess, SavedVersion]) -> None:
        """The leader has written a checkpoint, unless it has crashed."""
        leader, version = saved
        if leader.status != LOST:
            self.membership.storage.newest = version

    def save_weights_at(self, seconds: float, leader: RankProcess) -> None:
        """The leader's last commit is complete as a checkpoint at this time."""
        self.env.at(seconds, self._save_weights, (leader, self._saved_version()))

    def _regroup_before_stretch(self, process: RankProcess, effect: fx.Regroup, callback: Callback) -> Any:
        """As without stretches. The members continue in lockstep, if they make a version before the next change."""
        return self.membership.regroup(process, effect, partial(self._release, callback))

    def _release(self, callback: Callback, regrouped: fx.Regrouped) -> None:
        """A regroup has released a member. All members are released at the same time."""
        self._released.append((callback, regrouped))
        if len(self._released) < len(self.collectives.members):
            return
        released, self._released = self._released, []
        if not Stretch.begin(self, regrouped.state):
            for resume, answer in released:
                resume(answer)

    def _decide(self, process: RankProcess, effect: fx.Commit, callback: Callback) -> Any:
        """The leader decides whether to continue. If seconds are limited, the other ranks wait for its decision."""
        state: State = effect.state
        process.state.set_commit(effect.version, state.num_samples // self._samples_per_epoch)
        self._committed_at[process.rank] = self.env.now
        leads = process.rank == self.membership.leader
        stop = self._stop
        if leads:
            self.optimizer_at_commit = process.state.optimizer
            going = self.history.commit(self.env.now, process.rank, state, effect.applied)
        if self._checkpoints is not None and self._checkpoints.wants(effect.version):
            self._checkpoint(self._checkpoints, process, leads=leads)
        if not stop.waits:
            return going if leads else stop.others_continue(effect.version)
        decision = self._decisions.setdefault(effect.version, StopDecision())
        if leads:
            decision.publish(going)
            self._forget(effect.version, decision)
            return going
        decision.num_asked += 1
        self._forget(effect.version, decision)
        decided = decision.wait(callback)
        return SUSPENDED if decided is None else decided

    def _checkpoint(self, checkpoints: Checkpoints, process: RankProcess, *, leads: bool) -> None:
        """Save each rank's state at its own commit. Workers of a server do not commit, so theirs are saved at the server's commit."""
        version = process.state.version
        with_server = self.experiment.coordination.needs_server
        reporting = [member for member in self.processes if not member.lost] if with_server else [process]
        for member in reporting:
            member.state.num_messages = self.messaging.num_messages(member.rank)
            checkpoints.add(member.state, version, self.env.now)
        if leads:
            checkpoints.add_state(self.history.last, self.record.num_gradients(), self.record.progress())
        ranks = [member.rank for member in reporting] if with_server else self.collectives.members
        checkpoints.complete(version, ranks, [self._absent_state(rank) for rank in self.membership.down])

    def _keep_with_activity(self, keep: Callable[[Checkpoint], None], checkpoint: Checkpoint) -> None:
        activity = activity_until(self.metrics.activity, checkpoint.seconds)
        keep(replace(checkpoint, progress={**checkpoint.progress, "activity": activity}))

    def _final_checkpoint(self) -> Checkpoint:
        counts, ranks = self.record.num_gradients(), []
        for process in self.processes:
            state = self._absent_state(process.rank) if process.lost else process.state.snapshot()
            state.num_messages = self.messaging.num_messages(process.rank)
            if process.rank < len(counts):
                state.num_gradients = counts[process.rank]
            ranks.append(state)
        last = self.metrics.applied.seconds
        with_server = self.experiment.coordination.needs_server
        seconds = tuple(last if with_server or process.lost else self._committed_at[process.rank] for process in self.processes)
        return Checkpoint(state=self.history.last, ranks=tuple(ranks), seconds=seconds, progress=self.record.progress_until(seconds))

    def _absent_state(self, rank: int) -> RankState:
        """The state that an absent rank will have when it returns."""
        state = RankState(rank=rank)
        self._restart(state)
        return state

    def now(self, process: RankProcess, effect: fx.Now, callback: Callback) -> float:
        """Virtual seconds since the run began."""
        return float(self.env.now)

    def reset_compute(self, rank: int, now: float) -> None:
        """Drop a node's current work. Its next gradient starts at this time or later."""
        self._computes_until[rank] = now

    def forget_decisions(self) -> None:
        """Drop the leader's decisions for which ranks were waiting, and incomplete checkpoints."""
        self._decisions.clear()
        if self._checkpoints is not None:
            self._checkpoints.forget()

    def _forget(self, version: int, decision: StopDecision) -> None:
        """Delete a published decision that all other ranks have read."""
        if decision.going is not None and decision.num_asked == len(self.collectives.members) - 1:
            del self._decisions[version]


class SharedSteps(Optimizer):
    """An optimizer that computes a step once if consecutive ranks request the same step, with the same objects."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._request: tuple[Any, Vector, Vector, int | None, Fragment | None] = (None, None, None, None, None)
        self._result: tuple[Any, Vector] = (None, None)

    def initial(self) -> Any:
        return self.optimizer.initial()

    def step(self, memory: Any, weights: Vector, gradient: Vector, epoch: int, fragment: Fragment | None = None) -> tuple[Any, Vector]:
        last_memory, last_weights, last_gradient, *last = self._request
        if gradient is not last_gradient or weights is not last_weights or memory is not last_memory or last != [epoch, fragment]:
            self._request = (memory, weights, gradient, epoch, fragment)
            self._result = self.optimizer.step(memory, weights, gradient, epoch, *(() if fragment is None else (fragment,)))
        return self._result


def describe_standstill(processes: Sequence[RankProcess], collectives: PendingCollectives, *, leader: int) -> str:
    """The effect and ranks for which each waiting rank waits."""
    waiting = [process for process in processes if not process.done and not process.lost]
    awaited = [_describe_wait(process.waits_for, process.rank, collectives, leader) for process in waiting[:MAX_NAMED]]
    sentences = [f"rank {process.rank} waits {effect}" for process, effect in zip(waiting, awaited, strict=False)]
    more = [f"and {len(waiting) - MAX_NAMED} more"] if len(waiting) > MAX_NAMED else []
    return f"the simulation can make no progress: {'; '.join([*sentences, *more])}"


def _describe_wait(effect: fx.Effect[object] | None, rank: int, collectives: PendingCollectives, leader: int) -> str:
    """The effect for which this rank waits, and the missing ranks."""
    if isinstance(effect, fx.Wait):
        assert isinstance(effect.pending, PendingAnswer)
        return _describe_wait(effect.pending.effect, rank, collectives, leader)
    if isinstance(effect, fx.Receive):
        return "for a message from " + ("anyone" if effect.source is None else f"rank {effect.source}")
    if isinstance(effect, fx.Commit):
        return f"for the decision of rank {leader}"
    missing = collectives.missing_ranks(type(effect), rank)
    if not missing:
        return f"in a {type(effect).__name__}"
    names = ", ".join(map(str, missing[:MAX_NAMED])) + (f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else "")
    return f"in a {type(effect).__name__} for rank{'s' if len(missing) > 1 else ''} {names}"
