"""The world of one rank in real time: the work for each effect in this process, and the time until which its answer is held."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hetsim import effects as fx
from hetsim.cluster.compute_times import share_ready
from hetsim.cluster.network.collectives import Collectives
from hetsim.coordination.state import State
from hetsim.distributed.communication.channel import Arrival
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import AddUp, Reduction
from hetsim.distributed.communication.transport import Transport, as_tensor
from hetsim.distributed.pacing.padding import Pace
from hetsim.distributed.rank.checkpointing import Saving
from hetsim.distributed.rank.standstill import Waiting
from hetsim.runtime.buckets import reduction_intervals
from hetsim.runtime.experiment import Optimizers
from hetsim.runtime.nonfinite import NonfiniteGradients, is_finite
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.recorder import ALL_REDUCE, GATHER, GRADIENT, MESSAGE, UPDATE, Recorder, ignore, interval_recorder
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.world import as_program_error, handlers, unsupported
from hetsim.vector import Phantom, Vector, nbytes, piece, scaled, zeros_like
from hetsim.workloads.device import Device
from hetsim.workloads.task import Bucket, divide_batch, in_passes, terms_in_passes

MAIN, SECOND = 0, 1
"""The thread that runs the program, and the thread that runs the effects that the program starts."""


class Turn(NamedTuple):
    """The context of an effect: its time, and the transport to the other ranks."""

    at: float
    """The end of the previous effect in seconds of the host's clock, and not the time at which this thread woke up."""
    transport: Transport
    """The thread's transport. Each thread has separate collectives."""
    version: int
    """The version that the rank had committed when the effect was yielded or started."""
    thread: int = MAIN
    number: tuple[int, int] | None = None
    """The number of a started collective; None: it is the rank's next one."""


Answered = tuple[Any, float]
"""An effect's answer, and the time of the answer, in seconds of the host's clock."""


class Request(ABC):
    """A gradient that the caller of `ProcessWorld.steps` computes."""

    @abstractmethod
    def answer(self) -> Answered:
        """The effect's answer, once the caller has computed it."""


class StartedEffect(fx.Pending[Any]):
    """A started effect, which the second thread runs."""

    __slots__ = ("future",)

    def __init__(self, future: Future[Any]) -> None:
        self.future = future


@dataclass(kw_only=True)
class RankParts:
    """One rank's preparation, state, records and checkpoints. `leader` is the current leader."""

    prepared: Preparation
    state: RankState
    leader: int
    pace: Pace
    record: RunRecord
    recorders: Sequence[Recorder]
    """The recorders of this rank's intervals."""
    saving: Saving
    nonfinite: NonfiniteGradients
    keep: Callable[[RankState], None] | None = None
    """Called with the rank's state at its commits."""
    micro_batch: int | None = None
    """The maximum number of samples that are computed at a time, for a gradient that can be given up."""


