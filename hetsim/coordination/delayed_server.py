"""One-step delay around a server: push and pull overlap with the next gradient."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.delayed_base import OneStepDelay
from hetsim.coordination.plan import Plan, cursors
from hetsim.coordination.state import State
from hetsim.effects import Batch, Commit, Contribution, Gradient, Message, Node, Pending, Program, Receive, Send, Start, Update, Wait

MAX_PULL_EVERY = 100_000
"""The maximum number of pushes between two pulls of a worker, and so of its gradients in transit."""


@dataclass(frozen=True, kw_only=True)
class DelayedParameterServer(OneStepDelay):
    """One-step delay around a server: push, post the pull, step locally, compute, wait for the pull, push.

    An iteration takes the maximum of gradient + local update, and push + server + pull. With `pull_every` k a worker pulls
    only after every k-th push (SSD-SGD, arXiv 2012.05396). Between pulls, it continues from its local weights, and
    nothing has to be compensated.
    """

    needs_server: ClassVar[bool] = True
    aligns_epochs: ClassVar[bool] = False

    pull_every: int = 1
    """k"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("coordination.pull_every", self.pull_every, most=MAX_PULL_EVERY)

    @property
    def num_ahead(self) -> int:
        return 2 * self.pull_every + 1

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        return self.server(plan, state.rewound()) if node.rank == node.server else self.worker(node, plan, state)

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Train synchronously until the server assigns several ranges at once, then with a delay of one step and compressed pushes."""
        yield from Send(node.server)
        message = yield from Receive(node.server)
        while message.batch and message.rounds == 1:
            computed = yield from Gradient(at=message.payload, batch=message.batch, version=message.version)
            yield from Send(node.server, computed.gradient, version=message.version, seconds=computed.seconds, loss=computed.loss)
            message = yield from Receive(node.server)
        ranges = deque(assigned_ranges(plan, message))
        newest = at = message.payload
        memory = self.compensation.initial(state.weights, 1)
        pushes = node.own.get("compression") or Pushes(self.compression.initial(state.weights))
        packing = pushes.resumed(state.outstanding)
        pull: Pending[Message] | None = None
        for step in count(1):
            if not ranges:
                break
            batch = ranges.popleft()
            computed = yield from Gradient(at=at, batch=batch, version=message.version)
            base, version, at_previous = at, message.version, at
            if pull is not None:
                message, pull = (yield from Wait(pull)), None
                if message.payload is None:  # the run is over
                    break
                ranges.extend(assigned_ranges(plan, message))
                at_previous, newest = newest, message.payload
                base = newest
            packing, payload = self.compression.pack(packing, computed.gradient, plan.num_parameters)
            node.own["compression"] = pushes = pushes.appended(batch, packing, num_outstanding=self.num_ahead)
            yield from Send(node.server, payload, version=version, seconds=computed.seconds, loss=computed.loss)
            if step % self.pull_every == 0:
                pull = yield from Start(Receive(node.server))
            c = Contribution(node.rank, Batch(0, computed.samples), version, computed.seconds, computed.loss, gradient=computed.gradient)
            memory, at = yield from self.step(
                plan, memory, g=c, base=base, previous=at_previous, at=at, version=message.version, epoch=message.epoch
            )
        if pull is not None:
            yield from Wait(pull)

    def server(self, plan: Plan, state: State) -> Program[None]:
        """Average one gradient of each worker, step, commit. Send weights to workers that pull, and their ranges up to the next pull."""
        for rank in plan.active_ranks:
            yield from Receive(rank)
        delayed_from = max(self.warm_up, state.version)
        assigned: deque[list[Batch]] = deque()
        asking = plan.active_ranks
        going = True
        while True:
            rounds = self.rounds(state.version, delayed_from) if going else 0
            if rounds or not going:
                first = len(assigned)
                for _ in range(rounds):
                    split = plan.split(state.next_sample, self.allocation.shares(state.allocation))
                    assigned.append(list(split))
                    state = replace(state, next_sample=split.stop)
                for rank in asking:
                    batch = assigned[first][rank] if rounds else Batch(state.next_sample, 0)
                    yield from Send(
                        rank,
                        state.weights if going else None,
                        version=state.version,
                        batch=batch,
                        rounds=rounds,
                        epoch=plan.epoch(state.num_samples),
                        **cursor_of(plan, state, rank),
                    )
            batches = assigned.popleft() if assigned else []
            asking = [rank for rank, batch in enumerate(batches) if batch]
            if not going or not asking:
                return
            state, applied = yield from self.collect_gradients(plan, state, batches, packed_from=delayed_from)
            state = replace(state, outstanding=tuple(batch for batches in assigned for batch in batches if batch))
            going = yield from Commit(state.version, state, applied)

    def rounds(self, version: int, delayed_from: int) -> int:
        """The number of global batches to assign with this version: one in the warm-up, then as many as up to the next pull, or none."""
        if version < delayed_from:
            return 1
        since = version - delayed_from
        return self.pull_every + (since == 0) if since % self.pull_every == 0 else 0

    def collect_gradients(
        self, plan: Plan, state: State, batches: list[Batch], *, packed_from: int
    ) -> Program[tuple[State, tuple[Contribution, ...]]]:
        """The state after one gradient of each worker, and the gradients. Pushes of versions from `packed_from` on are compressed."""
        group = []
        for rank, batch in enumerate(batches):
            if batch:
                message = yield from Receive(rank)
                gradient = message.payload
                if message.version >= packed_from:
                    gradient = self.compression.unpack(gradient, state.weights, plan.num_parameters)
                staleness = state.version - message.version
                group.append(Contribution(rank, batch, message.version, message.seconds, message.loss, staleness, gradient))
        weights = yield from Update(at=state.weights, gradient=self.total(group, plan), operations=self.num_operations(group))
        num_samples = state.num_samples + sum(c.samples for c in group)
        allocation = self.allocation.observe(state.allocation, group, plan.epoch(num_samples))
        state = replace(state, version=state.version + 1, weights=weights, num_samples=num_samples, allocation=allocation)
        return state, tuple(group)


def assigned_ranges(plan: Plan, message: Message) -> Iterator[Batch]:
    """A worker's ranges in the global batches of a reply. Each global batch begins where the previous one ends.

    If the worker has its own pool, its ranges are consecutive and end at the cursor in the reply.
    """
    first: Batch = message.batch
    for round_ in range(message.rounds if first else 0):
        if plan.pools is None:
            batch = plan.clip(first.start + round_ * plan.batch_size, first.samples)
        else:
            start = first.start + round_ * first.samples
            batch = Batch(start, max(0, min(first.samples, message.cursor - start)), first.pool)
        if not batch:
            return
        yield batch


def cursor_of(plan: Plan, state: State, rank: int) -> dict[str, int]:
    """An additional header of a reply if data belong to workers: the cursor of the worker's pool after its ranges."""
    return {} if plan.pools is None else {"cursor": cursors(state.next_sample).of[rank]}
