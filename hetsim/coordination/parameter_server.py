"""Data-parallel SGD around a server that holds the weights: asynchronous, or as its admission decides."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.coordination.plan import Coordination, Plan, State
from hetsim.effects import Batch, Commit, Contribution, Gradient, Message, Node, Program, Receive, Send, Update
from hetsim.policies.admission import Decision
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.weighting import NoDiscount, PerWorker
from hetsim.vector import Vector, with_tail


@dataclass(frozen=True, slots=True)
class Holding:
    """What a worker took from the server: a range, and the weights to compute at."""

    batch: Batch
    used: Vector


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Coordination):
    """Workers pull weights and a range of samples, and push a gradient; admission decides what the server does with it."""

    needs_server: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.admission.lets_gradients_be_late:
            why = f"admission is {type(self.admission).__name__}, which lets no gradient be late: take none, or another admission"
            self.only("discount", NoDiscount, why)
            self.only("compensation", NoCompensation, why)

    def check(self, num_workers: int) -> None:
        if self.compensation.reckons_with_momentum:
            name = type(self.compensation).__name__
            why = f"compensation is {name}, which reckons with the very steps that are taken: take per_worker, none and single gradients"
            self.only("weighting", PerWorker, why)
            self.only("discount", NoDiscount, why)
            if self.admission.group_size(num_workers) > 1:
                raise ValueError(f"admission is {type(self.admission).__name__}, which makes a version of several, but {why}")

    def relies_on_scale(self, num_workers: int) -> bool:
        unweighted = isinstance(self.weighting, PerWorker) and isinstance(self.discount, NoDiscount)
        return self.admission.group_size(num_workers) == 1 and not unweighted

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        return self.server(plan, state) if node.rank == node.server else self.worker(node, plan, state)

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Ask for work, compute where the server's weights are, send back what it cost."""
        packing = self.compression.initial(state.weights)
        yield from Send(node.server)
        message = yield from Receive(node.server)
        while message.batch:
            computed = yield from Gradient(at=message.payload, batch=message.batch)
            packing, payload = self.compression.pack(packing, computed.gradient, plan.num_parameters)
            yield from Send(node.server, payload, version=message.version, seconds=computed.seconds, loss=computed.loss)
            message = yield from Receive(node.server)

    def server(self, plan: Plan, state: State) -> Program[State | None]:
        """Do with each gradient what admission says, and hand out ranges, until every worker was told to stop."""
        holding: dict[int, Holding] = {}
        waiting: set[int] = set()
        state = replace(state, admission=self.admission.resumed(state.admission, plan.num_workers))
        returned = deque(state.outstanding)
        num_stopped = 0
        going = True
        while num_stopped < plan.num_workers:
            message = yield from Receive()
            waiting.add(message.source)
            held = holding.pop(message.source, None)
            if held is None or not going:  # it is ready, or too late
                decision = Decision(free=(message.source,))
            else:
                state, decision = self.arrived(state, self.contribution(message, held, plan, state))
            decisions = deque([decision])
            while decisions:
                decision = decisions.popleft()
                if decision.apply and going:
                    state, applied = yield from self.apply(plan, state, decision.apply)
                state = self.observed(plan, state, decision)
                if decision.apply and going:
                    state = replace(state, outstanding=(*returned, *(held.batch for held in holding.values())))
                    going = yield from Commit(state.version, state, applied)
                for rank in decision.free if going else sorted(waiting):
                    waiting.discard(rank)
                    state, batch = self.take(plan, state, rank, returned) if going else (state, Batch(state.next_sample, 0))
                    if batch:
                        sent = self.compensation.outgoing(state.compensation, state.weights)
                        holding[rank] = Holding(batch, with_tail(sent, state.weights, plan.num_parameters))
                        yield from Send(rank, holding[rank].used, version=state.version, batch=batch)
                    else:
                        yield from Send(rank, version=state.version, batch=batch)
                        num_stopped += 1
                        state, more = self.left(state, rank)
                        decisions.append(more)
        return replace(state, outstanding=()) if going else None

    def take(self, plan: Plan, state: State, rank: int, returned: deque[Batch]) -> tuple[State, Batch]:
        """A worker's next range: one that was taken and never brought back, or its share of what is left."""
        if returned:
            return state, returned.popleft()
        batch = plan.left(state.next_sample, self.allocation.shares(state.allocation)[rank])
        return replace(state, next_sample=batch.stop), batch

    def left(self, state: State, rank: int) -> tuple[State, Decision]:
        """Tell admission that a worker will send no more."""
        admission, decision = self.admission.left(state.admission, rank)
        return replace(state, admission=admission), decision

    def arrived(self, state: State, arrival: Contribution) -> tuple[State, Decision]:
        """Ask admission what to do with a gradient."""
        admission, decision = self.admission.arrived(state.admission, arrival)
        return replace(state, admission=admission), decision

    def observed(self, plan: Plan, state: State, decision: Decision) -> State:
        """Learn the workers' speeds from what was decided on: shares do not change while a barrier fills."""
        if not decision.apply and not decision.drop:
            return state
        seen = (*decision.apply, *decision.drop)
        return replace(
            state,
            allocation=self.allocation.observe(state.allocation, seen, plan.epoch(state.num_samples)),
            num_samples_discarded=state.num_samples_discarded + sum(c.samples for c in decision.drop),
        )

    def apply(self, plan: Plan, state: State, group: tuple[Contribution, ...]) -> Program[tuple[State, tuple[Contribution, ...]]]:
        """W ← W − η (1/c) Σ w_i d(τ_i) g_i, each g_i corrected for its delay; the next version, and what made it."""
        compensation, corrected = state.compensation, []
        for c in group:
            compensation, gradient = self.compensation.correct(compensation, c, state.weights)
            gradient = with_tail(gradient, c.gradient, plan.num_parameters)
            corrected.append(replace(c, gradient=gradient, staleness=state.version - c.version))
        weights = yield from Update(at=state.weights, gradient=self.total(corrected, plan))
        state = replace(
            state,
            version=state.version + 1,
            weights=weights,
            compensation=compensation,
            num_samples=state.num_samples + sum(c.samples for c in group),
        )
        return state, tuple(corrected)

    def contribution(self, message: Message, held: Holding, plan: Plan, state: State) -> Contribution:
        """What a worker brought back for what it held."""
        return Contribution(
            rank=message.source,
            batch=held.batch,
            version=message.version,
            seconds=message.seconds,
            loss=message.loss,
            staleness=state.version - message.version,
            gradient=self.compression.unpack(message.payload, held.used, plan.num_parameters),
            used=held.used,
        )
