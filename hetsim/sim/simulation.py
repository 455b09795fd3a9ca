"""A cluster in virtual time: what each effect costs, and what it answers. Gradients and updates are really computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from simpy import Environment

from hetsim import effects as fx
from hetsim import report
from hetsim.cluster import PROFILING, StepTimes
from hetsim.coordination.plan import State
from hetsim.experiment import Backend, Experiment, Optimizers, RunFailed
from hetsim.history import History
from hetsim.measures import Busy
from hetsim.sim.drive import LATER, Player, Started, Then, after
from hetsim.trace import ALL_REDUCE, GATHER, GRADIENT, MESSAGE, PROFILE, UPDATE, Trace
from hetsim.vector import Vector, nbytes
from hetsim.workloads.task import Task


@dataclass(frozen=True, kw_only=True)
class Simulator(Backend):
    """backend=sim: SimPy's clock, the cluster's times, the workload's real numbers."""

    name: ClassVar[str] = "sim"

    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any]:
        begun = perf_counter()
        task, optimizers = experiment.load()
        with report.begun(folder, config), Trace(folder, experiment.trace) as trace:
            simulation = Simulation(experiment, task, optimizers, trace)
            simulation.run()
            trace.close()
            return report.write(folder, simulation.history, simulation.busy, backend=self.name, wall_seconds=perf_counter() - begun)


class Mailbox:
    """Messages delivered to a rank, and the one question that may wait for them."""

    __slots__ = ("messages", "source", "then")

    def __init__(self) -> None:
        self.messages: deque[fx.Message] = deque()
        self.source: int | None = None
        self.then: Then | None = None


@dataclass(slots=True)
class Meeting:
    """A collective that not everyone has entered yet: what each rank brings, since when, and how to answer it."""

    entered: dict[int, tuple[Any, float, Then]] = field(default_factory=dict)


