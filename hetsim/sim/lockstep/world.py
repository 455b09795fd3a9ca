"""All ranks of a program that is the same on each of them, played as one: where a rank has a number, here is an array by rank.

What the simulation does rank by rank and event by event is here one addition, one draw and one maximum, of the same
numbers in the same order: commits and times are equal to the last bit, and what an iteration costs hardly grows with the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim import effects as fx
from hetsim.cluster.collectives import Collectives
from hetsim.coordination.contributions import SynchronousContributions
from hetsim.coordination.state import State
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.history import History
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import ALL_REDUCE, GATHER, GRADIENT, UPDATE, Trace
from hetsim.sim.lockstep.metrics import VectorizedActivity
from hetsim.sim.lockstep.plan import ALL_RANKS, VectorizedBatch, VectorizedPlan
from hetsim.sim.lockstep.times import Counts, Seconds, VectorizedTimes
from hetsim.sim.profiling import run_profiling
from hetsim.vector import Phantom, nbytes
from hetsim.workloads.task import Task

Answered = tuple[Any, Seconds]
"""An effect's answer, and when each rank has it."""


class Started(fx.Pending[Any]):
    """An effect under way: its answer, and when each rank has it."""

    __slots__ = ("end",)

    def __init__(self, answer: Any, end: Seconds) -> None:
        self.answer = answer
        self.end = end


