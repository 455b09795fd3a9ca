"""A server that stops workers in the middle of a gradient that would arrive too late."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.parameter_server import Holding, ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Attempt, Node, Program, Receive, Send


@dataclass(frozen=True, kw_only=True)
class StoppingServer(ParameterServer):
    """After each version, the workers that admission names give up their gradient and compute the same range at the new weights.

    Ringmaster ASGD (arXiv 2501.16168) and Rennala SGD (arXiv 2205.04461), as their authors run them. The message with the new
    weights stops a worker. The server ignores a gradient that was pushed before this message arrived, and the worker computes its range
    again. So every range is applied once. Only seconds are lost.
    """

    stops: ClassVar[bool] = True
    gives_up_gradients: ClassVar[bool] = True

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Compute at the newest weights from the server, and push each gradient that is not given up; repeat until a range is empty."""
        server = node.server
        pushes = node.own.get("compression") or Pushes(self.compression.initial(state.weights))
        packing = pushes.resumed(state.outstanding)
        yield from Send(server)
        message = yield from Receive(server)
        while message.batch:
            computed = yield from Attempt(message.payload, message.batch, message.version)
            if computed is not None:
                packing, payload = self.compression.pack(packing, computed.gradient, plan.num_parameters)
                if packing is not None:
                    node.own["compression"] = pushes = pushes.appended(message.batch, packing, num_outstanding=1)
                yield from Send(server, payload, version=message.version, seconds=computed.seconds, loss=computed.loss)
                del payload
            del computed
            message = yield from Receive(server)

    def workers_to_stop(self, state: State, holding: Mapping[int, Holding]) -> Collection[int]:
        """The workers whose weights are too old for the admission."""
        return frozenset(rank for rank, held in holding.items() if self.admission.gives_up(state.version - held.version))
