"""Drive one program in real time: what each effect does on this process, and how long it is held."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from hetsim import effects as fx
from hetsim.cluster.collectives import Collectives
from hetsim.cluster.compute_times import ServiceTimes, StepTimes
from hetsim.coordination.state import State
from hetsim.dist.messages import Mailbox, peers_may_leave, wire
from hetsim.dist.pace import Pace, clock
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.history import History
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import ALL_REDUCE, GATHER, GRADIENT, MESSAGE, UPDATE, Trace
from hetsim.vector import Phantom, Vector, nbytes
from hetsim.workloads.task import Task


class Started(fx.Pending[Any]):
    """An effect that a second thread performs."""

    __slots__ = ("future",)

    def __init__(self, future: Future[Any]) -> None:
        self.future = future


class ProcessWorld:
    """One rank of a run. After `run`, `busy`, `trace` and `pace` hold what it did; times are since `began`."""

    def __init__(
        self, experiment: Experiment, task: Task, optimizers: Optimizers, *, rank: int, state: State, trace: Trace, pace: Pace,
        history: History | None, mailbox: Mailbox | None, background: Any, began: float,
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self.cluster = experiment.cluster
        self.task = task
        self.optimizers = optimizers
        self.rank = rank
        self.trace = trace
        self.pace = pace
        self.history = history
        self.mailbox = mailbox
        self.background = background
        self.began = began
        self.busy = RankActivity(num_ahead=experiment.coordination.num_ahead)
        self.times = StepTimes(self.cluster.nodes[rank], seed=experiment.seed, rank=rank) if rank < experiment.num_workers else None
        self.service = ServiceTimes(self.cluster, seed=experiment.seed)
        self.service.skip(state.version)
        self.collectives = Collectives(self.cluster)
        if self.times is not None and state.num_gradients:
            self.times.skip(state.num_gradients[rank])
        self.memory = optimizers.main.initial() if state.optimizer is None else state.optimizer
        self.local_memory = None if optimizers.local is None else optimizers.local.initial()
        self.version = state.version
        self.epoch = state.num_samples // task.num_samples
        self._second = ThreadPoolExecutor(max_workers=1)
        self.handlers: dict[type, Callable[..., Any]] = {
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

    def run(self, program: fx.Program[Any]) -> Any:
        """Play the program to its end, which is its result; an error of the world is thrown into it."""
        at = self.began
        give: Callable[[Any], fx.Effect[Any]] = program.send
        answer: Any = None
        while True:
            try:
                effect = give(answer)
            except StopIteration as ended:
                return ended.value
            try:
                answer, at = self.perform(effect, at, None)
                give = program.send
            except fx.PeerLost as error:
                give, answer = program.throw, error

    def perform(self, effect: fx.Effect[Any], at: float, group: Any) -> tuple[Any, float]:
        """The answer to what is asked `at` this moment, once its time has come, and the moment that it is then.

        Collectives go through `group`, so that two threads do not mix theirs.
        """
        handler = self.handlers.get(type(effect))
        assert handler is not None, f"rank {self.rank} yields {effect!r}, which is no effect: is a 'yield from' forgotten?"
        if not self.pace.pad:
            at = clock()
        answer: tuple[Any, float] = handler(effect, at, group)
        return answer

    def gradient(self, effect: fx.Gradient, at: float, group: Any) -> tuple[fx.Computed, float]:
        """Really computed; held until its described time."""
        assert self.times is not None
        samples = effect.batch.samples
        described = self.times.seconds(samples, at - self.began)
        gradient, loss = self.task.gradient(effect.at, effect.batch)
        end = self.pace.due("gradient", at, described)
        self.busy.gradient(at - self.began, end - self.began, samples)
        if self.trace.full:
            self.trace.add(at - self.began, end - self.began, self.rank, GRADIENT, self.version, samples)
        return fx.Computed(gradient, loss, samples, end - at), end

    def update(self, effect: fx.Update, at: float, group: Any) -> tuple[Vector, float]:
        """Really stepped; held for seconds_per_update."""
        self.memory, weights = self.optimizers.main.step(self.memory, effect.at, effect.gradient, self.epoch)
        return weights, self._updated(at, effect)

    def local_update(self, effect: fx.LocalUpdate, at: float, group: Any) -> tuple[Vector, float]:
        """Really stepped, if there is a local optimizer; held for seconds_per_update."""
        if self.optimizers.local is None:
            return effect.at, at
        self.local_memory, weights = self.optimizers.local.step(self.local_memory, effect.at, effect.gradient, self.epoch)
        return weights, self._updated(at, effect)

    def _updated(self, at: float, effect: fx.Update | fx.LocalUpdate) -> float:
        times = self.times
        seconds = self.service.update_seconds(effect.gradient) if times is None else times.update_seconds(at - self.began)
        end = self.pace.due("update", at, seconds)
        self.busy.update(at - self.began, end - self.began)
        if self.trace.full:
            self.trace.add(at - self.began, end - self.began, self.rank, UPDATE, self.version)
        return end

    def send(self, effect: fx.Send, at: float, group: Any) -> tuple[None, float]:
        """Handed to the thread that sends to this peer."""
        assert self.mailbox is not None
        self.mailbox.send(effect.to, effect.header, effect.payload, at=at)
        return None, at

    def receive(self, effect: fx.Receive, at: float, group: Any) -> tuple[fx.Message, float]:
        """The message due first, not before it is due."""
        assert self.mailbox is not None
        message = self.mailbox.receive(effect.source)
        if self.times is not None:  # a server's version is its last commit's
            self.version = message.header.get("version", self.version)
            self.epoch = message.header.get("epoch", self.epoch)
        if self.trace.full:
            start, end = message.sent_at - self.began, message.due_at - self.began
            self.trace.add(start, end, message.source, MESSAGE, message.header.get("version", 0), 0, 0, nbytes(message.payload))
        return message, max(at, message.due_at)

    def all_reduce(self, effect: fx.AllReduce, at: float, group: Any) -> tuple[Vector, float]:
        """Really sent and added up, in rank order; held since the last entry, which one scalar reduction more finds out."""
        value = effect.value
        total = self._summed(value, group)
        size = nbytes(value)
        described = self.collectives.all_reduce_seconds(size)
        return total, self._held("all_reduce", ALL_REDUCE, at, self._last(at, group), described, size)

    def gather(self, effect: fx.Gather, at: float, group: Any) -> tuple[tuple[float, ...], float]:
        """Really gathered; held since the last entry."""
        mine = torch.tensor([effect.number, at], dtype=torch.float64)
        everyones = [torch.empty_like(mine) for _ in range(self.experiment.num_workers)]
        with peers_may_leave():
            dist.all_gather(everyones, mine, group=group)
        last = max(float(one[1]) for one in everyones)
        end = self._held("gather", GATHER, at, last, self.collectives.gather_seconds(), 8)
        return tuple(float(one[0]) for one in everyones), end

    def start(self, effect: fx.Start[Any], at: float, group: Any) -> tuple[Started, float]:
        """A second thread performs what is started, one after another."""
        return Started(self._second.submit(self.perform, effect.effect, at, self.background)), at

    def wait(self, effect: fx.Wait[Any], at: float, group: Any) -> tuple[Any, float]:
        """Until that thread has the answer."""
        assert isinstance(effect.pending, Started)
        answer, end = effect.pending.future.result()
        return answer, max(at, end)

    def commit(self, effect: fx.Commit, at: float, group: Any) -> tuple[bool, float]:
        """The leader records and judges; where seconds are limited and there is no server, it tells the others."""
        state: State = effect.state
        self.version = effect.version
        self.epoch = state.num_samples // self.task.num_samples
        budget = self.experiment.budget
        if self.history is not None:
            going = self.history.commit(at - self.began, state, effect.applied, self.memory)
        else:
            going = budget.allows(effect.version, 0.0)
        if budget.seconds is not None and not self.experiment.coordination.needs_server:
            verdict = torch.tensor([going], dtype=torch.uint8)
            with peers_may_leave():
                dist.broadcast(verdict, self.experiment.leader, group=group)
            going = bool(verdict.item())
        return going, at

    def now(self, effect: fx.Now, at: float, group: Any) -> tuple[float, float]:
        """Seconds since the run began, on this host's clock."""
        return at - self.began, at

    def _summed(self, value: Vector, group: Any) -> Vector:
        """Σ in rank order, so that it is the simulator's to the last bit: everyone adds up one part, and all gather the parts.

        As many bytes as a ring all-reduce, 2(N−1)/N of the vector a rank; a phantom sends as many bytes of nothing.
        """
        num_workers = self.experiment.num_workers
        flat = wire(value)
        size = -(-len(flat) // num_workers)
        mine = torch.nn.functional.pad(flat, (0, size * num_workers - len(flat)))
        parts = torch.empty_like(mine)
        with peers_may_leave():
            dist.all_to_all_single(parts, mine, group=group)
        first, *others = parts.view(num_workers, size)
        total = torch.empty_like(mine)
        with peers_may_leave():
            dist.all_gather_into_tensor(total, sum(others, start=first), group=group)
        return value if isinstance(value, Phantom) else total[: len(flat)]

    def _last(self, entered: float, group: Any) -> float:
        """When the last rank entered; nobody asks where nothing is held."""
        if not self.pace.pad:
            return entered
        last = torch.tensor([entered], dtype=torch.float64)
        with peers_may_leave():
            dist.all_reduce(last, op=dist.ReduceOp.MAX, group=group)
        return float(last.item())

    def _held(self, kind: str, row: int, entered: float, last: float, seconds: float, size: int) -> float:
        end = self.pace.due(kind, last, seconds)
        if self.trace.full:
            self.trace.add(entered - self.began, end - self.began, self.rank, row, self.version, 0, 0, size)
        return end
