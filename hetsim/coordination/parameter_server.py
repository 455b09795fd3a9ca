"""Data-parallel SGD around a server that holds the weights: asynchronous, or as its admission decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from hetsim.coordination.plan import Coordination, Plan, State
from hetsim.effects import Batch, Commit, Contribution, Gradient, Message, Node, PeerLost, Program, Receive, Send, Update
from hetsim.policies.admission import Decision
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.weighting import NoDiscount, PerWorker
from hetsim.vector import Vector, with_tail


@dataclass(slots=True)
class Holding:
    """What a worker took from the server: a range, and the weights to compute at."""

    batch: Batch
    used: Vector


class Outstanding(Collection[Batch]):
    """The ranges that were taken and not brought back, as they are now: first those to be handed out again, then whoever's."""

    def __init__(self, returned: deque[Batch], holding: dict[int, Holding]) -> None:
        self._returned = returned
        self._holding = holding

    def __iter__(self) -> Iterator[Batch]:
        yield from self._returned
        for held in self._holding.values():
            yield held.batch

    def __len__(self) -> int:
        return len(self._returned) + len(self._holding)

    def __contains__(self, batch: object) -> bool:
        return any(batch == mine for mine in self)


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Coordination):
    """Workers pull weights and a range of samples, and push a gradient; admission decides what the server does with it."""

    needs_server: ClassVar[bool] = True
    regroups: ClassVar[bool] = False

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
        packing, server = self.compression.initial(state.weights), node.server
        yield from Send(server)
        message = yield from Receive(server)
        while message.batch.samples:
            computed = yield from Gradient(at=message.payload, batch=message.batch)
            packing, payload = self.compression.pack(packing, computed.gradient, plan.num_parameters)
            yield from Send(server, payload, version=message.version, seconds=computed.seconds, loss=computed.loss)
            del computed, payload  # a thousand workers that wait would keep a thousand gradients
            message = yield from Receive(server)

    def server(self, plan: Plan, state: State) -> Program[State | None]:
        """Do with each gradient what admission says, and hand out ranges, until everyone who is there was sent home.

        It goes on without whom it loses, hands the range out again, and takes in who comes back. Who finds nothing to take
        is kept while others hold ranges, as these may come back.
        """
        holding: dict[int, Holding] = {}
        waiting: set[int] = set()
        idle: set[int] = set()
        here = set(plan.here)
        returned = deque(state.outstanding)
        outstanding = Outstanding(returned, holding)
        state = state.but(admission=self.admission.resumed(state.admission, plan.num_workers), outstanding=outstanding)
        for rank in plan.absent:
            state, _ = self.left(state, rank)
        going = True
        while here or (going and self.is_left(plan, state, returned)):
            try:
                message = yield from Receive()
            except PeerLost as lost:
                state, decision = self.lost(state, lost, (here, waiting, idle), holding, returned)
            else:
                rank = message.source
                waiting.add(rank)
                held = holding.pop(rank, None)
                if message.payload is not None and held is not None and going:
                    state, decision = self.arrived(state, self.contribution(message, held, plan, state))
                else:  # it is ready, or too late
                    if rank not in here:
                        here.add(rank)
                        state = state.but(admission=self.admission.joined(state.admission, rank))
                    if message.payload is None and held is not None:  # gone, and back before it was missed
                        returned.append(held.batch)
                    decision = Decision(free=(rank,))
            decisions = [decision]
            for rank in sorted(idle)[: len(returned)] if returned else ():
                idle.discard(rank)
                waiting.add(rank)
                state = state.but(admission=self.admission.joined(state.admission, rank))
                decisions.append(Decision(free=(rank,)))
            for decision in decisions:  # and those that it leads to
                applied: tuple[Contribution, ...] = ()
                if decision.apply and going:
                    state, applied = yield from self.apply(plan, state, decision.apply)
                if decision.apply or decision.drop:
                    state = self.observed(plan, state, decision)
                if applied:
                    going = yield from Commit(state.version, state, applied)
                for rank in decision.free if going else sorted(waiting):
                    if rank not in waiting:  # lost while it was held back
                        continue
                    waiting.discard(rank)
                    state, batch = self.take(plan, state, rank, returned) if going else (state, Batch(state.next_sample, 0))
                    if batch.samples:
                        sent = self.compensation.outgoing(state.compensation, state.weights)
                        sent = with_tail(sent, state.weights, plan.num_parameters)
                        holding[rank] = Holding(batch, sent)
                        yield from Send(rank, sent, version=state.version, batch=batch)
                    else:
                        idle.add(rank)
                        state, more = self.left(state, rank)
                        decisions.append(more)
            if idle and not (going and outstanding):
                for rank in sorted(idle):
                    yield from Send(rank, version=state.version, batch=Batch(state.next_sample, 0))
                here -= idle
                idle.clear()
        return state.but(outstanding=()) if going else None

    def is_left(self, plan: Plan, state: State, returned: deque[Batch]) -> bool:
        """Whether anything is to be handed out, if only somebody came."""
        return bool(returned or plan.left(state.next_sample, 1))

    def lost(
        self, state: State, lost: PeerLost, places: tuple[set[int], ...], holding: dict[int, Holding], returned: deque[Batch]
    ) -> tuple[State, Decision]:
        """Go on without a worker: it is in none of these places any more, and what it held is handed out again."""
        if lost.rank is None:
            raise lost
        for place in places:
            place.discard(lost.rank)
        if lost.rank in holding:
            returned.append(holding.pop(lost.rank).batch)
        return self.left(state, lost.rank)

    def take(self, plan: Plan, state: State, rank: int, returned: deque[Batch]) -> tuple[State, Batch]:
        """A worker's next range: one that was taken and never brought back, as far as it fits, or its share of what is left."""
        if returned:
            batch = returned.popleft()
            fits = batch.samples if plan.most is None else min(batch.samples, plan.most[rank])
            if fits < batch.samples:
                returned.appendleft(Batch(batch.start + fits, batch.samples - fits))
            return state, Batch(batch.start, fits)
        batch = plan.left(state.next_sample, self.allocation.shares(state.allocation)[rank])
        return state.but(next_sample=batch.stop), batch

    def left(self, state: State, rank: int) -> tuple[State, Decision]:
        """Tell admission that a worker will send no more."""
        admission, decision = self.admission.left(state.admission, rank)
        return state.but(admission=admission), decision

    def arrived(self, state: State, arrival: Contribution) -> tuple[State, Decision]:
        """Ask admission what to do with a gradient."""
        admission, decision = self.admission.arrived(state.admission, arrival)
        return (state if admission is state.admission else state.but(admission=admission)), decision

    def observed(self, plan: Plan, state: State, decision: Decision) -> State:
        """Learn the workers' speeds from what was decided on: shares do not change while a barrier fills."""
        seen = decision.apply + decision.drop
        allocation = self.allocation.observe(state.allocation, seen, plan.epoch(state.num_samples))
        if allocation is state.allocation and not decision.drop:
            return state
        num_samples_discarded = state.num_samples_discarded + sum(c.samples for c in decision.drop)
        return state.but(allocation=allocation, num_samples_discarded=num_samples_discarded)

    def apply(self, plan: Plan, state: State, group: tuple[Contribution, ...]) -> Program[tuple[State, tuple[Contribution, ...]]]:
        """W ← W − η (1/c) Σ w_i d(τ_i) g_i, each g_i corrected for its delay; the next version, and what made it."""
        compensation, num_samples, corrected = state.compensation, state.num_samples, []
        for c in group:
            num_samples += c.batch.samples
            compensation, gradient = self.compensation.correct(compensation, c, state.weights)
            staleness = state.version - c.version
            if gradient is not c.gradient or staleness != c.staleness:
                c = replace(c, gradient=with_tail(gradient, c.gradient, plan.num_parameters), staleness=staleness)
            corrected.append(c)
        weights = yield from Update(at=state.weights, gradient=self.total(corrected, plan))
        state = state.but(version=state.version + 1, weights=weights, compensation=compensation, num_samples=num_samples)
        return state, tuple(corrected)

    def contribution(self, message: Message, held: Holding, plan: Plan, state: State) -> Contribution:
        """What a worker brought back for what it held."""
        gradient = self.compression.unpack(message.payload, held.used, plan.num_parameters)
        version, staleness = message.version, state.version - message.version
        return Contribution(message.source, held.batch, version, message.seconds, message.loss, staleness, gradient, held.used)