class ProcessWorld:
    """One rank of a run in real time. `began` is the beginning of the run, by the host's clock.

    The program runs in one thread. The effects that it starts run in a second thread, one after another. Only the first thread
    writes the rank's state.
    """

    name: ClassVar[str] = "backend=dist"
    regroup: Any = unsupported
    restarts: ClassVar[bool] = False
    """Whether a rank may restart from its last commits, whose optimizer's memory no step may overwrite."""

    def __init__(self, parts: RankParts, *, transport: Transport, mailbox: Mailbox, reduction: Reduction, began: float) -> None:
        prepared, state = parts.prepared, parts.state
        self.parts = parts
        self.prepared = prepared
        self.experiment = experiment = prepared.experiment
        self.task = prepared.task
        self.optimizers = prepared.optimizers
        self.rank: int = state.rank
        self.state = state
        self.transport = transport
        self.mailbox = mailbox
        self.pace = parts.pace
        self.reduction = reduction
        self.began = began
        self.nonfinite = parts.nonfinite
        self._in_place = self._optimizers_in_place()
        self.gradient_seconds, self.update_seconds = described_times(prepared, state)
        self.collectives = Collectives(experiment.cluster, seed=experiment.seed)
        kinds = (GRADIENT, UPDATE, MESSAGE, ALL_REDUCE, GATHER)
        self.record: dict[int, Any] = {kind: interval_recorder(parts.recorders, kind) or ignore for kind in kinds}
        self.second: Executor = self._second_thread()
        self._answers: list[Any] = []
        """Answers of started effects. Queued work on the device may still read them."""
        self._effects: list[fx.Effect[Any] | None] = [None, None]
        self.num_asked = 0
        """The number of effects that its program has yielded."""
        self._num_collectives = [0, 0]
        self.last: State = prepared.start
        """The state that this rank committed last."""
        self.ended = False
        """Whether the program has ended."""
        self.handlers = handlers(self)

    def _optimizers_in_place(self) -> Optimizers:
        """This rank's optimizers for steps `in_place`. They never overwrite what a checkpoint or a restart needs of the last commit."""
        main, local = self.prepared.optimizer_of(self.rank), self.optimizers.local
        computes = self.rank < self.experiment.num_workers
        if computes and not self.task.gradients_are_new:
            return Optimizers(main, local)
        memory = not (self.restarts or self.experiment.checkpoint.enabled or self.parts.keep is not None)
        return Optimizers(main.in_place(memory=memory), None if local is None else local.in_place(memory=memory))

    def _second_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, initializer=self.task.device.own_queue)

    def run(self, program: fx.Program[Any], *, now: bool = False) -> Any:
        """Run the program to its end, from the run's beginning or from now. Errors of the world are thrown into it. Returns its result."""
        steps = self.steps(program, now=now)
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("this world computes gradients itself")

    def steps(self, program: fx.Program[Any], *, now: bool = False) -> Generator[Request, None, Any]:
        """As `run`, in a world whose caller computes the gradients: it yields each request, whose `answer` the caller sets."""
        at = self.pace.clock() if now else self.began + self.prepared.checkpoint.began
        if self.ended:
            self.ended, self.second = False, self._second_thread()
        resume: Callable[[Any], fx.Effect[Any]] = program.send
        answer: Any = None
        try:
            while True:
                try:
                    effect = resume(answer)
                except StopIteration as ended:
                    self.ended = True
                    return ended.value
                except AttributeError as error:
                    if (lacking := as_program_error(error, self.rank)) is not None:
                        raise lacking from None
                    raise
                try:
                    answered = self.answer_effect(effect, Turn(at, self.transport, self.state.version))
                    if isinstance(answered, Request):
                        yield answered
                        answered = answered.answer()
                    answer, at = answered
                    resume = program.send
                except fx.PeerLost as error:
                    resume, answer = program.throw, error
        finally:
            program.close()
            self.second.shutdown(wait=False, cancel_futures=True)

    def answer_effect(self, effect: fx.Effect[Any], turn: Turn) -> Any:
        """Answer an effect when the answer is due. Also returns that time."""
        if not self.pace.pad:
            self.task.device.synchronise()
            turn = turn._replace(at=self.pace.clock())
        self._effects[turn.thread] = effect
        self.num_asked += 1
        try:
            answered: Answered = self.handlers[type(effect)](self.state, effect, turn)
        finally:
            self._effects[turn.thread] = None
        return answered

    def gradient(self, state: RankState, effect: fx.Gradient, turn: Turn) -> Answered:
        """Computed, and held for the time of the node's model."""
        samples, at = effect.batch.samples, turn.at
        if turn.thread == MAIN:
            state.version = effect.version
        described = self.gradient_seconds(samples, at - self.began)
        gradient, loss = self.prepared.gradient(self.rank, effect.at, effect.batch)
        gradient = self.nonfinite.check(gradient, rank=self.rank, version=effect.version, batch=effect.batch)
        self.task.device.synchronise()
        end = self.pace.due("gradient", at, described)
        self.record[GRADIENT]((at - self.began, end - self.began, self.rank, GRADIENT, effect.version, samples, 0, 0))
        return fx.Computed(gradient, loss, samples, end - at), end

    def attempt(self, state: RankState, effect: fx.Attempt, turn: Turn) -> Answered:
        """As `gradient`, or None if it is given up. It is then an interval without samples.

        A real backward pass cannot be interrupted. With padding, a gradient's described time is known when it begins, so it is given up
        exactly at the described time. Without padding, the rank checks the mailbox and the clock after each micro-batch. An undivided
        gradient is computed to its end and then discarded.
        """
        at, state.version = turn.at, effect.version
        described = self.gradient_seconds(effect.batch.samples, at - self.began)
        computed: fx.Computed | None = None
        end = at
        if self.mailbox.due_before(at, wait=False) is None:
            computed, end = (self._attempt_padded if self.pace.pad else self._attempt_measured)(effect, at, described)
        if computed is not None:
            checked = self.nonfinite.check(computed.gradient, rank=self.rank, version=effect.version, batch=effect.batch)
            computed = replace(computed, gradient=checked)
        samples = 0 if computed is None else computed.samples
        if samples or end > at:
            self.record[GRADIENT]((at - self.began, end - self.began, self.rank, GRADIENT, effect.version, samples, 0, 0))
        return computed, end

    def _attempt_padded(self, effect: fx.Attempt, at: float, described: float) -> tuple[fx.Computed | None, float]:
        in_time = described <= effect.within
        due = at + min(described, effect.within)
        gradient, loss = in_passes(self.task, effect.at, effect.batch, self._micro_batch) if in_time else (None, 0.0)
        self.task.device.synchronise()
        ready = self.pace.clock()
        if (message_due := self.mailbox.due_before(due, wait=True)) is not None:
            return None, max(at, message_due)
        if not in_time:
            return None, due
        self.pace.record("gradient", ready - due)
        end = max(ready, due)
        return fx.Computed(gradient, loss, effect.batch.samples, end - at), end

    def _attempt_measured(self, effect: fx.Attempt, at: float, described: float) -> tuple[fx.Computed | None, float]:
        samples = effect.batch.samples
        total: Vector = None
        mean_loss = 0.0
        for batch in divide_batch(effect.batch, self._micro_batch):
            gradient, loss = self.task.gradient(effect.at, batch)
            self.task.device.synchronise()
            share = batch.samples / samples
            total = gradient if share == 1 else gradient * share if total is None else total + gradient * share
            mean_loss += loss * share
            now = self.pace.clock()
            if now - at > effect.within or self.mailbox.has_message(None):
                return None, now
        end = self.pace.due("gradient", at, described)
        return fx.Computed(total, mean_loss, samples, end - at), end

    @property
    def _micro_batch(self) -> int | None:
        """The maximum number of samples of an attempt that are computed at a time."""
        limits = [limit for limit in (self.parts.micro_batch, self.experiment.cluster.nodes[self.rank].micro_batch) if limit is not None]
        return min(limits, default=None)

    def update(self, state: RankState, effect: fx.Update, turn: Turn) -> Answered:
        """Computed, and held for seconds_per_update of the server or the node."""
        in_place = effect.in_place and not effect.tentative
        weights = state.update(self._in_place.main if in_place else self.prepared.optimizer_of(self.rank), effect)
        self.task.device.synchronise()
        return weights, self._end_of_update(self.update_seconds(effect, turn.at - self.began), turn.version, turn)

    def local_update(self, state: RankState, effect: fx.LocalUpdate, turn: Turn) -> Answered:
        """Computed if there is a local optimizer, and held for the node's seconds_per_local_update."""
        local = (self._in_place if effect.in_place else self.optimizers).local
        if local is None:
            return effect.at, turn.at
        if turn.thread == MAIN:
            state.version = effect.version
        weights = state.local_update(local, effect.at, effect.gradient, effect.epoch)
        self.task.device.synchronise()
        return weights, self._end_of_update(self.update_seconds(effect, turn.at - self.began), effect.version, turn)

    def _end_of_update(self, seconds: float, version: int, turn: Turn) -> float:
        end = self.pace.due("update", turn.at, seconds)
        self.record[UPDATE]((turn.at - self.began, end - self.began, self.rank, UPDATE, version, 0, 0, 0))
        return end

    def send(self, state: RankState, effect: fx.Send, turn: Turn) -> Answered:
        """Queued for the thread that sends to this peer. This thread also waits until the payload has come from the device."""
        self.mailbox.send(effect.to, effect.header, effect.payload, at=turn.at)
        return None, turn.at

    def receive(self, state: RankState, effect: fx.Receive, turn: Turn) -> Answered:
        """The message that is due first. Waits until it is due."""
        return self._take_message(self.mailbox.receive(effect.source), turn)

    def receive_within(self, state: RankState, effect: fx.ReceiveWithin, turn: Turn) -> Answered:
        """The same within a time limit. At its end, the answer is None."""
        until = turn.at + effect.seconds
        message = self.mailbox.receive(effect.source, until)
        return (None, until) if message is None else self._take_message(message, turn)

    def _take_message(self, message: Arrival, turn: Turn) -> Answered:
        start, end = message.sent_at - self.began, message.due_at - self.began
        version = message.header.get("version", 0)
        self.record[MESSAGE]((start, end, message.source, MESSAGE, version, 0, 0, nbytes(message.payload)))
        message.payload = self.task.device.place(message.payload)
        return message, max(turn.at, message.due_at)

    def all_reduce(self, state: RankState, effect: fx.AllReduce, turn: Turn) -> Answered:
        """Sent and summed, and held from the last entry on. A further scalar reduction determines that time."""
        self._num_collectives[turn.thread] += 1
        number = turn.number or state.enter_collective()
        value = scaled(effect.value, effect.factor, in_place=effect.in_place and self.task.gradients_are_new)
        in_place = effect.in_place or value is not effect.value
        total = (self.reduction.main if turn.thread == MAIN else self.reduction.second)(value, in_place=in_place)
        self.task.device.synchronise()
        last = turn.transport.maximum(turn.at) if self.pace.pad else turn.at
        size = nbytes(value)
        end = self._hold("all_reduce", ALL_REDUCE, turn, last, self.collectives.all_reduce_seconds(size, number, last - self.began), size)
        return value if isinstance(value, Phantom) else total, end

    def gradient_sum(self, state: RankState, effect: fx.GradientSum, turn: Turn) -> Answered:
        """As `gradient`, while a second thread sums each complete bucket. Held as described, from the times of all ranks' buckets."""
        self._num_collectives[turn.thread] += 1
        state.version = effect.version
        number, at, began = state.enter_collective(), turn.at, self.began
        batch, node = effect.batch, self.experiment.cluster.nodes[self.rank]
        buckets = self.prepared.buckets(effect.bucket_bytes)
        sums = BucketSums(self.second, self.reduction.bucket, self.task.device, self.pace.clock)
        if batch:
            described = self.gradient_seconds(batch.samples, at - began)
            total, loss = terms_in_passes(self.task, effect.at, batch, node.micro_batch, effect.factor(), buckets, sums.begin)
        else:
            total, loss = zeros_like(effect.at), 0.0
            for k, bucket in enumerate(buckets):
                sums.begin(k, piece(total, bucket.start, bucket.stop))
        self.task.device.synchronise()
        end = at
        if batch:
            end = self.pace.due("gradient", at, described)
            self.record[GRADIENT]((at - began, end - began, self.rank, GRADIENT, effect.version, batch.samples, 0, 0))
        intervals = sums.wait()
        total = self._finite_sum(effect, total)
        sizes = [(bucket.stop - bucket.start) * total.itemsize for bucket in buckets]
        over = self.pace.clock()
        if self.pace.pad:
            ready = [at + share_ready(node, batch.samples, bucket.ready) * (end - at) for bucket in buckets]
            ranks = turn.transport.gather_numbers(*ready)

            def seconds_of(size: int, bucket: Bucket) -> Callable[[float], float]:
                return lambda begin: self.collectives.all_reduce_seconds(size, (*number, bucket.start), begin - began)

            *_, ends = entered = list(zip(*ranks, strict=True))
            last_ready = partial(self.collectives.gradients_end, sizes[:-1], np.array(ends)) if self.collectives.slow_gradients else None
            planned = reduction_intervals([*map(max, entered)], [*map(seconds_of, sizes, buckets)], last_ready)
            begin, end_of_last = planned[-1]
            over = self._end_of_collective("all_reduce", begin, end_of_last - begin)
            intervals = [(since, until) for since, (_, until) in zip(ready, planned, strict=True)]
        for (since, until), size in zip(intervals, sizes, strict=True):
            self.record[ALL_REDUCE]((since - began, until - began, self.rank, ALL_REDUCE, turn.version, 0, 0, size))
        return fx.Computed(total, loss, batch.samples, end - at), over

    def _finite_sum(self, effect: fx.GradientSum, total: Vector) -> Vector:
        """The sum of all ranks' terms. If it is not finite, all ranks compute and sum again, without terms that are not finite."""
        if isinstance(total, Phantom) or is_finite(total):
            return total
        term = zeros_like(total)
        if effect.batch:
            gradient, _ = self.prepared.gradient(self.rank, effect.at, effect.batch)
            gradient = self.nonfinite.check(gradient, rank=self.rank, version=effect.version, batch=effect.batch)
            term = scaled(gradient, effect.factor)
        return self.reduction.main(term)

    def gather(self, state: RankState, effect: fx.Gather, turn: Turn) -> Answered:
        """Gathered, and held from the last entry on."""
        self._num_collectives[turn.thread] += 1
        number = turn.number or state.enter_collective()
        ranks = turn.transport.gather_numbers(effect.number, turn.at)
        last = max(entered for _, entered in ranks)
        end = self._hold("gather", GATHER, turn, last, self.collectives.gather_seconds(number, last - self.began), 8)
        by_rank = dict(zip(turn.transport.members, (number for number, _ in ranks), strict=True))
        return tuple(by_rank.get(rank, 0.0) for rank in range(self.experiment.num_ranks)), end

    def all_gather(self, state: RankState, effect: fx.AllGather[Any], turn: Turn) -> Answered:
        """Gathered through the CPU's memory, and held from the last entry on. A further scalar reduction determines that time."""
        self._num_collectives[turn.thread] += 1
        number = turn.number or state.enter_collective()
        device, members, size = self.task.device, turn.transport.members, nbytes(effect.value)
        mine = as_tensor(device.fetch(effect.value)).contiguous()
        everything = mine.new_empty(len(members) * len(mine))
        turn.transport.all_gather(everything, mine)
        last = turn.transport.maximum(turn.at) if self.pace.pad else turn.at
        values = dict.fromkeys(members, effect.value)
        if not isinstance(effect.value, Phantom):
            values = dict(zip(members, device.place(everything).view(len(members), -1), strict=True))
        combined = effect.combine(values)
        device.synchronise()
        end = self._hold("gather", GATHER, turn, last, self.collectives.gather_seconds(number, last - self.began, nbytes=size), size)
        return combined, end

    def _hold(self, kind: str, row_kind: int, turn: Turn, last: float, seconds: float, size: int) -> float:
        end = self._end_of_collective(kind, last, seconds)
        self.record[row_kind]((turn.at - self.began, end - self.began, self.rank, row_kind, turn.version, 0, 0, size))
        return end

    def _end_of_collective(self, kind: str, last: float, seconds: float) -> float:
        """Hold the answer of a collective until it is due."""
        return self.pace.due(kind, last, seconds)

    def start(self, state: RankState, effect: fx.Start[Any], turn: Turn) -> Answered:
        """Submitted to the second thread, which runs started effects one after another."""
        self.task.device.synchronise()  # the second thread's queue does not wait for this one's
        self._answers.clear()
        number = state.enter_collective() if isinstance(effect.effect, fx.AllReduce | fx.AllGather | fx.Gather) else None
        started = Turn(turn.at, self.transport.background, turn.version, SECOND, number)
        return StartedEffect(self.second.submit(self._answer_started, effect.effect, started)), turn.at

    def _answer_started(self, effect: fx.Effect[Any], turn: Turn) -> Answered:
        answered: Answered = self.answer_effect(effect, turn)
        self.task.device.synchronise()
        return answered

    def wait(self, state: RankState, effect: fx.Wait[Any], turn: Turn) -> Answered:
        """Waits until the second thread has the answer."""
        assert isinstance(effect.pending, StartedEffect)
        answer, end = effect.pending.future.result()
        self._answers.append(answer)
        return self.task.device.adopt(answer), max(turn.at, end)

    def done(self, state: RankState, effect: fx.Done, turn: Turn) -> Answered:
        """Whether the second thread has the answer, and it is due. A failed effect is done: `Wait` raises its error."""
        assert isinstance(effect.pending, StartedEffect)
        future = effect.pending.future
        return future.done() and (future.exception() is not None or future.result()[1] <= turn.at), turn.at

    def commit(self, state: RankState, effect: fx.Commit, turn: Turn) -> Answered:
        """The leader records and decides. If seconds are limited and there is no server, it broadcasts the decision."""
        self.last = committed = effect.state
        state.set_commit(effect.version, self.prepared.epoch(committed))
        state.num_gradients += sum(c.num_gradients for c in effect.applied if c.rank == self.rank)
        parts, saving = self.parts, self.parts.saving
        if parts.record.leads:
            going = parts.record.history.commit(turn.at - self.began, self.rank, committed, effect.applied)
        else:
            going = self.prepared.stop.others_continue(effect.version)
        going, due = saving.decide(effect.version, going, self.mailbox.states)
        if self._agrees and turn.transport.size > 1:
            self._num_collectives[turn.thread] += 1
            decided = int(turn.transport.broadcast(float(going + 2 * due + 4 * saving.stopped), parts.leader))
            going, due, saving.stopped = bool(decided & 1), bool(decided & 2), bool(decided & 4)
        at = turn.at
        if due:
            self._save(turn.at - self.began)
            at = self._end_of_checkpoint(turn.at)
        if parts.keep is not None:
            parts.keep(state.snapshot())
        return going, at

    def _save(self, seconds: float) -> None:
        self.parts.saving.save(seconds, self.transport, self.mailbox.states, leader=self.parts.leader)

    def _end_of_checkpoint(self, since: float) -> float:
        """Hold a described checkpoint until it is complete. Other checkpoints are not described: their cost makes later results late."""
        described = self.experiment.weight_checkpoints
        end = since if described is None else self.pace.due("checkpoint", since, described.seconds)
        self.parts.saving.complete()
        return end

    def now(self, state: RankState, effect: fx.Now, turn: Turn) -> Answered:
        """Seconds since the run began, on this host's clock."""
        return turn.at - self.began, turn.at

    @property
    def _agrees(self) -> bool:
        """Whether a commit waits for the leader's decision."""
        return self.prepared.stop.waits or self.parts.saving.agrees

    def waiting(self) -> Waiting | None:
        """The current wait of this rank; None if it may continue by itself."""
        sent, arrived = dict(self.mailbox.num_sent), dict(self.mailbox.num_arrived)
        thread, effect = MAIN, self._effects[MAIN]
        if isinstance(effect, fx.Wait):
            thread, effect = SECOND, self._effects[SECOND]
        if self.ended:
            return Waiting(self.num_asked, "has ended", ended=True, sent=sent, arrived=arrived)
        if isinstance(effect, fx.Receive):
            if self.mailbox.has_message(effect.source):
                return None
            sender = "anyone" if effect.source is None else f"rank {effect.source}"
            return Waiting(self.num_asked, f"waits for a message from {sender}", sent=sent, arrived=arrived)
        if isinstance(effect, fx.AllReduce | fx.AllGather | fx.GradientSum | fx.Gather) or (isinstance(effect, fx.Commit) and self._agrees):
            collective = f"{thread} {self._num_collectives[thread]} {type(effect).__name__}"
            return Waiting(self.num_asked, f"waits in a {type(effect).__name__}", collective=collective, sent=sent, arrived=arrived)
        return None


