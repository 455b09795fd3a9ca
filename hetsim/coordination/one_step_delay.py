"""One-step delay: the reduction of one gradient goes on while the next one is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.all_reduce import UNCOMPRESSED, Spent, SynchronousAllReduce, contributions
from hetsim.coordination.plan import Coordination, Plan, Split, State, Together
from hetsim.effects import (
    AllReduce,
    Batch,
    Commit,
    Contribution,
    Gather,
    Gradient,
    LocalUpdate,
    Message,
    Node,
    Pending,
    Program,
    Receive,
    Send,
    Start,
    Update,
    Wait,
)
from hetsim.policies.admission import Barrier
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount
from hetsim.vector import Vector, with_tail

AGAINST = ("previous", "used")


@dataclass(frozen=True, kw_only=True)
class OneStepDelay(Coordination):
    """OD-SGD, arXiv 2005.06728: a warm-up of synchronous SGD; then each worker goes on from w_i(t+1) = W(t) + u(g_i(t)).

    W(t) are the newest global weights it has, one step old; u is a step of its local optimizer. Without one, the next
    gradient is computed at W(t) itself: Pipe-SGD (NeurIPS 2018, arXiv 1811.03619). Globally it is synchronous:
    W(t+1) = W(t) − η (1/N) Σ g_i(t).
    A compensation corrects g_i in the local step only, for the way from W(t−1) to W(t) (`against` previous) as the
    authors' code does, or from the weights that g_i was computed at (`against` used).
    """

    takes_local_steps: ClassVar[bool] = True

    warm_up: int
    """Updates of synchronous SGD before the delay begins."""
    against: str = "previous"

    def __post_init__(self) -> None:
        checks.whole("coordination.warm_up", self.warm_up, least=0)
        checks.choice("coordination.against", self.against, AGAINST)
        together = "in a one-step delay everyone waits for everyone, one step later: leave this axis as the method sets it"
        self.only("admission", Barrier, together)
        self.only("discount", NoDiscount, together)
        if not self.compensation.corrects_locally:
            self.only("compensation", NoCompensation, "a worker cannot correct its own step by it: take dc, dc_adaptive or none")

    @property
    def needs_local_steps(self) -> str | None:
        corrects = not isinstance(self.compensation, NoCompensation)
        return f"{type(self.compensation).__name__} corrects a worker's own step" if corrects else None

    def remark(self, last: State) -> str | None:
        if last.version > self.warm_up:
            return None
        return f"all {last.version} updates were warm-up, so the delay never began: raise the budget, or lower coordination.warm_up"

    def step(
        self, plan: Plan, memory: object, *, g: Contribution, base: Vector, previous: Vector, at: Vector
    ) -> Program[tuple[object, Vector]]:
        """u: from `base`, along one's own gradient, computed at `at`; and the compensation's state after it."""
        used = previous if self.against == "previous" else at
        memory, gradient = self.compensation.correct(memory, replace(g, used=used), base)
        weights = yield from LocalUpdate(at=base, gradient=with_tail(gradient, g.gradient, plan.num_parameters))
        return memory, weights


@dataclass(frozen=True)
class Reducing:
    """A reduction under way: of whose gradients, with whose measurements if any, and what they cost."""

    gradient: Pending[Vector]
    seconds: Pending[tuple[float, ...]] | None
    spent: Spent
    batches: Split
    group: Together


@dataclass(frozen=True, kw_only=True)
class DelayedAllReduce(OneStepDelay, SynchronousAllReduce):
    """One-step delay without a server: every rank takes the global step too.

    An iteration takes the longer of gradient + global update + local update, and reduction.
    """

    same_on_every_rank: ClassVar[bool] = True

    def __post_init__(self) -> None:
        OneStepDelay.__post_init__(self)
        self.only("compression", NoCompression, UNCOMPRESSED)

    @property
    def num_ahead(self) -> int:
        return 2

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        state, spent, going = yield from self.synchronous(node, plan, state.rewound(), until=max(self.warm_up, state.version))
        if going:
            yield from self.delayed(node, plan, state, spent)

    def delayed(self, node: Node, plan: Plan, state: State, spent: Spent) -> Program[None]:
        """Have the last reduction, begin this one, step globally and locally, compute."""
        at = previous = state.weights
        version = state.version
        memory = self.compensation.initial(state.weights, 1)
        before: Reducing | None = None
        while True:
            batches = plan.split(state.next_sample, self.allocation.shares(state.allocation))
            computed = yield from self.compute(at, batches[node.rank])
            group = contributions(batches, version, computed, staleness=state.version + (before is not None) - version)
            spent = spent.and_on(batches, computed.seconds)
            gradient: Vector = None
            if before is not None:
                gradient = yield from Wait(before.gradient)
                state = yield from self.learned(plan, state, before)
            now: Reducing | None = None
            if batches.num_samples:
                seconds = None
                if self.allocation.asks(state.allocation, plan.epoch(state.num_samples + batches.num_samples)):
                    seconds = yield from Start(Gather(spent.seconds))
                term = self.term(computed.gradient, group, plan, node.rank)
                pending = yield from Start(AllReduce(term))
                now = Reducing(pending, seconds, spent, batches, group)
                spent = spent if seconds is None else Spent()
            if before is not None:
                weights = yield from Update(at=state.weights, gradient=gradient)
                previous = state.weights
                state = replace(state, version=state.version + 1, weights=weights, next_sample=batches.stop)
                state = replace(state, outstanding=() if now is None else batches)
                if not (yield from Commit(state.version, state, before.group)) or now is None:
                    if now is not None:  # nobody is left waiting in it
                        if now.seconds is not None:
                            yield from Wait(now.seconds)
                        yield from Wait(now.gradient)
                    return
            state = replace(state, next_sample=batches.stop)
            version = state.version
            if batches[node.rank]:
                own = Contribution(node.rank, batches[node.rank], version, computed.seconds, computed.loss, gradient=computed.gradient)
                memory, at = yield from self.step(plan, memory, g=own, base=state.weights, previous=previous, at=at)
            before = now

    def learned(self, plan: Plan, state: State, done: Reducing) -> Program[State]:
        """Count what was reduced, and let the allocation see what was gathered with it."""
        state = replace(state, num_samples=state.num_samples + done.batches.num_samples)
        timings: tuple[Contribution, ...] = ()
        if done.seconds is not None:
            everyones = yield from Wait(done.seconds)
            timings = done.spent.timings(state.version, everyones)
        epoch = plan.epoch(state.num_samples)
        return replace(state, allocation=self.allocation.observe(state.allocation, timings, epoch))


@dataclass(frozen=True, kw_only=True)
class DelayedParameterServer(OneStepDelay):
    """One-step delay around a server: push, post the pull, step locally, compute; have the pull before the next push.

    An iteration takes the longer of gradient + local update, and push + server + pull. With `pull_every` k a worker
    pulls after every k-th push only, and steps on from its own weights in between (SSD-SGD, arXiv 2012.05396), where there is
    nothing to compensate for.
    """

    needs_server: ClassVar[bool] = True

    pull_every: int = 1
    """k"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("coordination.pull_every", self.pull_every)

    @property
    def num_ahead(self) -> int:
        return 2 * self.pull_every + 1

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        return self.server(plan, state.rewound()) if node.rank == node.server else self.worker(node, plan, state)

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Synchronous until the server hands out ranges ahead; from then on one step of delay, and pushes compressed."""
        yield from Send(node.server)
        message = yield from Receive(node.server)
        while message.batch and message.rounds == 1:
            computed = yield from Gradient(at=message.payload, batch=message.batch)
            yield from Send(node.server, computed.gradient, version=message.version, seconds=computed.seconds, loss=computed.loss)
            message = yield from Receive(node.server)
        ranges = deque(own_ranges(plan, message))
        newest = at = message.payload
        memory = self.compensation.initial(state.weights, 1)
        packing = self.compression.initial(state.weights)
        pull: Pending[Message] | None = None
        for step in count(1):
            if not ranges:
                break
            computed = yield from Gradient(at=at, batch=ranges.popleft())
            base, version, before = at, message.version, at
            if pull is not None:
                message, pull = (yield from Wait(pull)), None
                if message.payload is None:  # the run is over
                    break
                ranges.extend(own_ranges(plan, message))
                before, newest = newest, message.payload
                base = newest
            packing, payload = self.compression.pack(packing, computed.gradient, plan.num_parameters)
            yield from Send(node.server, payload, version=version, seconds=computed.seconds, loss=computed.loss)
            if step % self.pull_every == 0:
                pull = yield from Start(Receive(node.server))
            own = Contribution(node.rank, Batch(0, computed.samples), version, computed.seconds, computed.loss, gradient=computed.gradient)
            memory, at = yield from self.step(plan, memory, g=own, base=base, previous=before, at=at)
        if pull is not None:
            yield from Wait(pull)

    def server(self, plan: Plan, state: State) -> Program[None]:
        """Average one gradient of each, step, commit; send the weights to those who pull, and ranges ahead of them."""
        for rank in plan.here:
            yield from Receive(rank)
        delayed_from = max(self.warm_up, state.version)
        dealt: deque[list[Batch]] = deque()
        asking = plan.here
        going = True
        while True:
            rounds = self.rounds(state.version, delayed_from) if going else 0
            if rounds or not going:
                first = len(dealt)
                for _ in range(rounds):
                    dealt.append(list(plan.split(state.next_sample, self.allocation.shares(state.allocation))))
                    state = replace(state, next_sample=dealt[-1][-1].stop)
                for rank in asking:
                    batch = dealt[first][rank] if rounds else Batch(state.next_sample, 0)
                    yield from Send(
                        rank,
                        state.weights if going else None,
                        version=state.version,
                        batch=batch,
                        rounds=rounds,
                        epoch=plan.epoch(state.num_samples),
                    )
            batches = dealt.popleft() if dealt else []
            asking = [rank for rank, batch in enumerate(batches) if batch]
            if not going or not asking:
                return
            state, applied = yield from self.collected(plan, state, batches, packed_from=delayed_from)
            state = replace(state, outstanding=tuple(batch for batches in dealt for batch in batches if batch))
            going = yield from Commit(state.version, state, applied)

    def rounds(self, version: int, delayed_from: int) -> int:
        """How many global batches to hand out with these weights: one, or those up to the next pull, and none between pulls."""
        if version < delayed_from:
            return 1
        since = version - delayed_from
        return self.pull_every + (since == 0) if since % self.pull_every == 0 else 0

    def collected(
        self, plan: Plan, state: State, batches: list[Batch], *, packed_from: int
    ) -> Program[tuple[State, tuple[Contribution, ...]]]:
        """One gradient of each, the step that they make, and what is learned from them; in the warm-up pushes are whole."""
        group = []
        for rank, batch in enumerate(batches):
            if batch:
                message = yield from Receive(rank)
                gradient = message.payload
                if message.version >= packed_from:
                    gradient = self.compression.unpack(gradient, state.weights, plan.num_parameters)
                late = state.version - message.version
                group.append(Contribution(rank, batch, message.version, message.seconds, message.loss, late, gradient))
        weights = yield from Update(at=state.weights, gradient=self.total(group, plan))
        num_samples = state.num_samples + sum(c.samples for c in group)
        allocation = self.allocation.observe(state.allocation, group, plan.epoch(num_samples))
        state = replace(state, version=state.version + 1, weights=weights, num_samples=num_samples, allocation=allocation)
        return state, tuple(group)


def own_ranges(plan: Plan, message: Message) -> Iterator[Batch]:
    """A worker's ranges in the global batches that a reply hands out: each one batch behind the last."""
    for round_ in range(message.rounds if message.batch else 0):
        batch = plan.left(message.batch.start + round_ * plan.batch_size, message.batch.samples)
        if not batch:
            return
        yield batch
