"""All ranks of a program that is the same on each of them, played as one: where a rank has a number, here is an array by rank.

What the simulation does rank by rank and event by event is here one addition, one draw and one maximum, of the same
numbers in the same order: commits and times are equal to the last bit, and what an iteration costs hardly grows with the ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice, repeat
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from hetsim import effects as fx
from hetsim.cluster import Node
from hetsim.collectives import Collectives
from hetsim.coordination.plan import Layout, Plan, Split, State, Together
from hetsim.experiment import Experiment, Optimizers
from hetsim.history import History
from hetsim.measures import RECENT, Busy
from hetsim.sim.simulation import profiled
from hetsim.step_times import GRADIENTS, StepTimes
from hetsim.trace import ALL_REDUCE, GATHER, GRADIENT, UPDATE, Trace
from hetsim.vector import Phantom, nbytes
from hetsim.workloads.task import Task

BLOCK = 64  # numbers taken from each stream of chance at a time

Seconds = NDArray[np.float64]
"""By rank."""
Counts = NDArray[np.int64]
"""By rank."""
Performed = tuple[Any, Seconds]
"""An effect's answer, and when each rank has it."""


class Everyone:
    """In the place of a rank: it picks all ranges at once, and nothing can be decided by it."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("this program asks which rank it is, so it is not the same on every rank: same_on_every_rank must be False")

    def __repr__(self) -> str:
        return "everyone"


EVERYONE: Final[Any] = Everyone()


class Batches(fx.Batch):
    """Everyone's range of a split: `start` and `samples` are arrays; true where anyone has any."""

    __slots__ = ()
    start: Any
    samples: Any

    def __bool__(self) -> bool:
        return bool(self.samples.any())


@dataclass(frozen=True, slots=True)
class EveryonesSplit(Split):
    """A split that can be asked for all ranges at once; `arrays` has the samples and offsets of its layout."""

    arrays: tuple[Counts, Counts] = field(repr=False, compare=False)

    def __getitem__(self, rank: Any) -> Any:
        if rank is not EVERYONE:
            return Split.__getitem__(self, rank)
        samples, offsets = self.arrays
        start: Any = np.minimum(self.start + offsets, self.stop)
        return Batches(start, np.minimum(samples, self.stop - start))


@dataclass(frozen=True, slots=True)
class EveryonesPlan(Plan):
    """A plan whose splits can be asked for all ranges at once."""

    _latest: list[tuple[Layout, tuple[Counts, Counts]]] = field(default_factory=list, init=False, repr=False, compare=False)

    def split(self, start: int, shares: Sequence[int]) -> EveryonesSplit:
        split = Plan.split(self, start, shares)
        if not self._latest or self._latest[0][0] is not split.layout:
            self._latest[:] = [(split.layout, (np.array(split.layout.samples, np.int64), np.array(split.layout.offsets, np.int64)))]
        return EveryonesSplit(split.start, split.stop, split.layout, self._latest[0][1])


class Draws:
    """The next number of each of many streams at once; whoever is not asked keeps its own for later."""

    def __init__(self, streams: Sequence[Iterator[float]]) -> None:
        self._streams = streams
        self._ranks = np.arange(len(streams))
        self._block = np.empty((BLOCK, len(streams)))
        self._taken = np.full(len(streams), BLOCK)

    def next(self, asked: NDArray[np.bool_]) -> Seconds:
        """One number for each stream, which counts as taken only where it is asked for."""
        empty = self._taken == BLOCK
        if empty.all():
            drawn = chain.from_iterable(islice(stream, BLOCK) for stream in self._streams)
            self._block = np.ascontiguousarray(np.fromiter(drawn, np.float64, self._block.size).reshape(-1, BLOCK).T)
        elif empty.any():
            for rank in np.flatnonzero(empty).tolist():
                self._block[:, rank] = list(islice(self._streams[rank], BLOCK))
        self._taken[empty] = 0
        numbers: Seconds = self._block[self._taken, self._ranks]
        self._taken += asked
        return numbers


