"""Asynchronous local SGD: each worker takes H local steps, pushes its change of the weights, and continues at the newest weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hetsim import checks
from hetsim.coordination.bookkeeping.outstanding import Holding, Outstanding, Pushes
from hetsim.coordination.local_steps import MAX_PERIOD
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution, Gradient, LocalUpdate, Message, Node, Program, Receive, Send
from hetsim.policies.admission import Decision
from hetsim.vector import with_tail


@dataclass(frozen=True, kw_only=True)
class AsyncLocalSteps(ParameterServer):
    """H local steps from w_i to x_i, then a push of Δ_i = w_i − x_i. The server steps along the Δ that its admission accepts.

    A server that buffers K pushes is FedBuff (arXiv 2106.06639). A server that mixes each x_i into W is FedAsync (arXiv 1903.03934). A
    worker takes the positions of all H steps at once, and never waits. With H = 1, plain local SGD of rate η and a global step of rate 1,
    the method is asynchronous SGD of rate η. A local optimizer keeps its memory between rounds, and loses it in a crash.
    """

    takes_local_steps: ClassVar[bool] = True
    trains_locally: ClassVar[bool] = True
    pushes_differences: ClassVar[bool] = True

    period: int
    """H"""

    def __post_init__(self) -> None:
        checks.whole("coordination.period", self.period, most=MAX_PERIOD)
        super().__post_init__()

    @property
    def needs_local_steps(self) -> str | None:
        return "between a pull and a push the workers take local steps"

    @property
    def num_ahead(self) -> int:
        return self.period

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Pull weights and a range, take a local step for each share of the range, push the change; repeat until a range is empty."""
        server = node.server
        pushes = node.own.get("compression") or Pushes(self.compression.initial(state.weights))
        packing = pushes.resumed(state.outstanding)
        yield from Send(server)
        message = yield from Receive(server)
        while message.batch:
            x = message.payload
            batches = cut(message.batch, message.share)
            seconds = loss = 0.0
            for batch in batches:
                computed = yield from Gradient(at=x, batch=batch, version=message.version)
                x = yield from LocalUpdate(at=x, gradient=computed.gradient, version=message.version, epoch=message.epoch, in_place=True)
                seconds += computed.seconds
                loss += computed.loss / len(batches)
            delta = with_tail(message.payload - x, x, plan.num_parameters)
            packing, payload = self.compression.pack(packing, delta, plan.num_parameters)
            if packing is not None:
                node.own["compression"] = pushes = pushes.appended(message.batch, packing, num_outstanding=1)
            yield from Send(server, payload, version=message.version, seconds=seconds, loss=loss, steps=len(batches))
            del computed, delta, payload, x
            message = yield from Receive(server)

    def next_range(self, plan: Plan, state: State, outstanding: Outstanding, rank: int) -> Batch:
        """The positions of the worker's next local steps. Each step takes the worker's share."""
        return outstanding.take(plan, rank, self.allocation.shares(state.allocation)[rank], self.num_steps(state, rank))

    def num_steps(self, state: State, rank: int) -> int:
        """The number of local steps that this worker takes next: H."""
        return self.period

    def details(self, plan: Plan, state: State, rank: int) -> Mapping[str, Any]:
        """The samples of a local step, and the epoch, which sets the local learning rate."""
        return {"share": self.allocation.shares(state.allocation)[rank], "epoch": plan.epoch(state.num_samples)}

    def contribution(self, message: Message, held: Holding, plan: Plan, state: State) -> Contribution:
        """The contribution of a push: Δ_i, and its number of local steps."""
        return replace(super().contribution(message, held, plan, state), num_gradients=message.steps)

    def observe(self, plan: Plan, state: State, decision: Decision) -> State:
        """The state after the allocation has observed a mean local step of each contribution."""
        steps = [
            replace(c, batch=replace(c.batch, samples=round(c.samples / c.num_gradients)), seconds=c.seconds / c.num_gradients)
            for c in decision.apply + decision.drop
        ]
        allocation = self.allocation.observe(state.allocation, steps, plan.epoch(state.num_samples))
        dropped = sum(c.samples for c in decision.drop)
        return state.evolve(allocation=allocation, num_samples_discarded=state.num_samples_discarded + dropped)

    def factors(self, group: Sequence[Contribution], plan: Plan) -> list[float]:
        """w_i d(τ_i) / c, where each w_i is computed for a mean local step."""
        steps = [replace(c, batch=Batch(0, -(-c.samples // c.num_gradients))) for c in group]
        return super().factors(steps, plan)

    def weights(self, group: Sequence[Contribution], plan: Plan) -> list[tuple[int, float]]:
        """The factor of each rank's change. A change counts once for each of its local steps."""
        return [(c.rank, factor * c.num_gradients) for c, factor in zip(group, self.factors(group, plan), strict=True)]


def cut(batch: Batch, share: int) -> list[Batch]:
    """Divide a range into pieces of `share` samples. The last piece may be shorter."""
    return [Batch(start, min(share, batch.stop - start), batch.pool) for start in range(batch.start, batch.stop, share)]