@dataclass(slots=True)
class Verdict:
    """The leader's word on going on behind a version, and who waits for it."""

    going: bool | None = None
    waiting: list[Then] = field(default_factory=list)
    asked: int = 0

    def speak(self, going: bool) -> None:
        """The leader has judged."""
        self.going = going
        for then in self.waiting:
            then(going)

    def heard(self, then: Then) -> Any:
        """The verdict, or LATER if the leader has not judged yet."""
        if self.going is None:
            self.waiting.append(then)
            return LATER
        return self.going


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
        self.env = Environment()
        num_workers = experiment.num_workers
        plan = experiment.plan(task)
        profile, profile_seconds = self.profile() if state is None else ((), 0.0)
        state = experiment.coordination.initial(plan, task.initial(), profile) if state is None else state
        self.history = History(experiment, task, self.trace, state, keep=keep, profile_seconds=profile_seconds)
        self.busy = [Busy(num_ahead=experiment.coordination.num_ahead) for _ in range(num_workers)]
        self.times = [StepTimes(node, seed=experiment.seed, rank=rank) for rank, node in enumerate(self.cluster.nodes)]
        performers: dict[type, Callable[..., Any]] = {
            fx.Gradient: self.gradient,
            fx.Update: self.update,
            fx.LocalUpdate: self.local_update,
            fx.Send: self.send,
            fx.Receive: self.receive,
            fx.AllReduce: self.all_reduce,
            fx.Gather: self.gather,
            fx.Start: self.start,
            fx.Wait: self.wait,
            fx.Commit: self.commit,
            fx.Now: self.now,
        }
        self.players = [
            Player(rank, experiment.coordination.program(fx.Node(rank, num_workers), plan, state), performers)
            for rank in range(experiment.num_ranks)
        ]
        for times, num_gradients in zip(self.times, state.num_gradients, strict=False):
            times.skip(num_gradients)
        memory = optimizers.main.initial() if state.optimizer is None else state.optimizer
        for player in self.players:
            player.memory = memory
            player.local_memory = None if optimizers.local is None else optimizers.local.initial()
            player.version = state.version
            player.epoch = state.num_samples // task.num_samples
        self._mailboxes = [Mailbox() for _ in self.players]
        self._meetings: dict[type, deque[Meeting]] = {fx.AllReduce: deque(), fx.Gather: deque()}
        self._last_step: tuple[tuple[Any, ...], tuple[Any, Any]] = ((None,) * 4, (None, None))
        self._waits_for_verdicts = experiment.budget.seconds is not None and not experiment.coordination.needs_server
        self._verdicts: dict[int, Verdict] = {}
        self._computes_until = [0.0] * num_workers

    def profile(self) -> tuple[tuple[fx.Contribution, ...], float]:
        """What gradients of B samples take before the run, if the allocation wants to know; and how long all of it took.

        They are thrown away, so they are not computed. Everyone measures at once and gathers the times; that ends at 0 s.
        """
        repetitions, batch = self.experiment.coordination.allocation.repetitions, fx.Batch(0, self.experiment.batch_size)
        if not repetitions:
            return (), 0.0
        everyones = []
        for rank, node in enumerate(self.cluster.nodes):
            times = StepTimes(node, seed=self.experiment.seed, rank=rank, stream=PROFILING)
            everyones.append([times.next(batch.samples) for _ in range(repetitions)])
        took = max(map(sum, everyones)) + self.cluster.network.gather_seconds(len(everyones))
        for rank, its in enumerate(everyones):
            for start, end in pairwise(accumulate(its, initial=-took)):
                if self.trace.full:
                    self.trace.add(start, end, rank, PROFILE, 0, batch.samples)
        return tuple(fx.Contribution(rank, batch, 0, t, 0.0) for rank, its in enumerate(everyones) for t in its), took

    def run(self) -> None:
        """Play every program to its end."""
        for player in self.players:
            player.go()
        self.env.run()
        waiting = [f"rank {player.rank} (for {type(player.waits_for).__name__})" for player in self.players if not player.done]
        if waiting:
            raise RunFailed(f"the simulation can make no progress: nothing is under way, and {', '.join(waiting)} still waits")
        self.history.drained(self.players[self.experiment.leader].result)
        self.history.close()

    def gradient(self, player: Player, effect: fx.Gradient, then: Then) -> Any:
        """Takes what the node's model says."""
        rank, batch, now = player.rank, effect.batch, self.env.now
        gradient, loss = self.task.gradient(effect.at, batch)
        seconds = self.times[rank].next(batch.samples)
        start = max(now, self._computes_until[rank])  # one gradient at a time, if more than one was started
        self._computes_until[rank] = end = start + seconds
        self.busy[rank].gradient(start, end, batch.samples)
        if self.trace.full:
            self.trace.add(start, end, rank, GRADIENT, player.version, batch.samples, 0, 0)
        return after(self.env, seconds if start == now else end - now, then, fx.Computed(gradient, loss, batch.samples, seconds))

    def update(self, player: Player, effect: fx.Update, then: Then) -> Any:
        """Costs seconds_per_update; ranks that take the very same step compute it once."""
        asked = (player.memory, effect.at, effect.gradient, player.epoch)
        last, done = self._last_step
        if asked[3] != last[3] or any(mine is not its for mine, its in zip(asked[:3], last[:3], strict=True)):
            done = self.optimizers.main.step(*asked)
            self._last_step = (asked, done)
        player.memory, weights = done
        return self._updated(player, weights, then)

    def local_update(self, player: Player, effect: fx.LocalUpdate, then: Then) -> Any:
        """Costs the node's seconds_per_update; without a local optimizer there is no step."""
        if self.optimizers.local is None:
            return effect.at
        player.local_memory, weights = self.optimizers.local.step(player.local_memory, effect.at, effect.gradient, player.epoch)
        return self._updated(player, weights, then)

    def _updated(self, player: Player, weights: Vector, then: Then) -> Any:
        seconds = self.cluster.seconds_per_update(player.rank)
        if not seconds:
            return weights
        now = self.env.now
        if player.rank < len(self.busy):
            self.busy[player.rank].update(now, now + seconds)
        if self.trace.full:
            self.trace.add(now, now + seconds, player.rank, UPDATE, player.version)
        return after(self.env, seconds, then, weights)

    def send(self, player: Player, effect: fx.Send, then: Then) -> None:
        """Under way for latency + nbytes / bytes_per_second; the sender goes on at once."""
        size = nbytes(effect.payload)
        seconds = self.cluster.network.message_seconds(size)
        if self.trace.full:
            now = self.env.now
            self.trace.add(now, now + seconds, player.rank, MESSAGE, effect.header.get("version", 0), 0, 0, size)
        message = fx.Message(player.rank, effect.header, effect.payload)
        to = self.players[effect.to]
        after(self.env, seconds, lambda message: self._deliver(to, message), message)

    def receive(self, player: Player, effect: fx.Receive, then: Then) -> Any:
        """The message delivered first of those asked for."""
        box = self._mailboxes[player.rank]
        for message in box.messages:
            if effect.source is None or effect.source == message.source:
                box.messages.remove(message)
                return self._opened(player, message)
        assert box.then is None, f"rank {player.rank} waits for two messages at once"
        box.source, box.then = effect.source, then
        return LATER

    def all_reduce(self, player: Player, effect: fx.AllReduce, then: Then) -> Any:
        """From the last entry, 2(N−1)(latency + nbytes/(N·bytes_per_second)); the sum is in rank order."""
        met = self._meet(player, fx.AllReduce, effect.value, then)
        if met:
            total: Vector = met[0]
            for value in met[1:]:
                total = total + value
            size = nbytes(total)
            self._part(fx.AllReduce, self.cluster.network.all_reduce_seconds(size, len(met)), total, ALL_REDUCE, size)
        return LATER

    def gather(self, player: Player, effect: fx.Gather, then: Then) -> Any:
        """From the last entry, (N−1)(latency + 8/bytes_per_second)."""
        met = self._meet(player, fx.Gather, effect.number, then)
        if met:
            self._part(fx.Gather, self.cluster.network.gather_seconds(len(met)), tuple(met), GATHER, 8)
        return LATER

    def start(self, player: Player, effect: fx.Start[Any], then: Then) -> Started:
        """Goes on at once; the effect takes its own time."""
        started = Started()
        answer = player.perform(effect.effect, started.resolve)
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
        if player.rank == self.experiment.leader:
            going = self.history.commit(self.env.now, state, effect.applied, player.memory)
            self.history.evaluate()
            if self._waits_for_verdicts:
                self._verdict(effect.version).speak(going)
                self._forget(effect.version)
            return going
        if not self._waits_for_verdicts:
            return self.experiment.budget.allows(effect.version, 0.0)
        verdict = self._verdict(effect.version)
        verdict.asked += 1
        self._forget(effect.version)
        return verdict.heard(then)

    def now(self, player: Player, effect: fx.Now, then: Then) -> float:
        """Virtual seconds since the run began."""
        return float(self.env.now)

    def _verdict(self, version: int) -> Verdict:
        return self._verdicts.setdefault(version, Verdict())

    def _forget(self, version: int) -> None:
        """A verdict that was spoken and that everyone has asked for is not asked for again."""
        verdict = self._verdicts[version]
        if verdict.going is not None and verdict.asked == self.experiment.num_workers - 1:
            del self._verdicts[version]

    def _deliver(self, player: Player, message: fx.Message) -> None:
        box = self._mailboxes[player.rank]
        then = box.then
        if then is not None and box.source in (None, message.source):
            box.then = None
            then(self._opened(player, message))
        else:
            box.messages.append(message)

    def _opened(self, player: Player, message: fx.Message) -> fx.Message:
        if player.rank < self.experiment.num_workers:  # a server's version is its last commit's
            player.version = message.header.get("version", player.version)
            player.epoch = message.header.get("epoch", player.epoch)
        return message

    def _meet(self, player: Player, kind: type, brought: Any, then: Then) -> list[Any] | None:
        """Enter the first collective of this kind that the rank is not in yet; everyone's values once all are there."""
        meetings = self._meetings[kind]
        meeting = next((meeting for meeting in meetings if player.rank not in meeting.entered), None)
        if meeting is None:
            meeting = Meeting()
            meetings.append(meeting)
        meeting.entered[player.rank] = (brought, self.env.now, then)
        if len(meeting.entered) < self.experiment.num_workers:
            return None
        return [meeting.entered[rank][0] for rank in sorted(meeting.entered)]

    def _part(self, kind: type, seconds: float, answer: Any, row: int, size: int) -> None:
        """Answer everyone, in rank order, when the collective's time has passed."""
        entered = self._meetings[kind].popleft().entered
        now = self.env.now
        if self.trace.full:
            for rank in sorted(entered):
                self.trace.add(entered[rank][1], now + seconds, rank, row, self.players[rank].version, 0, 0, size)

        def release(answer: Any) -> None:
            for rank in sorted(entered):
                entered[rank][2](answer)

        after(self.env, seconds, release, answer)
