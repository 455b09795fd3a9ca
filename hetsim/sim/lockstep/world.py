"""The simulator's world in lockstep: one program runs for all ranks, with arrays by rank.

An operation that the event-by-event world does rank by rank is one operation on arrays here, with the same numbers in the same order.
So commits and times are equal to the last bit, and the cost of an iteration hardly grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetsim import effects as fx
from hetsim.cluster.compute_times import share_ready
from hetsim.cluster.network.collectives import shared_collectives
from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.bookkeeping.timings import UnreportedTimings
from hetsim.coordination.state import State
from hetsim.runtime.buckets import reduction_intervals
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.preparation import prepare
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.outcome import RunOutcome
from hetsim.runtime.recording.recorder import ALL_REDUCE, GATHER, GRADIENT, UPDATE, Recorder, RecordInterval, Row, interval_recorder
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.world import handlers, unsupported
from hetsim.sim.lockstep.metrics import VectorizedMetrics
from hetsim.sim.lockstep.plan import ALL_RANKS, VectorizedBatch, VectorizedPlan
from hetsim.sim.lockstep.times import Counts, Seconds, VectorizedTimes
from hetsim.sim.profiling import run_profiling
from hetsim.vector import Phantom, nbytes
from hetsim.workloads.task import Task

Answered = tuple[Any, Seconds]
"""An effect's answer, and the time at which each rank has it."""


class LockstepAnswer(fx.Pending[Any]):
    """A started effect: its answer, and the time at which each rank has it."""

    __slots__ = ("end",)

    def __init__(self, answer: Any, end: Seconds) -> None:
        self.answer = answer
        self.end = end


