"""Data-parallel SGD with a server that holds the weights. The admission makes it asynchronous or synchronous."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim.coordination.base import Coordination
from hetsim.coordination.bookkeeping.outstanding import Holding as Holding
from hetsim.coordination.bookkeeping.outstanding import Outstanding as Outstanding
from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Commit, Contribution, Gradient, Message, Node, PeerLost, Program, Receive, Send, Update
from hetsim.policies.admission import Barrier, Decision, EveryGradient
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.quorum import Quorum
from hetsim.policies.weighting import NoDiscount, PerLocalStep, PerWorker
from hetsim.vector import Vector, with_tail


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Coordination):
    """Workers pull weights and a range of samples, and push a gradient; admission decides when the server applies it."""

    needs_server: ClassVar[bool] = True
    regroups: ClassVar[bool] = False
    pushes_differences: ClassVar[bool] = False
    """Whether a worker pushes a difference of weights, w_i − x_i, instead of a gradient."""
    stops: ClassVar[bool] = False
    """Whether the server can stop a worker in the middle of a gradient."""
    keeps_table: ClassVar[bool] = False
    """Whether a step follows a table of the workers' mean gradients, which the admission keeps."""

    def __post_init__(self) -> None:
        if self.compensation.corrects_differences != self.pushes_differences:
            corrected, pushed = ("gradients", "differences") if self.pushes_differences else ("differences", "gradients")
            why = f"it corrects {corrected}, and workers push {pushed}: leave this axis as the method sets it"
            self.only(why, compensation=NoCompensation)
        if isinstance(self.weighting, PerLocalStep) and not self.pushes_differences:
            raise ValueError("weighting is PerLocalStep, but workers push gradients, not changes of several local steps: take per_worker")
        if not self.admission.lets_gradients_be_late:
            why = f"admission is {type(self.admission).__name__}, which lets no gradient be late: take none, or another admission"
            self.only(why, discount=NoDiscount, compensation=NoCompensation)

        if self.admission.keeps_table != self.keeps_table or self.admission.stops != self.stops:
            needed = "table_server" if self.admission.keeps_table else "stopping_server" if self.admission.stops else "parameter_server"
            name = type(self).__name__
            raise ValueError(f"admission is {type(self.admission).__name__}, but coordination is {name}: take coordination={needed}")
        if isinstance(self.admission, Quorum):
            raise ValueError("admission is Quorum, whose grace window a parameter server does not keep: take coordination=decoupled_steps")
        if self.discount.applied_on_arrival:
            name = type(self.discount).__name__
            why = f"discount is {name}, which weights all workers alike only if each gradient is applied on arrival: take every_gradient"
            self.only(why, admission=EveryGradient)

    def check(self, num_workers: int) -> None:
        if self.compensation.requires_plain_sgd:
            name = type(self.compensation).__name__
            why = f"compensation is {name}, which assumes plain SGD along each gradient: take per_worker, none and single gradients"
            self.only(why, weighting=PerWorker, discount=NoDiscount)
            if self.admission.group_size(num_workers) > 1:
                raise ValueError(f"admission is {type(self.admission).__name__}, which makes a version of several gradients, but {why}")

    def relies_on_scale(self, num_workers: int) -> bool:
        unweighted = isinstance(self.weighting, PerWorker) and (isinstance(self.discount, NoDiscount) or self.discount.weighs_moments)
        return self.admission.group_size(num_workers) == 1 and not unweighted

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        return self.server(plan, state) if node.rank == node.server else self.worker(node, plan, state)

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Pull weights and a range, compute, push the gradient with its seconds and loss; repeat until a range is empty."""
        server = node.server
        pushes = node.own.get("compression") or Pushes(self.compression.initial(state.weights))
        packing = pushes.resumed(state.outstanding)
        yield from Send(server)
        message = yield from Receive(server)
        while message.batch.samples:
            computed = yield from Gradient(message.payload, message.batch, message.version)
            packing, payload = self.compression.pack(packing, computed.gradient, plan.num_parameters)
            if packing is not None:
                node.own["compression"] = pushes = pushes.appended(message.batch, packing, num_outstanding=1)
            yield from Send(server, payload, version=message.version, seconds=computed.seconds, loss=computed.loss)
            del computed, payload  # otherwise a thousand waiting workers keep a thousand gradients
            message = yield from Receive(server)

    def server(self, plan: Plan, state: State) -> Program[State | None]:
        """Handle each gradient as the admission decides, and assign ranges, until all active workers got an empty range.

        The server continues without a lost worker and assigns its range again. A worker that returns gets a range. A worker for which no
        range is left stays idle in two cases:

        - Others hold ranges, which may have to be assigned again.
        - Others have not asked for their first ranges. Until they do, the next epoch does not begin.
        """
        waiting: set[int] = set()
        idle: set[int] = set()
        active = set(plan.active_ranks)
        outstanding = Outstanding.of(plan, state, active)
        holding = outstanding.holding
        state = state.evolve(
            admission=self.admission.resumed(state.admission, plan.num_workers),
            outstanding=outstanding,
            next_sample=outstanding.next_sample,
        )
        for rank in plan.absent:
            state, _ = self.worker_left(state, rank)
        if isinstance(self.admission, Barrier):
            for rank in sorted(active):  # whoever asks first, so that the sums and residuals of a synchronous run are always the same
                if (batch := self.next_range(plan, state, outstanding, rank)).samples:
                    holding[rank] = Holding(batch, state.weights, state.version)
        going, ended = True, False
        while active or (going and not ended and outstanding.has_next(plan)):
            try:
                message = yield from Receive()
            except PeerLost as lost:
                if lost.rank is None:
                    raise
                for place in (active, waiting, idle):
                    place.discard(lost.rank)
                outstanding.lose(lost.rank)
                state, decision = self.worker_left(state, lost.rank)
            else:
                rank = message.source
                held = holding.get(rank)
                if self.stops and message.payload is not None and held is not None and message.version < held.version:
                    continue  # it had been stopped, but did not know it yet: it computes its range again
                waiting.add(rank)
                if message.payload is not None and held is not None and going:
                    del holding[rank]
                    admission, decision = self.admission.arrived(state.admission, self.contribution(message, held, plan, state))
                    if admission is not state.admission:
                        state = state.evolve(admission=admission)
                else:  # a worker that asks for its first range, or whose gradient is too late
                    if rank not in active:
                        active.add(rank)
                        state = state.evolve(admission=self.admission.worker_joined(state.admission, rank))
                    if message.payload is None:  # it crashed, and requeued before the loss was detected
                        outstanding.lose(rank)
                    holding.pop(rank, None)
                    decision = Decision(release=(rank,))
            decisions = [decision]
            for rank in outstanding.ready(idle) if idle else ():
                idle.discard(rank)
                waiting.add(rank)
                state = state.evolve(admission=self.admission.worker_joined(state.admission, rank))
                decisions.append(Decision(release=(rank,)))
            for decision in decisions:  # releasing a worker with nothing to take appends further decisions
                applied: Sequence[Contribution] = ()
                if decision.apply and going:
                    compensation, applied = self.correct_group(plan, state, decision.apply)
                    total = self.total(applied, plan)
                    weights = yield from Update(
                        state.weights, total, in_place=self.is_free(total, applied), operations=self.num_operations(applied)
                    )
                    num_samples = state.num_samples
                    for c in applied:
                        num_samples += c.batch.samples
                    state = state.evolve(
                        version=state.version + 1,
                        weights=weights,
                        compensation=compensation,
                        num_samples=num_samples,
                        next_sample=outstanding.next_sample,
                    )
                if decision.apply or decision.drop:
                    state = self.observe(plan, state, decision)
                if applied:
                    going = yield from Commit(state.version, state, applied)
                stopped = self.workers_to_stop(state, holding) if applied and going else ()
                released = sorted((*decision.release, *stopped)) if stopped else decision.release
                for rank in released if going else sorted(waiting):
                    if rank in stopped:
                        yield from self.assign_range(plan, state, rank, holding[rank].batch, holding)
                        continue
                    if rank not in waiting:  # lost while it was held back
                        continue
                    waiting.discard(rank)
                    if going and (batch := self.next_range(plan, state, outstanding, rank)).samples:
                        yield from self.assign_range(plan, state, rank, batch, holding)
                    else:
                        idle.add(rank)
                        state, following = self.worker_left(state, rank)
                        decisions.append(following)
            if idle and not (going and (outstanding or (active > idle and outstanding.has_next(plan)))):
                for rank in sorted(idle):
                    yield from Send(rank, version=state.version, batch=Batch(outstanding.next_sample, 0))
                active -= idle
                idle.clear()
                ended = True
        return state.evolve(outstanding=(), next_sample=outstanding.next_sample) if going else None

    def assign_range(self, plan: Plan, state: State, rank: int, batch: Batch, holding: dict[int, Holding]) -> Program[None]:
        """Send a worker the weights and its next range."""
        sent = self.compensation.outgoing(state.compensation, state.weights)
        if sent is not state.weights:
            sent = with_tail(sent, state.weights, plan.num_parameters)
        holding[rank] = Holding(batch, sent, state.version)
        yield from Send(rank, sent, version=state.version, batch=batch, **self.details(plan, state, rank))

    def workers_to_stop(self, state: State, holding: Mapping[int, Holding]) -> Collection[int]:
        """The workers that give up their gradient because a new version exists: none."""
        return ()

    def next_range(self, plan: Plan, state: State, outstanding: Outstanding, rank: int) -> Batch:
        """A worker's next range: its share of a global batch, or an empty range if no positions are left."""
        return outstanding.take(plan, rank, self.allocation.shares(state.allocation)[rank])

    def details(self, plan: Plan, state: State, rank: int) -> Mapping[str, Any]:
        """Further header values for a worker, besides the version and its range."""
        return {}

    def worker_left(self, state: State, rank: int) -> tuple[State, Decision]:
        """Report to admission that a worker will push no more gradients."""
        admission, decision = self.admission.worker_left(state.admission, rank)
        return state.evolve(admission=admission), decision

    def observe(self, plan: Plan, state: State, decision: Decision) -> State:
        """The state after the allocation has observed these contributions. Shares do not change while a barrier fills."""
        seen = decision.apply + decision.drop
        allocation = self.allocation.observe(state.allocation, seen, plan.epoch(state.num_samples))
        if allocation is state.allocation and not decision.drop:
            return state
        num_samples_discarded = state.num_samples_discarded + sum(c.samples for c in decision.drop)
        return state.evolve(allocation=allocation, num_samples_discarded=num_samples_discarded)

    def correct_group(self, plan: Plan, state: State, group: tuple[Contribution, ...]) -> tuple[Any, list[Contribution]]:
        """The compensation's next state, and the g_i of W ← W − η (1/c) Σ w_i d(τ_i) g_i, each corrected for its delay."""
        compensation, corrected = state.compensation, []
        for c in group:
            compensation, gradient = self.compensation.correct(compensation, c, state.weights)
            staleness = state.version - c.version
            if gradient is not c.gradient or staleness != c.staleness:
                c = replace(c, gradient=with_tail(gradient, c.gradient, plan.num_parameters), staleness=staleness)
            corrected.append(c)
        return compensation, corrected

    def num_operations(self, group: Sequence[Contribution]) -> int:
        """As in any coordination, with the corrections."""
        return super().num_operations(group) + len(group) * self.compensation.operations

    def is_free(self, total: Vector, group: Sequence[Contribution]) -> bool:
        """Whether nobody reads this sum of a group again: a single gradient may itself be the sum, and a policy may keep it."""
        if type(self).total is not Coordination.total:
            return False
        policies = (self.admission, self.compensation, self.allocation)
        keep = any(vars(type(policy)).get("keeps_gradients", True) for policy in policies)
        return not keep or all(total is not c.gradient for c in group)

    def contribution(self, message: Message, held: Holding, plan: Plan, state: State) -> Contribution:
        """The contribution of a push: a gradient for the range and weights that the worker held."""
        gradient = self.compression.unpack(message.payload, held.weights, plan.num_parameters)
        version, staleness = message.version, state.version - message.version
        return Contribution(message.source, held.batch, version, message.seconds, message.loss, staleness, gradient, held.weights)
