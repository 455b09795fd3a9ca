"""Asynchronous local SGD on two tiers of servers: a local server in each region, and a global server that merges the regions' progress."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.async_local_steps import AsyncLocalSteps
from hetsim.coordination.bookkeeping.outstanding import Holding, Outstanding
from hetsim.coordination.bookkeeping.regions import Regions
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Commit, Contribution, Message, Node, Now, PeerLost, Program, Receive, Send, Update
from hetsim.policies.admission import Decision, EveryGradient
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount, PerWorker
from hetsim.vector import Vector, with_tail

ASKS, PUSHED, RETURNS = range(3)
"""Messages from a local server to the global one: it needs ranges for a worker, a worker has pushed, a range will not be computed."""
RANGE, MORE, END = range(3)
"""Messages from the global server to a local one: a worker's next range (empty: none is left), new ranges are available, the end."""
MAX_AHEAD = 100
"""The maximum number of ranges that a local server holds in advance for each worker."""
MAX_GRADIENTS_AHEAD = 100_000


Range = tuple[Batch, int, int]
"""A range, the samples of a local step, and the epoch, which sets the local learning rate."""


@dataclass
class Reserve:
    """A local server's data about one of its workers."""

    ranges: deque[Range] = field(default_factory=deque)
    """The ranges that the worker may take next."""
    computes: Range | None = None
    requests: deque[float] = field(default_factory=deque)
    """The times of unanswered requests for ranges to the global server."""
    ahead: int = 1
    """The number of ranges to hold in advance."""
    seconds: float = math.inf
    """The seconds of the local steps before the worker's last push."""

    def provide(self, trip: float) -> None:
        """Hold as many ranges as the worker computes during a round trip to the global server."""
        if self.seconds < math.inf:
            during = trip / self.seconds if self.seconds else trip and math.inf
            self.ahead = max(self.ahead, 1 + math.floor(min(during, MAX_AHEAD - 1)))

    def take_back(self) -> None:
        """After a crash of the worker, put the range that it was computing before its other ranges."""
        if self.computes is not None:
            self.ranges.appendleft(self.computes)
            self.computes = None

    @property
    def is_empty(self) -> bool:
        """Whether the worker computes no range, has none to take, and waits for none."""
        return not (self.computes or self.ranges or self.requests)