class LockstepWorld:
    """One run, with the same results as `EventWorld`. After `run`, they are in `metrics`, `curve` and `history`."""

    name: ClassVar[str] = "backend=sim in lockstep"
    send = receive = receive_within = regroup = attempt = done = unsupported

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
    ) -> None:
        assert self.suits(experiment, task)
        self.experiment = experiment
        self.task = task
        self.optimizers = optimizers
        num_workers, coordination = experiment.num_workers, experiment.coordination
        self.metrics = VectorizedMetrics(num_workers, num_ahead=coordination.num_ahead, weights=experiment.weights_of(task))
        self.prepared = prepare(experiment, task, optimizers, profile=lambda: run_profiling(experiment), checkpoint=checkpoint)
        resumed = self.prepared.checkpoint
        self.prepared.profile.record(recorders, experiment.profile_batches)
        self.members, self.leader = np.arange(num_workers), experiment.leader
        self.nodes = experiment.cluster.nodes
        self.record = RunRecord(self.prepared, self.metrics, recorders, at_once=True, keeps=keep is not None)
        self.curve, self.history = self.record.curve, self.record.history
        self._keep = keep
        self._wants = wants or (lambda _: True)
        self.state = join_states([self.prepared.rank_state(rank) for rank in range(num_workers if resumed.ranks else 1)])
        """The state of all ranks. In its `own`, numbers of ranks are arrays."""
        plan = self.prepared.plan
        vectorized = VectorizedPlan(**{field.name: getattr(plan, field.name) for field in fields(plan) if field.init})
        self.program = coordination.program(fx.Node(ALL_RANKS, num_workers, self.state.own), vectorized, self.prepared.start)
        self.clock: Seconds = np.full(num_workers, resumed.began)
        """The current time of each rank."""
        self.clock[: len(resumed.seconds)] = resumed.seconds[:num_workers]
        self._committed_at = self.clock
        positions = self.record.num_gradients_before
        self._times = VectorizedTimes(experiment.cluster.nodes, seed=experiment.seed, positions=positions)
        self._collectives = shared_collectives(experiment.cluster, seed=experiment.seed)
        self._computes_until: Seconds = np.zeros(num_workers)
        self._computed: NDArray[np.bool_] = np.zeros(num_workers, np.bool_)
        """The ranks that computed the last gradient, and so take the next local step."""
        self._recorders = {kind: interval_recorder(recorders, kind) for kind in (GRADIENT, UPDATE, ALL_REDUCE, GATHER)}
        self.handlers = handlers(self)

    @staticmethod
    def suits(experiment: Experiment, task: Task) -> bool:
        """Whether it can run this experiment: all ranks do the same on phantoms. Nodes are never absent, save nothing, share no cores."""
        cluster = experiment.cluster
        same = vars(type(experiment.coordination)).get("same_on_every_rank", False)
        differ = cluster.faults.nodes or cluster.faults.checkpoint or cluster.shares_cores
        return bool(same) and not differ and isinstance(task.initial(), Phantom)

    @property
    def outcome(self) -> RunOutcome:
        """The outcome of the finished run."""
        return self.record.outcome()

    @np.errstate(over="ignore", invalid="ignore")  # times that are too large are an error at the end of the run
    def run(self) -> Checkpoint | None:
        """Run the program to its end. Returns the final checkpoint if checkpoints are kept."""
        answer: Any = None
        while True:
            try:
                effect = self.program.send(answer)
            except StopIteration as stop:
                self.history.record_discarded(stop.value)
                at_end = None if self._keep is None else self.checkpoint()
                self.history.close()
                return at_end
            answer, self.clock = self.handlers[type(effect)](self.state, effect, None)

    def gradient(self, state: RankState, effect: fx.Gradient, context: None) -> Answered:
        """Takes the time of each node's model, or none for an empty range."""
        assert isinstance(effect.batch, VectorizedBatch), f"all ranks compute {effect.batch!r}: a program has to pick its range by its rank"
        gradient, loss = self.task.gradient(effect.at, effect.batch)
        now, samples = self.clock, effect.batch.samples
        start = np.maximum(now, self._computes_until)  # one gradient at a time, if more than one was started
        seconds = self._times.seconds(samples, start)
        end = start + seconds
        self._computed = samples > 0
        self._computes_until = np.where(self._computed, end, self._computes_until)
        self.metrics.gradient(start, end, samples)
        self._record_rows(GRADIENT, start, end, effect.version, samples, ranks=self._computed)
        answered = now + np.where(start == now, seconds, end - now)
        return fx.Computed(gradient, loss, samples, seconds), np.where(self._computed, answered, now)  # type: ignore[arg-type]

    def gradient_sum(self, state: RankState, effect: fx.GradientSum, context: None) -> Answered:
        """Each bucket takes the time of the network's algorithm, after all ranks have it and the previous bucket is reduced."""
        now, busy_until = self.clock, self._computes_until
        computed, end = self.gradient(state, fx.Gradient(effect.at, effect.batch, effect.version), None)
        start, buckets = np.maximum(now, busy_until), self.prepared.buckets(effect.bucket_bytes)
        shares: list[Any] = [bucket.ready for bucket in buckets[:-1]]
        nodes = self.nodes
        if any(node.micro_batch is not None for node in nodes):
            assert isinstance(effect.batch, VectorizedBatch)
            batches = list(zip(nodes, effect.batch.samples.tolist(), strict=True))
            shares = [np.array([share_ready(node, samples, share) for node, samples in batches]) for share in shares]
        ready = [np.where(self._computed, start + share * computed.seconds, now) for share in shares]
        sizes = [(bucket.stop - bucket.start) * effect.at.itemsize for bucket in buckets]
        entered = [*ready, end]
        over = now
        number = self.state.enter_collective()
        numbers = [(*number, bucket.start) for bucket in buckets]
        seconds = [partial(self._collectives.all_reduce_seconds, size, number) for size, number in zip(sizes, numbers, strict=True)]
        last_ready = partial(self._collectives.gradients_end, sizes[:-1], end) if self._collectives.slow_gradients else None
        reductions = reduction_intervals([float(ranks.max()) for ranks in entered], seconds, last_ready)
        for since, size, (_, until) in zip(entered, sizes, reductions, strict=True):
            over = np.full_like(now, until)
            self._record_rows(ALL_REDUCE, since, over, self.state.version, size=size)
        return computed, over

    def update(self, state: RankState, effect: fx.Update, context: None) -> Answered:
        """Takes each node's seconds_per_update."""
        weights = state.update(self.optimizers.main, effect)
        return weights, self._end_update(state.version)

    def local_update(self, state: RankState, effect: fx.LocalUpdate, context: None) -> Answered:
        """The same, for the ranks that computed a gradient. Without a local optimizer there is no step."""
        if self.optimizers.local is None:
            return effect.at, self.clock
        weights = state.local_update(self.optimizers.local, effect.at, effect.gradient, effect.epoch)
        return weights, self._end_update(effect.version, ranks=self._computed)

    def _end_update(self, version: int, *, ranks: NDArray[np.bool_] | None = None) -> Seconds:
        seconds = self._times.update_seconds(self.clock, local=ranks is not None)
        if ranks is not None:
            seconds[~ranks] = 0.0
        end: Seconds = self.clock + seconds
        self.metrics.update(self.clock, end)
        self._record_rows(UPDATE, self.clock, end, version, ranks=seconds > 0)
        return end

    def all_reduce(self, state: RankState, effect: fx.AllReduce, context: None) -> Answered:
        """Takes the time of the network's algorithm from the last entry on. The sum of phantoms is the phantom."""
        size = nbytes(effect.value)
        seconds = partial(self._collectives.all_reduce_seconds, size, self.state.enter_collective())
        return effect.value, self._collective(ALL_REDUCE, seconds, size)

    def gather(self, state: RankState, effect: fx.Gather, context: None) -> Answered:
        """Takes the time of eight bytes between each pair of ranks, from the last entry on."""
        numbers = np.broadcast_to(effect.number, self.clock.shape)
        seconds = partial(self._collectives.gather_seconds, self.state.enter_collective())
        return tuple(numbers.tolist()), self._collective(GATHER, seconds, 8)

    def all_gather(self, state: RankState, effect: fx.AllGather[Any], context: None) -> Answered:
        """Takes the time of a vector between each pair of ranks, from the last entry on. A phantom stands for all vectors."""
        size = nbytes(effect.value)
        seconds = partial(self._collectives.gather_seconds, self.state.enter_collective(), nbytes=size)
        return effect.combine({0: effect.value}), self._collective(GATHER, seconds, size)

    def _collective(self, kind: int, seconds: Callable[[float], float], size: int) -> Seconds:
        last = float(self.clock.max())
        end = np.full_like(self.clock, last + seconds(last))
        self._record_rows(kind, self.clock, end, self.state.version, size=size)
        return end

    def start(self, state: RankState, effect: fx.Start[Any], context: None) -> Answered:
        """Takes no time; the started effect takes its own."""
        return LockstepAnswer(*self.handlers[type(effect.effect)](state, effect.effect, None)), self.clock

    def wait(self, state: RankState, effect: fx.Wait[Any], context: None) -> Answered:
        """Waits until the started effect is answered."""
        assert isinstance(effect.pending, LockstepAnswer)
        return effect.pending.answer, np.maximum(self.clock, effect.pending.end)

    def commit(self, state: RankState, effect: fx.Commit, context: None) -> Answered:
        """Takes no time. The leader decides whether to continue. If seconds are limited, the other ranks wait for its decision."""
        committed: State = effect.state
        state.set_commit(effect.version, self.prepared.epoch(committed))
        self._committed_at = self.clock
        at = self.clock[self.leader]
        going = self.history.commit(float(at), self.leader, committed, self._use_leaders_seconds(effect.applied))
        if self._keep is not None and self._wants(effect.version):
            self._keep(self.checkpoint())
        return going, np.maximum(self.clock, at) if self.prepared.stop.waits else self.clock

    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the current version."""
        seconds = tuple(self._committed_at.tolist())
        return Checkpoint(state=self.history.last, ranks=self._rank_states(), seconds=seconds, progress=self.record.progress_until(seconds))

    def now(self, state: RankState, effect: fx.Now, context: None) -> Answered:
        """Each rank's seconds since the run began."""
        return self.clock, self.clock

    def _use_leaders_seconds(self, applied: Sequence[fx.Contribution]) -> Sequence[fx.Contribution]:
        """The contributions with the leader's seconds for all ranks, because a rank does not know other ranks' seconds."""
        if not isinstance(applied, SynchronousContributions):
            return applied
        of_leader = (float(np.broadcast_to(round_.seconds, self.clock.shape)[self.leader]) for round_ in applied.rounds)
        return replace(applied, rounds=tuple(round_._replace(seconds=s) for round_, s in zip(applied.rounds, of_leader, strict=True)))

    def _rank_states(self) -> tuple[RankState, ...]:
        """The state of each rank at a commit."""
        shape = self.clock.shape
        return tuple(
            replace(
                self.state,
                rank=rank,
                own={name: value_of_rank(value, rank, shape) for name, value in self.state.own.items()},
                num_gradients=count,
                num_messages={},
            )
            for rank, count in enumerate(self.record.num_gradients())
        )

    def _record_rows(
        self,
        kind: int,
        start: Seconds,
        end: Seconds,
        version: int,
        samples: Counts | None = None,
        *,
        size: int = 0,
        ranks: NDArray[np.bool_] | None = None,
    ) -> None:
        """Report the intervals of these ranks; None: of all ranks."""
        record = self._recorders[kind]
        if record is None:
            return
        places = np.arange(len(self.clock)) if ranks is None else np.flatnonzero(ranks)
        counts = np.zeros_like(places) if samples is None else samples[places]
        ranks_and_times = (self.members[places].tolist(), start[places].tolist(), end[places].tolist(), counts.tolist())
        self._report(
            record, [(since, until, r, kind, version, count, 0, size) for r, since, until, count in zip(*ranks_and_times, strict=True)]
        )

    def _report(self, record: RecordInterval, rows: list[Row]) -> None:
        for row in rows:
            record(row)


def value_of_rank(value: Any, rank: int, shape: tuple[int, ...]) -> Any:
    """One rank's part of a value in `own`."""
    if isinstance(value, UnreportedTimings):
        return replace(value, seconds=float(np.broadcast_to(value.seconds, shape)[rank]))
    return value


def join_states(states: Sequence[RankState]) -> RankState:
    """One state for all ranks, with their timings as an array. All other values are equal on ranks that do the same on phantoms."""
    values = dict(states[0].own)
    for name, value in values.items():
        if isinstance(value, UnreportedTimings):
            seconds: Any = np.array([state.own[name].seconds for state in states])
            values[name] = replace(value, seconds=seconds)
    return replace(states[0], rank=ALL_RANKS, own=values)
