"""An all-reduce in a ring, transfer by transfer: what the closed form says where links are equal and idle, and what it cannot say."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim.sim.clock import Callback, Clock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Route


class Ring:
    """Node i sends 1/N of `nbytes` to node i+1 in each of 2(N−1) steps; `callback(None)` is called when everyone has everything.

    A node begins a step when its own chunk of the step before is out and its predecessor's is here. `routes[i]` leads from node i
    to its successor, and what left it arrives `latencies[i]` seconds later.
    """

    __slots__ = ("_chunk", "_flows", "_latencies", "_missing", "_num_begun", "_num_here", "_num_out", "_num_steps", "_routes", "_then")

    def __init__(self, flows: Flows, routes: Sequence[Route], latencies: Sequence[float], nbytes: float, callback: Callback) -> None:
        num_nodes = len(routes)
        self._flows = flows
        self._routes = routes
        self._latencies = latencies
        self._then = callback
        self._chunk = nbytes / num_nodes
        self._num_steps = 2 * (num_nodes - 1)
        self._num_begun = [0] * num_nodes
        self._num_out = [0] * num_nodes
        self._num_here = [0] * num_nodes
        self._missing = num_nodes * self._num_steps  # chunks that have not arrived

    def start(self) -> None:
        """Everyone begins. A ring of one has nothing to do."""
        if not self._num_steps:
            self._then(None)
        for node in range(len(self._routes)):
            self._go(node)

    def _go(self, node: int) -> None:
        begun = self._num_begun[node]
        if begun < self._num_steps and self._num_out[node] == begun <= self._num_here[node]:
            self._num_begun[node] = begun + 1
            self._flows.start(self._routes[node], self._chunk, self._out, node)

    def _out(self, node: int) -> None:
        self._num_out[node] += 1
        self._flows.env.after(self._latencies[node], self._here, (node + 1) % len(self._routes))
        self._go(node)

    def _here(self, node: int) -> None:
        self._num_here[node] += 1
        self._missing -= 1
        if self._missing:
            self._go(node)
        else:
            self._then(None)


def ring_seconds(routes: Sequence[Route], latencies: Sequence[float], nbytes: float) -> float:
    """How long a ring all-reduce of `nbytes` takes on links that carry nothing else, in seconds.

    Equal links and latencies give 2(N−1)(latency + nbytes/(N·bytes_per_second)).
    """
    env = Clock()
    ended: list[float] = []
    Ring(Flows(env), routes, latencies, nbytes, lambda _: ended.append(env.now)).start()
    env.play()
    return ended[0]