class EveryonesTimes:
    """What the next gradients and updates of all nodes take: what StepTimes says of each, of all plain nodes in one go.

    A node is plain if its time is affine in its samples, times noise. The others are asked one by one.
    """

    def __init__(self, nodes: Sequence[Node], *, seed: int, num_gradients: Sequence[int] = ()) -> None:
        self._overhead = np.array([node.overhead_seconds for node in nodes])
        self._per_sample = np.array([node.seconds_per_sample for node in nodes])
        self._update = np.array([node.seconds_per_update for node in nodes])
        plain = [not (node.table or node.slow_spells or node.slowdown) for node in nodes]
        before = num_gradients or repeat(0)
        self._draws: Draws | None = None
        if any(node.noise for node in nodes):
            streams = [
                islice(node.noise.draws(seed, rank, GRADIENTS), skipped, None) if node.noise and its else repeat(1.0)
                for rank, (node, its, skipped) in enumerate(zip(nodes, plain, before, strict=False))
            ]
            self._draws = Draws(streams)
        self._one_by_one = {rank: StepTimes(nodes[rank], seed=seed, rank=rank) for rank, its in enumerate(plain) if not its}
        for rank, times in self._one_by_one.items():
            times.skip(num_gradients[rank] if num_gradients else 0)

    def seconds(self, samples: Counts, start: Seconds) -> Seconds:
        """Of each rank's gradient over so many samples, begun then; nothing, and nothing drawn, where there are none."""
        asked = samples > 0
        seconds: Seconds = self._overhead + samples * self._per_sample
        if self._draws is not None:
            seconds *= self._draws.next(asked)
        for rank, times in self._one_by_one.items():
            if asked[rank]:
                seconds[rank] = times.seconds(int(samples[rank]), float(start[rank]))
        seconds[~asked] = 0.0
        return seconds

    def update_seconds(self, start: Seconds) -> Seconds:
        """Of an optimizer step of each rank's own, begun then."""
        seconds = self._update.copy()
        for rank, times in self._one_by_one.items():
            seconds[rank] = times.update_seconds(float(start[rank]))
        return seconds


class EveryonesBusy:
    """What all ranks did, added up, and the latest intervals: the numbers of N `Busy`."""

    def __init__(self, num_workers: int, num_ahead: int) -> None:
        self.num_ahead = num_ahead
        self.iterations = np.zeros(num_workers, np.int64)
        self.samples = np.zeros(num_workers, np.int64)
        self.compute_seconds = np.zeros(num_workers)
        self.update_seconds = np.zeros(num_workers)
        self._recent: deque[tuple[bool, Seconds, Seconds, Counts]] = deque(maxlen=RECENT * num_ahead)

    def gradient(self, start: Seconds, end: Seconds, samples: Counts) -> None:
        """Those who have samples computed a gradient; of the others the interval is empty."""
        self.iterations += samples > 0
        self.samples += samples
        self.compute_seconds += end - start
        self._recent.append((True, start, end, samples))

    def update(self, start: Seconds, end: Seconds) -> None:
        """Those whose interval is not empty took an optimizer step."""
        self.update_seconds += end - start
        self._recent.append((False, start, end, np.zeros_like(self.samples)))

    def each(self) -> list[Busy]:
        """By rank."""
        everyone = [Busy(num_ahead=self.num_ahead) for _ in self.samples]
        for name in ("iterations", "samples", "compute_seconds", "update_seconds"):
            for busy, number in zip(everyone, getattr(self, name).tolist(), strict=True):
                setattr(busy, name, number)
        for is_gradient, *arrays in self._recent:
            for busy, start, end, count in zip(everyone, *(array.tolist() for array in arrays), strict=True):
                if end > start:
                    busy.recall(is_gradient, start, end, count)
        return everyone


class Started(fx.Pending[Any]):
    """An effect under way: its answer, and when each rank has it."""

    __slots__ = ("end",)

    def __init__(self, answer: Any, end: Seconds) -> None:
        self.answer = answer
        self.end = end


