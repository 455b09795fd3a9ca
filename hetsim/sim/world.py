"""A cluster in virtual time: what each effect costs, and what it answers. Gradients and updates are really computed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.compute_times import ServiceTimes, StepTimes
from hetsim.coordination.state import State
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.history import History
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.stop import StopDecision
from hetsim.runtime.trace import GRADIENT, UPDATE, Trace
from hetsim.sim.clock import SUSPENDED, Callback, Clock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.gradient_batching import GradientBatcher
from hetsim.sim.membership import Membership
from hetsim.sim.messages import Messaging
from hetsim.sim.profiling import run_profiling
from hetsim.sim.rank_process import Handlers, RankProcess, Started
from hetsim.vector import Phantom, Vector
from hetsim.workloads.task import Task

GC_THRESHOLD = 50_000
"""So many objects come into being in a run before Python looks for cycles among them: ten thousand nodes bring ten times as many."""


class EventWorld:
    """One run. After `run`, `history` has the versions and `busy` what each worker did."""

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        optimizers: Optimizers,
        trace: Trace | None = None,
        *,
        state: State | None = None,
        keep: Callable[[State], None] | None = None,
    ) -> None:
        self.experiment = experiment
        self.cluster = experiment.cluster
        self.task = task
        self.optimizers = optimizers
        self.trace = Trace(None, "none") if trace is None else trace
        self.env = Clock()
        self.membership = Membership(self)
        self.plan = replace(experiment.plan(task), absent=self.membership.absent)
        num_workers = experiment.num_workers
        profile, profile_seconds = run_profiling(experiment, self.trace) if state is None else ((), 0.0)
        state = experiment.coordination.initial(self.plan, task.initial(), profile) if state is None else state
        self.history = History(experiment, task, self.trace, state, keep=keep, profile_seconds=profile_seconds, at_once=True)
        self.busy = [RankActivity(num_ahead=experiment.coordination.num_ahead) for _ in range(num_workers)]
        self.times = [StepTimes(node, seed=experiment.seed, rank=rank) for rank, node in enumerate(self.cluster.nodes)]
        for times, num_gradients in zip(self.times, state.num_gradients, strict=False):
            times.skip(num_gradients)
        self._num_workers = num_workers
        self._may_go = self.cluster.faults.nodes
        self.service = ServiceTimes(self.cluster, seed=experiment.seed)
        self.service.skip(state.version)
        self.memory = optimizers.main.initial() if state.optimizer is None else state.optimizer
        """The optimizer's, at the last commit."""
        self.leader = experiment.leader
        self.processes: list[RankProcess] = []
        self.collective_ops = PendingCollectives(self.env, self.cluster, self.processes, self.trace)
        self.messaging = Messaging(self.env, self.cluster, self.processes, self.trace, seed=experiment.seed)
        self.handlers = Handlers(
            {
                fx.Gradient: self.gradient,
                fx.Update: self.update,
                fx.LocalUpdate: self.local_update,
                fx.Send: self.messaging.send,
                fx.Receive: self.messaging.receive,
                fx.AllReduce: self.collective_ops.all_reduce,
                fx.Gather: self.collective_ops.gather,
                fx.Start: self.start,
                fx.Wait: self.wait,
                fx.Commit: self.commit,
                fx.Regroup: self.membership.regroup,
                fx.Now: self.now,
            }
        )
        self.collective_ops.join(set(range(num_workers)) - self.membership.absent)
        self.processes += [self.process(rank, state) for rank in range(experiment.num_ranks)]
        self._last_step: tuple[Any, Any, Any, int | None, tuple[Any, Any]] = (None, None, None, None, (None, None))
        self._waits_for_verdicts = experiment.budget.seconds is not None and not experiment.coordination.needs_server
        self._decisions: dict[int, StopDecision] = {}
        self._computes_until = [0.0] * num_workers
        self._ahead = None if isinstance(state.weights, Phantom) else GradientBatcher(task)
        self._end_gradient = self._computed  # made once: a bound method is dear to make for every gradient

    def process(self, rank: int, state: State | None) -> RankProcess:
        """A rank that begins at a state; None: at that of the last commit, when the others begin anew with it."""
        coordination, node = self.experiment.coordination, fx.Node(rank, self.experiment.num_workers)
        process = RankProcess(rank, coordination.with_recovery(node, self.plan, state, self.history.last), self.handlers)
        self.stand_at(process, self.history.last if state is None else state)
        return process

    def stand_at(self, process: RankProcess, state: State) -> None:
        """Give a player what belongs to a commit; what belongs to a rank alone begins afresh."""
        process.memory = self.memory
        process.local_memory = None if self.optimizers.local is None else self.optimizers.local.initial()
        process.version = state.version
        process.epoch = state.num_samples // self.task.num_samples

    def run(self) -> None:
        """Play every program to its end."""
        self.membership.begin()
        for process in [process for process in self.processes if not process.lost]:
            process.go()
        thresholds = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(max(GC_THRESHOLD, thresholds[0]), *thresholds[1:])
        try:
            self.env.play()
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
        if not self.membership.over:
            raise RunFailed(self.membership.died() or f"the simulation can make no progress: {self._who_waits()}")
        self.membership.end()
        self.history.record_discarded(self.processes[self.leader].result)
        self.history.close()

    def gradient(self, process: RankProcess, effect: fx.Gradient, callback: Callback) -> Any:
        """Takes what the node's model says."""
        rank, samples, now = process.rank, effect.batch.samples, self.env.now
        start = self._computes_until[rank]
        if start < now:  # one gradient at a time, if more than one was started
            start = now
        seconds = self.times[rank].seconds(samples, start)
        self._computes_until[rank] = end = start + seconds
        self.busy[rank].gradient(start, end, samples)
        if self.trace.full:
            callback = self._recorded((start, end, rank, GRADIENT, process.version, samples, 0, 0), callback)
        asked = -1 if self._ahead is None else self._ahead.expect(end, process, effect)
        return self.env.at(end, self._end_gradient, (process, effect, seconds, callback, asked))

    def _computed(self, due: tuple[RankProcess, fx.Gradient, float, Callback, int]) -> None:
        """It is really computed about when it is due: until then it takes no memory, and on a node that is gone it never is."""
        process, effect, seconds, callback, asked = due
        if not process.lost:
            ahead = self._ahead
            gradient, loss = self.task.gradient(effect.at, effect.batch) if ahead is None else ahead.gradient(asked)
            callback(fx.Computed(gradient, loss, effect.batch.samples, seconds))

    def update(self, process: RankProcess, effect: fx.Update, callback: Callback) -> Any:
        """Costs seconds_per_update; ranks that take the very same step compute it once."""
        at, gradient = effect.at, effect.gradient
        last_memory, last_at, last_gradient, last_epoch, done = self._last_step
        if gradient is not last_gradient or at is not last_at or process.memory is not last_memory or process.epoch != last_epoch:
            asked = (process.memory, at, gradient, process.epoch)
            done = self.optimizers.main.step(*asked)
            self._last_step = (*asked, done)
        process.memory, weights = done
        return self._updated(process, effect, weights, callback)

    def _recorded(self, row: tuple[float, ...], callback: Callback) -> Callback:
        """Note what a rank does now; on a node that may go meanwhile, when it is done."""
        if row[2] in self._may_go:
            return self.membership.record_when_done(row, callback)
        record = self.trace.record
        record(row)
        return callback

    def local_update(self, process: RankProcess, effect: fx.LocalUpdate, callback: Callback) -> Any:
        """Costs the node's seconds_per_update; without a local optimizer there is no step."""
        if self.optimizers.local is None:
            return effect.at
        process.local_memory, weights = self.optimizers.local.step(process.local_memory, effect.at, effect.gradient, process.epoch)
        return self._updated(process, effect, weights, callback)

    def _updated(self, process: RankProcess, effect: fx.Update | fx.LocalUpdate, weights: Vector, callback: Callback) -> Any:
        now, rank = self.env.now, process.rank
        if rank < self._num_workers:
            seconds = self.times[rank].update_seconds(now)
            self.busy[rank].update(now, now + seconds)
        else:
            seconds = self.service.update_seconds(effect.gradient)
        if not seconds:
            return weights
        if self.trace.full:
            callback = self._recorded((now, now + seconds, rank, UPDATE, process.version, 0, 0, 0), callback)
        return self.env.after(seconds, callback, weights)

    def start(self, process: RankProcess, effect: fx.Start[Any], callback: Callback) -> Started:
        """Goes on at once; the effect takes its own time."""
        started = Started(effect.effect)
        answer = process.handlers[type(effect.effect)](process, effect.effect, started.resolve)
        if answer is not SUSPENDED:
            started.resolve(answer)
        return started

    def wait(self, process: RankProcess, effect: fx.Wait[Any], callback: Callback) -> Any:
        """Until the started effect is answered."""
        started = effect.pending
        assert isinstance(started, Started)
        started.callback = callback
        return started.answer

    def commit(self, process: RankProcess, effect: fx.Commit, callback: Callback) -> Any:
        """Costs no time. The leader judges; where seconds are limited, the others wait for its verdict."""
        state: State = effect.state
        process.version = effect.version
        process.epoch = state.num_samples // self.task.num_samples
        if process.rank == self.leader:
            self.memory = process.memory
            going = self.history.commit(self.env.now, state, effect.applied, process.memory)
            if self._waits_for_verdicts:
                self._decision(effect.version).publish(going)
                self._forget(effect.version)
            return going
        if not self._waits_for_verdicts:
            return self.experiment.budget.allows(effect.version, 0.0)
        decision = self._decision(effect.version)
        decision.num_asked += 1
        self._forget(effect.version)
        decided = decision.wait(callback)
        return SUSPENDED if decided is None else decided

    def now(self, process: RankProcess, effect: fx.Now, callback: Callback) -> float:
        """Virtual seconds since the run began."""
        return float(self.env.now)

    def computes_from(self, rank: int, now: float) -> None:
        """What a node was computing is lost."""
        self._computes_until[rank] = now

    def begin_anew(self) -> None:
        """Nobody waits for a verdict any more."""
        self._decisions.clear()

    def _decision(self, version: int) -> StopDecision:
        return self._decisions.setdefault(version, StopDecision())

    def _forget(self, version: int) -> None:
        """A verdict that was spoken and that everyone has asked for is not asked for again."""
        decision = self._decisions[version]
        if decision.going is not None and decision.num_asked == len(self.collective_ops.members) - 1:
            del self._decisions[version]

    def _who_waits(self) -> str:
        waiting = [process for process in self.processes if not process.done and not process.lost]
        some = [f"rank {process.rank} waits {self._for(process, process.waits_for)}" for process in waiting[:8]]
        return "; ".join([*some, *([f"and {len(waiting) - 8} more"] if len(waiting) > 8 else [])])

    def _for(self, process: RankProcess, effect: fx.Effect[Any] | None) -> str:
        """What a player waits for, and for whom."""
        if isinstance(effect, fx.Wait):
            assert isinstance(effect.pending, Started)
            return self._for(process, effect.pending.effect)
        if isinstance(effect, fx.Receive):
            return "for a message from " + ("anyone" if effect.source is None else f"rank {effect.source}")
        if isinstance(effect, fx.Commit):
            return f"for the verdict of rank {self.leader}"
        missing = self.collective_ops.missing(type(effect), process.rank)
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        return f"in a {type(effect).__name__} for rank{'s' if len(missing) > 1 else ''} {names}"