def described_times(
    prepared: Preparation, state: RankState
) -> tuple[Callable[[int, float], float], Callable[[fx.Update | fx.LocalUpdate, float], float]]:
    """The described seconds of the rank's gradients, by samples, and of its updates. Both also depend on the second of their start."""
    if state.rank < prepared.experiment.num_workers:
        times = prepared.step_times(state.rank, num_gradients=state.num_gradients)
        return times.seconds, lambda effect, start: times.update_seconds(start, local=isinstance(effect, fx.LocalUpdate))
    service = prepared.service_times(state)

    def no_gradient(*_: float) -> float:
        raise AssertionError(f"rank {state.rank} is a server, which computes no gradients")

    return no_gradient, lambda effect, _: service.update_seconds(effect.gradient, effect.operations)


class BucketSums:
    """Sums of buckets, begun in the same order on all ranks, in the computing thread or in the thread of its backward pass."""

    def __init__(self, second: Executor, bucket: AddUp, device: Device, clock: Callable[[], float]) -> None:
        self._second = second
        self._bucket = bucket
        self._device = device
        self._clock = clock
        self._begun: list[tuple[float, Future[float]]] = []

    def begin(self, k: int, numbers: Vector) -> None:
        """Bucket `k` is complete: begin to replace its entries by the sum over all ranks."""
        assert k == len(self._begun)
        self._begun.append((self._clock(), self._second.submit(self._reduce, self._bucket(numbers))))

    def wait(self) -> list[tuple[float, float]]:
        """Wait for all buckets. Returns when each was complete, and when its sum was. Raises PeerLost if a rank is lost."""
        return [(since, over.result()) for since, over in self._begun]

    def _reduce(self, reduce: Callable[[], None]) -> float:
        reduce()
        self._device.synchronise()
        return self._clock()