class Lockstep:
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
        plan = EveryonesPlan(**{its.name: getattr(plan, its.name) for its in fields(plan) if its.init})
        coordination, num_workers = experiment.coordination, experiment.num_workers
        profile, profile_seconds = profiled(experiment, self.trace) if state is None else ((), 0.0)
        state = coordination.initial(plan, task.initial(), profile) if state is None else state
        self.history = History(experiment, task, self.trace, state, keep=keep, profile_seconds=profile_seconds)
        self.busy: list[Busy] = []
        self.program = coordination.program(fx.Node(EVERYONE, num_workers), plan, state)
        self.clock: Seconds = np.zeros(num_workers)
        """Where each rank is."""
        self.version = state.version
        self.epoch = state.num_samples // task.num_samples
        self.memory = optimizers.main.initial() if state.optimizer is None else state.optimizer
        self.local_memory = None if optimizers.local is None else optimizers.local.initial()
        self._times = EveryonesTimes(experiment.cluster.nodes, seed=experiment.seed, num_gradients=state.num_gradients)
        self._collectives = Collectives(experiment.cluster)
        self._everyones = EveryonesBusy(num_workers, coordination.num_ahead)
        self._computes_until: Seconds = np.zeros(num_workers)
        self._computed: NDArray[np.bool_] = np.zeros(num_workers, np.bool_)
        """Who had a part in the last gradient, and so in the local step that follows it."""
        self._performers: Mapping[type, Callable[[Any], Performed]] = {
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
                self.history.drained(ended.value)
                self.history.close()
                return
            answer, self.clock = self.perform(effect)

    def perform(self, effect: fx.Effect[Any]) -> Performed:
        """What is answered, and when, if everyone asks now."""
        performer = self._performers.get(type(effect))
        assert performer is not None, f"the program yields {effect!r}, which is none of the effects that all ranks can ask for at once"
        return performer(effect)

    def gradient(self, effect: fx.Gradient) -> Performed:
        """Takes what each node's model says; nothing where a range is empty."""
        assert isinstance(effect.batch, Batches), f"everyone computes {effect.batch!r}: a program takes its range by its rank"
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

    def update(self, effect: fx.Update) -> Performed:
        """Costs each node's seconds_per_update."""
        self.memory, weights = self.optimizers.main.step(self.memory, effect.at, effect.gradient, self.epoch)
        return weights, self._updated()

    def local_update(self, effect: fx.LocalUpdate) -> Performed:
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

    def all_reduce(self, effect: fx.AllReduce) -> Performed:
        """From the last entry, what the network's algorithm takes; a phantom is its own sum."""
        size = nbytes(effect.value)
        return effect.value, self._met(ALL_REDUCE, self._collectives.all_reduce_seconds(size), size)

    def gather(self, effect: fx.Gather) -> Performed:
        """From the last entry, a number of eight bytes from everyone to everyone."""
        numbers = np.broadcast_to(effect.number, self.clock.shape)
        return tuple(numbers.tolist()), self._met(GATHER, self._collectives.gather_seconds(), 8)

    def _met(self, kind: int, seconds: float, size: int) -> Seconds:
        end = np.full_like(self.clock, self.clock.max() + seconds)
        self._rows(kind, self.clock, end, size=size)
        return end

    def start(self, effect: fx.Start[Any]) -> Performed:
        """Goes on at once; the effect takes its own time."""
        return Started(*self.perform(effect.effect)), self.clock

    def wait(self, effect: fx.Wait[Any]) -> Performed:
        """Until the started effect is answered."""
        assert isinstance(effect.pending, Started)
        return effect.pending.answer, np.maximum(self.clock, effect.pending.end)

    def commit(self, effect: fx.Commit) -> Performed:
        """Costs no time. The leader judges; where seconds are limited, the others wait for its verdict."""
        state: State = effect.state
        self.version = effect.version
        self.epoch = state.num_samples // self.task.num_samples
        at = self.clock[self.experiment.leader]
        going = self.history.commit(float(at), state, self._as_the_leader_saw(effect.applied), self.memory)
        self.history.evaluate()
        return going, self.clock if self.experiment.budget.seconds is None else np.maximum(self.clock, at)

    def now(self, effect: fx.Now) -> Performed:
        """Each rank's seconds since the run began."""
        return self.clock, self.clock

    def _as_the_leader_saw(self, applied: Sequence[fx.Contribution]) -> Sequence[fx.Contribution]:
        """With its own seconds, as a rank does not know the others'."""
        if not isinstance(applied, Together):
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