class LockstepWorld:
    """One run, as Simulation makes it. After `run`, `history` has the versions and `busy` what each worker did."""

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
        assert self.suits(experiment, task)
        self.experiment = experiment
        self.task = task
        self.optimizers = optimizers
        self.trace = Trace(None, "none") if trace is None else trace
        plan = experiment.plan(task)
        plan = VectorizedPlan(**{its.name: getattr(plan, its.name) for its in fields(plan) if its.init})
        coordination, num_workers = experiment.coordination, experiment.num_workers
        profile, profile_seconds = run_profiling(experiment, self.trace) if state is None else ((), 0.0)
        state = coordination.initial(plan, task.initial(), profile) if state is None else state
        self.history = History(experiment, task, self.trace, state, keep=keep, profile_seconds=profile_seconds)
        self.busy: list[RankActivity] = []
        self.program = coordination.program(fx.Node(ALL_RANKS, num_workers), plan, state)
        self.clock: Seconds = np.zeros(num_workers)
        """Where each rank is."""
        self.version = state.version
        self.epoch = state.num_samples // task.num_samples
        self.memory = optimizers.main.initial() if state.optimizer is None else state.optimizer
        self.local_memory = None if optimizers.local is None else optimizers.local.initial()
        self._times = VectorizedTimes(experiment.cluster.nodes, seed=experiment.seed, num_gradients=state.num_gradients)
        self._collectives = Collectives(experiment.cluster)
        self._everyones = VectorizedActivity(num_workers, coordination.num_ahead)
        self._computes_until: Seconds = np.zeros(num_workers)
        self._computed: NDArray[np.bool_] = np.zeros(num_workers, np.bool_)
        """Who had a part in the last gradient, and so in the local step that follows it."""
        self._performers: Mapping[type, Callable[[Any], Answered]] = {
            fx.Gradient: self.gradient,
            fx.Update: self.update,
            fx.LocalUpdate: self.local_update,
            fx.AllReduce: self.all_reduce,
            fx.Gather: self.gather,
            fx.Start: self.start,
            fx.Wait: self.wait,
            fx.Commit: self.commit,
            fx.Now: self.now,
        }

    @staticmethod
    def suits(experiment: Experiment, task: Task) -> bool:
        """Whether it can play this run: all ranks do the same, of vectors without numbers, on nodes that are there all the time."""
        same = vars(type(experiment.coordination)).get("same_on_every_rank", False)
        return bool(same) and not experiment.cluster.faults.nodes and isinstance(task.initial(), Phantom)

    @np.errstate(over="ignore", invalid="ignore")  # who asks for such times is told when the run is over
    def run(self) -> None:
        """Play the program to its end."""
        answer: Any = None
        while True:
            try:
                effect = self.program.send(answer)
            except StopIteration as ended:
                self.busy = self._everyones.each()
                self.history.record_discarded(ended.value)
                self.history.close()
                return
            answer, self.clock = self.perform(effect)

    def perform(self, effect: fx.Effect[Any]) -> Answered:
        """What is answered, and when, if everyone asks now."""
        handler = self._performers.get(type(effect))
        assert handler is not None, f"the program yields {effect!r}, which is none of the effects that all ranks can ask for at once"
        return handler(effect)

    def gradient(self, effect: fx.Gradient) -> Answered:
        """Takes what each node's model says; nothing where a range is empty."""
        assert isinstance(effect.batch, VectorizedBatch), f"everyone computes {effect.batch!r}: a program takes its range by its rank"
        gradient, loss = self.task.gradient(effect.at, effect.batch)
        now, samples = self.clock, effect.batch.samples
        start = np.maximum(now, self._computes_until)  # one gradient at a time, if more than one was started
        seconds = self._times.seconds(samples, start)
        end = start + seconds
        self._computed = samples > 0
        self._computes_until = np.where(self._computed, end, self._computes_until)
        self._everyones.gradient(start, end, samples)
        self._rows(GRADIENT, start, end, samples, of=self._computed)
        answered = now + np.where(start == now, seconds, end - now)
        return fx.Computed(gradient, loss, samples, seconds), np.where(self._computed, answered, now)  # type: ignore[arg-type]

    def update(self, effect: fx.Update) -> Answered:
        """Costs each node's seconds_per_update."""
        self.memory, weights = self.optimizers.main.step(self.memory, effect.at, effect.gradient, self.epoch)
        return weights, self._updated()

    def local_update(self, effect: fx.LocalUpdate) -> Answered:
        """The same, of those who have a gradient to step along; without a local optimizer there is no step."""
        if self.optimizers.local is None:
            return effect.at, self.clock
        self.local_memory, weights = self.optimizers.local.step(self.local_memory, effect.at, effect.gradient, self.epoch)
        return weights, self._updated(of=self._computed)

    def _updated(self, *, of: NDArray[np.bool_] | None = None) -> Seconds:
        seconds = self._times.update_seconds(self.clock)
        if of is not None:
            seconds[~of] = 0.0
        end: Seconds = self.clock + seconds
        self._everyones.update(self.clock, end)
        self._rows(UPDATE, self.clock, end, of=seconds > 0)
        return end

    def all_reduce(self, effect: fx.AllReduce) -> Answered:
        """From the last entry, what the network's algorithm takes; a phantom is its own sum."""
        size = nbytes(effect.value)
        return effect.value, self._met(ALL_REDUCE, self._collectives.all_reduce_seconds(size), size)

    def gather(self, effect: fx.Gather) -> Answered:
        """From the last entry, a number of eight bytes from everyone to everyone."""
        numbers = np.broadcast_to(effect.number, self.clock.shape)
        return tuple(numbers.tolist()), self._met(GATHER, self._collectives.gather_seconds(), 8)

    def _met(self, kind: int, seconds: float, size: int) -> Seconds:
        end = np.full_like(self.clock, self.clock.max() + seconds)
        self._rows(kind, self.clock, end, size=size)
        return end

    def start(self, effect: fx.Start[Any]) -> Answered:
        """Goes on at once; the effect takes its own time."""
        return Started(*self.perform(effect.effect)), self.clock

    def wait(self, effect: fx.Wait[Any]) -> Answered:
        """Until the started effect is answered."""
        assert isinstance(effect.pending, Started)
        return effect.pending.answer, np.maximum(self.clock, effect.pending.end)

    def commit(self, effect: fx.Commit) -> Answered:
        """Costs no time. The leader judges; where seconds are limited, the others wait for its verdict."""
        state: State = effect.state
        self.version = effect.version
        self.epoch = state.num_samples // self.task.num_samples
        at = self.clock[self.experiment.leader]
        going = self.history.commit(float(at), state, self._as_the_leader_saw(effect.applied), self.memory)
        self.history.evaluate()
        return going, self.clock if self.experiment.budget.seconds is None else np.maximum(self.clock, at)

    def now(self, effect: fx.Now) -> Answered:
        """Each rank's seconds since the run began."""
        return self.clock, self.clock

    def _as_the_leader_saw(self, applied: Sequence[fx.Contribution]) -> Sequence[fx.Contribution]:
        """With its own seconds, as a rank does not know the others'."""
        if not isinstance(applied, SynchronousContributions):
            return applied
        of_leader = (float(np.broadcast_to(its.seconds, self.clock.shape)[self.experiment.leader]) for its in applied.rounds)
        return replace(applied, rounds=tuple(its._replace(seconds=s) for its, s in zip(applied.rounds, of_leader, strict=True)))

    def _rows(
        self,
        kind: int,
        start: Seconds,
        end: Seconds,
        samples: Counts | None = None,
        *,
        size: int = 0,
        of: NDArray[np.bool_] | None = None,
    ) -> None:
        """A row of the trace for each rank that takes part."""
        if not self.trace.full:
            return
        ranks = np.arange(len(self.clock)) if of is None else np.flatnonzero(of)
        counts = np.zeros_like(ranks) if samples is None else samples[ranks]
        for rank, since, until, count in zip(ranks.tolist(), start[ranks].tolist(), end[ranks].tolist(), counts.tolist(), strict=True):
            self.trace.add(since, until, rank, kind, self.version, count, 0, size)
