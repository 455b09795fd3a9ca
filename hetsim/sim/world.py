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
from hetsim.runtime.metrics import Busy
from hetsim.runtime.stop import StopDecision
from hetsim.runtime.trace import GRADIENT, UPDATE, Trace
from hetsim.sim.clock import LATER, Clock, Then
from hetsim.sim.collective_ops import Meetings
from hetsim.sim.gradient_batching import Ahead
from hetsim.sim.membership import Presence
from hetsim.sim.messages import Post
from hetsim.sim.profiling import profiled
from hetsim.sim.rank_process import Performers, Player, Started
from hetsim.vector import Phantom, Vector
from hetsim.workloads.task import Task

YOUNG = 50_000
"""So many objects come into being in a run before Python looks for cycles among them: ten thousand nodes bring ten times as many."""


class Simulation:
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
        self.presence = Presence(self)
        self.plan = replace(experiment.plan(task), absent=self.presence.absent)
        num_workers = experiment.num_workers
        profile, profile_seconds = profiled(experiment, self.trace) if state is None else ((), 0.0)
        state = experiment.coordination.initial(self.plan, task.initial(), profile) if state is None else state
        self.history = History(experiment, task, self.trace, state, keep=keep, profile_seconds=profile_seconds, at_once=True)
        self.busy = [Busy(num_ahead=experiment.coordination.num_ahead) for _ in range(num_workers)]
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
        self.players: list[Player] = []
        self.meetings = Meetings(self.env, self.cluster, self.players, self.trace)
        self.post = Post(self.env, self.cluster, self.players, self.trace, seed=experiment.seed)
        self.performers = Performers(
            {
                fx.Gradient: self.gradient,
                fx.Update: self.update,
                fx.LocalUpdate: self.local_update,
                fx.Send: self.post.send,
                fx.Receive: self.post.receive,
                fx.AllReduce: self.meetings.all_reduce,
                fx.Gather: self.meetings.gather,
                fx.Start: self.start,
                fx.Wait: self.wait,
                fx.Commit: self.commit,
                fx.Regroup: self.presence.regroup,
                fx.Now: self.now,
            }
        )
        self.meetings.join(set(range(num_workers)) - self.presence.absent)
        self.players += [self.player(rank, state) for rank in range(experiment.num_ranks)]
        self._last_step: tuple[Any, Any, Any, int | None, tuple[Any, Any]] = (None, None, None, None, (None, None))
        self._waits_for_verdicts = experiment.budget.seconds is not None and not experiment.coordination.needs_server
        self._verdicts: dict[int, StopDecision] = {}
        self._computes_until = [0.0] * num_workers
        self._ahead = None if isinstance(state.weights, Phantom) else Ahead(task)
        self._end_gradient = self._computed  # made once: a bound method is dear to make for every gradient

    def player(self, rank: int, state: State | None) -> Player:
        """A rank that begins at a state; None: at that of the last commit, when the others begin anew with it."""
        coordination, node = self.experiment.coordination, fx.Node(rank, self.experiment.num_workers)
        player = Player(rank, coordination.resilient(node, self.plan, state, self.history.last), self.performers)
        self.stand_at(player, self.history.last if state is None else state)
        return player

    def stand_at(self, player: Player, state: State) -> None:
        """Give a player what belongs to a commit; what belongs to a rank alone begins afresh."""
        player.memory = self.memory
        player.local_memory = None if self.optimizers.local is None else self.optimizers.local.initial()
        player.version = state.version
        player.epoch = state.num_samples // self.task.num_samples

    def run(self) -> None:
        """Play every program to its end."""
        self.presence.begin()
        for player in [player for player in self.players if not player.lost]:
            player.go()
        thresholds = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(max(YOUNG, thresholds[0]), *thresholds[1:])
        try:
            self.env.play()
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
        if not self.presence.over:
            raise RunFailed(self.presence.died() or f"the simulation can make no progress: {self._who_waits()}")
        self.presence.end()
        self.history.drained(self.players[self.leader].result)
        self.history.close()

    def gradient(self, player: Player, effect: fx.Gradient, then: Then) -> Any:
        """Takes what the node's model says."""
        rank, samples, now = player.rank, effect.batch.samples, self.env.now
        start = self._computes_until[rank]
        if start < now:  # one gradient at a time, if more than one was started
            start = now
        seconds = self.times[rank].seconds(samples, start)
        self._computes_until[rank] = end = start + seconds
        self.busy[rank].gradient(start, end, samples)
        if self.trace.full:
            then = self._noted((start, end, rank, GRADIENT, player.version, samples, 0, 0), then)
        asked = -1 if self._ahead is None else self._ahead.expect(end, player, effect)
        return self.env.at(end, self._end_gradient, (player, effect, seconds, then, asked))

    def _computed(self, due: tuple[Player, fx.Gradient, float, Then, int]) -> None:
        """It is really computed about when it is due: until then it takes no memory, and on a node that is gone it never is."""
        player, effect, seconds, then, asked = due
        if not player.lost:
            ahead = self._ahead
            gradient, loss = self.task.gradient(effect.at, effect.batch) if ahead is None else ahead.gradient(asked)
            then(fx.Computed(gradient, loss, effect.batch.samples, seconds))

    def update(self, player: Player, effect: fx.Update, then: Then) -> Any:
        """Costs seconds_per_update; ranks that take the very same step compute it once."""
        at, gradient = effect.at, effect.gradient
        last_memory, last_at, last_gradient, last_epoch, done = self._last_step
        if gradient is not last_gradient or at is not last_at or player.memory is not last_memory or player.epoch != last_epoch:
            asked = (player.memory, at, gradient, player.epoch)
            done = self.optimizers.main.step(*asked)
            self._last_step = (*asked, done)
        player.memory, weights = done
        return self._updated(player, effect, weights, then)

    def _noted(self, row: tuple[float, ...], then: Then) -> Then:
        """Note what a rank does now; on a node that may go meanwhile, when it is done."""
        if row[2] in self._may_go:
            return self.presence.noted(row, then)
        note = self.trace.note
        note(row)
        return then

    def local_update(self, player: Player, effect: fx.LocalUpdate, then: Then) -> Any:
        """Costs the node's seconds_per_update; without a local optimizer there is no step."""
        if self.optimizers.local is None:
            return effect.at
        player.local_memory, weights = self.optimizers.local.step(player.local_memory, effect.at, effect.gradient, player.epoch)
        return self._updated(player, effect, weights, then)

    def _updated(self, player: Player, effect: fx.Update | fx.LocalUpdate, weights: Vector, then: Then) -> Any:
        now, rank = self.env.now, player.rank
        if rank < self._num_workers:
            seconds = self.times[rank].update_seconds(now)
            self.busy[rank].update(now, now + seconds)
        else:
            seconds = self.service.update_seconds(effect.gradient)
        if not seconds:
            return weights
        if self.trace.full:
            then = self._noted((now, now + seconds, rank, UPDATE, player.version, 0, 0, 0), then)
        return self.env.after(seconds, then, weights)

    def start(self, player: Player, effect: fx.Start[Any], then: Then) -> Started:
        """Goes on at once; the effect takes its own time."""
        started = Started(effect.effect)
        answer = player.performers[type(effect.effect)](player, effect.effect, started.resolve)
        if answer is not LATER:
            started.resolve(answer)
        return started

    def wait(self, player: Player, effect: fx.Wait[Any], then: Then) -> Any:
        """Until the started effect is answered."""
        started = effect.pending
        assert isinstance(started, Started)
        started.then = then
        return started.answer

    def commit(self, player: Player, effect: fx.Commit, then: Then) -> Any:
        """Costs no time. The leader judges; where seconds are limited, the others wait for its verdict."""
        state: State = effect.state
        player.version = effect.version
        player.epoch = state.num_samples // self.task.num_samples
        if player.rank == self.leader:
            self.memory = player.memory
            going = self.history.commit(self.env.now, state, effect.applied, player.memory)
            if self._waits_for_verdicts:
                self._verdict(effect.version).publish(going)
                self._forget(effect.version)
            return going
        if not self._waits_for_verdicts:
            return self.experiment.budget.allows(effect.version, 0.0)
        verdict = self._verdict(effect.version)
        verdict.num_asked += 1
        self._forget(effect.version)
        decided = verdict.wait(then)
        return LATER if decided is None else decided

    def now(self, player: Player, effect: fx.Now, then: Then) -> float:
        """Virtual seconds since the run began."""
        return float(self.env.now)

    def computes_from(self, rank: int, now: float) -> None:
        """What a node was computing is lost."""
        self._computes_until[rank] = now

    def begin_anew(self) -> None:
        """Nobody waits for a verdict any more."""
        self._verdicts.clear()

    def _verdict(self, version: int) -> StopDecision:
        return self._verdicts.setdefault(version, StopDecision())

    def _forget(self, version: int) -> None:
        """A verdict that was spoken and that everyone has asked for is not asked for again."""
        verdict = self._verdicts[version]
        if verdict.going is not None and verdict.num_asked == len(self.meetings.members) - 1:
            del self._verdicts[version]

    def _who_waits(self) -> str:
        waiting = [player for player in self.players if not player.done and not player.lost]
        some = [f"rank {player.rank} waits {self._for(player, player.waits_for)}" for player in waiting[:8]]
        return "; ".join([*some, *([f"and {len(waiting) - 8} more"] if len(waiting) > 8 else [])])

    def _for(self, player: Player, effect: fx.Effect[Any] | None) -> str:
        """What a player waits for, and for whom."""
        if isinstance(effect, fx.Wait):
            assert isinstance(effect.pending, Started)
            return self._for(player, effect.pending.effect)
        if isinstance(effect, fx.Receive):
            return "for a message from " + ("anyone" if effect.source is None else f"rank {effect.source}")
        if isinstance(effect, fx.Commit):
            return f"for the verdict of rank {self.leader}"
        missing = self.meetings.missing(type(effect), player.rank)
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        return f"in a {type(effect).__name__} for rank{'s' if len(missing) > 1 else ''} {names}"