@dataclass(frozen=True, kw_only=True)
class HierarchicalLocalSteps(AsyncLocalSteps):
    """Each region takes steps alone; a global server merges the regions' progress. HALoS, arXiv 2506.04531.

    In region r, at each push: L ← step(L, w_i − x_i). After K pushes the region sends U = R − L; then W ← step(W, U),
    L ← (1−α) L + αW, R ← L. Both tiers step by Delayed Nesterov.

    A worker communicates only with its local server, and never waits for U. A region has at most one U in transit. Pushes in the
    meantime change L, but never reach W: they count as discarded. With one region, no latency, K = α = 1 and plain steps of rate 1
    along U, the method is asynchronous local SGD.

    The global server assigns the ranges. For each of its workers, a local server holds as many ranges in advance as the worker computes
    during the longest round trip so far. In the first round trips workers may wait. A resumed run begins with L = R = W in every region.
    """

    has_local_servers: ClassVar[bool] = True
    aligns_epochs: ClassVar[bool] = False

    merge_every: int
    """K"""
    merge_weight: float
    """α"""
    steps: str = "by_speed"
    """`by_speed`: worker i takes H_i = max(1, ⌈H v_i / max v⌉) local steps (DyLU). `equal`: all take H."""
    num_regions: int | None = None
    """The number of regions of consecutive workers. None: each outermost rack of the cluster is a region."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("coordination.merge_every", self.merge_every)
        if not 0 < checks.number("coordination.merge_weight", self.merge_weight) <= 1:
            raise ValueError(f"coordination.merge_weight must be above 0 and at most 1, not {self.merge_weight}")
        checks.choice("coordination.steps", self.steps, ("by_speed", "equal"))
        if self.num_regions is not None:
            checks.whole("coordination.num_regions", self.num_regions)
        why = "a local server steps along each push as it is: leave this axis as the method sets it"
        self.only(
            why, admission=EveryGradient, weighting=PerWorker, discount=NoDiscount, compensation=NoCompensation, compression=NoCompression
        )

    @property
    def num_ahead(self) -> int:
        return min(MAX_GRADIENTS_AHEAD, self.period * (MAX_AHEAD + 2))

    def regions(self, racks: tuple[int, ...]) -> Regions:
        """The regions: the outermost rack of each worker, or `num_regions` regions of consecutive workers."""
        if self.num_regions is None:
            return Regions(racks)
        if max(racks):
            raise ValueError(
                f"coordination.num_regions={self.num_regions}, but the cluster has racks, and these are the regions: take "
                "coordination.num_regions=null"
            )
        if self.num_regions > len(racks):
            raise ValueError(f"coordination.num_regions={self.num_regions} is more than the cluster's {len(racks)} workers: lower it")
        return Regions.consecutive(len(racks), self.num_regions)

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        assert plan.regions is not None
        if node.rank < plan.num_workers:
            return self.worker(replace(node, local_server=plan.regions.server_of(node.rank)), plan, state)
        return self.global_server(node, plan, state) if node.rank == plan.num_workers else self.local_server(node, plan, state)

    def local_server(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Step along each push and answer it at once. After K pushes, send U; merge W when it arrives. Ends with the global server."""
        assert plan.regions is not None
        above, alpha, k = plan.num_workers, self.merge_weight, self.merge_every
        reserves = {rank: Reserve() for rank in plan.regions.members(node.rank)}
        active = set(reserves) - plan.absent
        weights = reference = state.weights  # L and R
        version, num_pushed, sent_at, trip = state.version, 0, 0.0, 0.0
        waiting: set[int] = set()
        dry = ended = False
        while active or not ended:
            try:
                message = yield from Receive()
            except PeerLost as lost:
                if lost.rank not in reserves:
                    raise
                active.discard(lost.rank)
                waiting.discard(lost.rank)
                changed = [lost.rank]
                reserves[lost.rank].take_back()
            else:
                rank, changed = message.source, [*reserves]
                if rank != above:
                    waiting.add(rank)
                    active.add(rank)
                    reserve, changed = reserves[rank], [rank]
                    if message.payload is None:  # its first message; if it computes, it crashed, and came back before that was detected
                        reserve.take_back()
                    elif reserve.computes and not ended:
                        batch, _, _ = reserve.computes
                        reserve.computes = None
                        reserve.seconds = message.seconds
                        reserve.provide(trip)
                        weights = yield from Update(weights, message.payload, in_place=True)
                        num_pushed += 1
                        yield from Send(
                            above, kind=PUSHED, rank=rank, batch=batch, version=message.version, seconds=message.seconds,
                            loss=message.loss, steps=message.steps, reaches=int(num_pushed <= k),
                        )  # fmt: skip
                        if num_pushed == k:
                            yield from Send(above, self.progress(reference, weights, plan), version=version)
                            sent_at = yield from Now()
                elif message.payload is not None:
                    weights = reference = (1 - alpha) * weights + alpha * message.payload
                    version, num_pushed = message.version, 0
                    trip = max(trip, (yield from Now()) - sent_at)
                    for reserve in reserves.values():
                        reserve.provide(trip)
                elif message.kind == RANGE:
                    reserve, changed = reserves[message.rank], [message.rank]
                    trip = max(trip, (yield from Now()) - reserve.requests.popleft())
                    if message.batch:
                        reserve.ranges.append((message.batch, message.share, message.epoch))
                    dry = not message.batch
                elif message.kind == MORE:
                    dry = False
                else:
                    ended = True
            if ended:
                for rank in sorted(waiting):
                    yield from Send(rank, version=version, batch=Batch(0, 0))
                active -= waiting
                waiting.clear()
                continue
            for rank in changed:
                reserve = reserves[rank]
                if rank in waiting and reserve.ranges:
                    waiting.discard(rank)
                    batch, share, epoch = reserve.computes = reserve.ranges.popleft()
                    yield from Send(rank, weights, version=version, batch=batch, share=share, epoch=epoch)
                if rank in active and not dry and len(reserve.requests) + len(reserve.ranges) < reserve.ahead:
                    now = yield from Now()
                    while len(reserve.requests) + len(reserve.ranges) < reserve.ahead:
                        reserve.requests.append(now)
                        yield from Send(above, kind=ASKS, rank=rank)
                if rank not in active and not reserve.requests:
                    while reserve.ranges:
                        yield from Send(above, kind=RETURNS, batch=reserve.ranges.popleft()[0])
            if 0 < num_pushed < k and (dry or not active) and all(reserve.is_empty for reserve in reserves.values()):
                num_pushed = k  # the last pushes: no more will come
                yield from Send(above, self.progress(reference, weights, plan), version=version)
                sent_at = yield from Now()

    def global_server(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        """Step along each U and send back W. Assign ranges until all of them are applied or discarded."""
        regions = plan.regions
        assert regions is not None
        outstanding = Outstanding.of(plan, state, range(plan.num_workers))
        state = state.evolve(outstanding=outstanding, next_sample=outstanding.next_sample)
        pushed: dict[int, list[Contribution]] = {server: [] for server in regions.servers}
        dry: set[int] = set()
        going = True
        while going and (outstanding or outstanding.has_next(plan)):
            message = yield from Receive()
            server = message.source
            if message.payload is not None:
                applied = [replace(c, staleness=state.version - c.version) for c in pushed[server]]
                pushed[server] = []
                weights = yield from Update(state.weights, message.payload, in_place=True)
                state = self.settle(state, outstanding, Decision(apply=tuple(applied)), plan)
                state = state.evolve(version=state.version + 1, weights=weights)
                going = yield from Commit(state.version, state, applied)
                if going:
                    yield from Send(server, state.weights, version=state.version)
            elif message.kind == ASKS:
                share, rank = self.allocation.shares(state.allocation)[message.rank], message.rank
                batch = outstanding.take(plan, rank, share, self.next_steps(node, rank))
                if batch:
                    outstanding.holding[batch.pool, batch.start] = Holding(batch, None, state.version)
                else:
                    dry.add(server)
                yield from Send(server, kind=RANGE, rank=rank, batch=batch, share=share, epoch=plan.epoch(state.num_samples))
            elif message.kind == PUSHED:
                contribution = self.reported_contribution(message, state)
                node.own["step_seconds"] = {**node.own.get("step_seconds", {}), message.rank: message.seconds / message.steps}
                if message.reaches:
                    pushed[server].append(contribution)
                else:
                    state = self.settle(state, outstanding, Decision(drop=(contribution,)), plan)
            else:
                outstanding.lose((message.batch.pool, message.batch.start))
                for server in sorted(dry):
                    yield from Send(server, kind=MORE)
                dry.clear()
        for server in regions.servers:
            yield from Send(server, kind=END)
        return state.evolve(outstanding=(), next_sample=outstanding.next_sample) if going else None

    def progress(self, reference: Vector, weights: Vector, plan: Plan) -> Vector:
        """U = R − L."""
        return with_tail(reference - weights, weights, plan.num_parameters)

    def next_steps(self, node: Node, rank: int) -> int:
        """H_i. With `by_speed`, it is proportional to the worker's last measured speed, and 1 before the first measurement."""
        if self.steps == "equal":
            return self.period
        seconds = node.own.get("step_seconds", {})
        if rank not in seconds:
            return 1
        share = min(seconds.values()) / seconds[rank] if seconds[rank] else 1.0
        return max(1, math.ceil(self.period * share - 1e-9))

    def reported_contribution(self, message: Message, state: State) -> Contribution:
        """The contribution of a push that its local server has reported."""
        return Contribution(
            message.rank, message.batch, message.version, message.seconds, message.loss, state.version - message.version,
            num_gradients=message.steps,
        )  # fmt: skip

    def settle(self, state: State, outstanding: Outstanding, decision: Decision, plan: Plan) -> State:
        """The state after these pushes have reached W or were dropped. Their ranges are not outstanding any more."""
        for c in decision.apply + decision.drop:
            del outstanding.holding[c.batch.pool, c.batch.start]
        num_samples = state.num_samples + sum(c.samples for c in decision.apply)
        state = state.evolve(num_samples=num_samples, next_sample=outstanding.next_sample)
        return self.observe(plan, state, decision)
