"""A ring all-reduce, transfer by transfer: equal to the closed form for equal, idle links, and exact for others."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim.sim.clock import Callback, VirtualClock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Route


class Ring:
    """Node i sends 1/N of `nbytes` to node i+1 in each of 2(N−1) steps; `callback(None)` is called when all have all chunks.

    A node starts a step when it has sent its chunk of the step before and received that of its predecessor. `routes[i]` leads from
    node i to its successor; a chunk arrives `latencies[i]` seconds after it was transferred and, if there are jitters, `jitters[step][i]`
    seconds later, but not before the chunk before it.
    """

    __slots__ = (
        *("_arrivals", "_callback", "_chunk", "_flows", "_jitters", "_latencies", "_missing", "_num_received", "_num_sent", "_num_started"),
        *("_num_steps", "_routes"),
    )

    def __init__(
        self, flows: Flows, routes: Sequence[Route], latencies: Sequence[float], nbytes: float, callback: Callback,
        jitters: Sequence[Sequence[float]] | None = None,
    ) -> None:  # fmt: skip
        num_nodes = len(routes)
        self._flows = flows
        self._routes = routes
        self._latencies = latencies
        self._callback = callback
        self._jitters = jitters
        self._arrivals = [0.0] * num_nodes
        self._chunk = nbytes / num_nodes
        self._num_steps = 2 * (num_nodes - 1)
        self._num_started = [0] * num_nodes
        self._num_sent = [0] * num_nodes
        self._num_received = [0] * num_nodes
        self._missing = num_nodes * self._num_steps  # chunks that have not arrived

    def start(self) -> None:
        """Start the first step on all nodes. A ring of one node ends at once."""
        if not self._num_steps:
            self._callback(None)
        for node in range(len(self._routes)):
            self._start_step(node)

    def _start_step(self, node: int) -> None:
        num_started = self._num_started[node]
        if num_started < self._num_steps and self._num_sent[node] == num_started <= self._num_received[node]:
            self._num_started[node] = num_started + 1
            self._flows.start(self._routes[node], self._chunk, self._sent, node)

    def _sent(self, node: int) -> None:
        arrival = self._flows.env.now + self._latencies[node]
        if self._jitters is not None:
            arrival = max(arrival + self._jitters[self._num_sent[node]][node], self._arrivals[node])
        self._arrivals[node] = arrival
        self._num_sent[node] += 1
        self._flows.env.at(arrival, self._received, (node + 1) % len(self._routes))
        self._start_step(node)

    def _received(self, node: int) -> None:
        self._num_received[node] += 1
        self._missing -= 1
        if self._missing:
            self._start_step(node)
        else:
            self._callback(None)


def ring_seconds(
    routes: Sequence[Route], latencies: Sequence[float], nbytes: float, jitters: Sequence[Sequence[float]] | None = None
) -> float:
    """How long a ring all-reduce of `nbytes` takes on links that carry nothing else, in seconds.

    Equal links and latencies give 2(N−1)(latency + nbytes/(N·bytes_per_second)).
    """
    env = VirtualClock()
    ended: list[float] = []
    Ring(Flows(env), routes, latencies, nbytes, lambda _: ended.append(env.now), jitters).start()
    env.run_all()
    return ended[0]
