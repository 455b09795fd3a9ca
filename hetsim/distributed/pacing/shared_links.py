"""Transfers in real time that share the described links max-min fairly, as the simulator's do.

The server learns of a transfer some time after it began, when other transfers may have begun or ended. So nothing is final for the
last `HORIZON` seconds: they are computed again with every transfer that becomes known, from how much was left at their beginning.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any

from hetsim.cluster.compute_times import SharingWeights
from hetsim.cluster.connections import Connection, Link, connection_of, fair_rates
from hetsim.cluster.model import Cluster

HORIZON = 0.1
"""In seconds: no transfer becomes known later than this after its beginning, unless the machine is overloaded."""


@dataclass(eq=False, slots=True)
class Transfer:
    """A message on its way over links, and when its last byte leaves them as far as is known, in seconds of the host's clock."""

    begins: float
    nbytes: float
    about: Any = None
    """Whatever whoever begins it wants to know at its end."""
    ends: float = inf
    weight: float = 1.0
    """Where it shares a link, its rate is in proportion to it."""


Queues = dict[Connection, deque[tuple[float, Transfer]]]
"""The transfers that have not ended at a moment, in the order of each connection, with the bytes that are left of each."""


class SharedLinks:
    """All transfers over a cluster's described links. Moments are in seconds of the host's clock, and may be told out of order.

    Their weights are the simulator's of this seed, in the order in which each connection's transfers are begun.
    """

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        self.cluster = cluster
        self._seed = seed
        self._weights: dict[tuple[int, int], SharingWeights] = {}
        self._links: dict[tuple[str, int | str], Link] = {}
        self._connections: dict[tuple[int, int], Connection] = {}
        self._queues: Queues = {}
        self._moment = -inf
        self._under_way: list[Transfer] = []
        self._stale = False

    def carries(self, sender: int, receiver: int) -> bool:
        """Whether a described link is on the way between these ranks."""
        return bool(self.cluster.path(sender, receiver).links)

    def begin(self, sender: int, receiver: int, transfer: Transfer, *, now: float) -> None:
        """This transfer has begun, after those that were begun between these ranks before; it may change when the others end."""
        self._moment = advance(self._queues, self._moment, now - HORIZON)
        if self.cluster.network.sharing_noise is not None:
            ends = sender, receiver
            if ends not in self._weights:
                self._weights[ends] = SharingWeights(self.cluster, *ends, seed=self._seed)
            transfer.weight = self._weights[ends].next()
        self._queues.setdefault(self._connection(sender, receiver), deque()).append((transfer.nbytes, transfer))
        self._under_way.append(transfer)
        self._stale = True

    def next_end(self) -> float:
        """When the next transfer ends; infinite if there is none."""
        self._project()
        return min((transfer.ends for transfer in self._under_way), default=inf)

    def ended(self, now: float) -> list[Transfer]:
        """The transfers that have ended by now, and that no call has returned before, in the order of their ends."""
        self._project()
        ended = sorted((transfer for transfer in self._under_way if transfer.ends <= now), key=attrgetter("ends", "begins"))
        self._under_way = [transfer for transfer in self._under_way if transfer.ends > now]
        return ended

    def _project(self) -> None:
        """Say of each transfer when it ends if no other begins: once after several have begun."""
        if self._stale:
            advance({connection: copy.copy(queue) for connection, queue in self._queues.items()}, self._moment, inf)
            self._stale = False

    def _connection(self, sender: int, receiver: int) -> Connection:
        if (sender, receiver) not in self._connections:
            self._connections[sender, receiver] = connection_of(self.cluster, sender, receiver, self._links)
        return self._connections[sender, receiver]


def advance(queues: Queues, moment: float, until: float) -> float:
    """Let the transfers in these queues flow from a moment on, and take out those that end, at `ends`. Returns the new moment."""
    while moment < until and any(queues.values()):
        heads = {connection: queue[0] for connection, queue in queues.items() if queue}
        flowing = {connection: left for connection, (left, transfer) in heads.items() if transfer.begins <= moment}
        for connection in flowing:
            connection.weight = heads[connection][1].weight
        rates = fair_rates(list(flowing))
        ends = {connection: moment + left / rates[connection] for connection, left in flowing.items()}
        begin = (transfer.begins for connection, (_, transfer) in heads.items() if connection not in flowing)
        until_next = min([until, *ends.values(), *begin])
        for connection, left in flowing.items():
            _, transfer = queues[connection].popleft()
            if ends[connection] <= until_next:
                transfer.ends = until_next
            else:
                queues[connection].appendleft((left - rates[connection] * (until_next - moment), transfer))
        moment = until_next
    return max(moment, until) if until < inf else moment
