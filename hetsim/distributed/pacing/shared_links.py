"""Transfers in real time that share the described links max-min fairly, as the simulator's do.

A transfer becomes known some time after it began, when others may have begun or ended. So what flowed in the last `HORIZON` seconds
is computed again from the beginning of each transfer that becomes known late.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nextafter
from operator import attrgetter

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
    ends: float = inf
    weight: float = 1.0
    """Where it shares a link, its rate is in proportion to it."""


Queues = dict[Connection, deque[tuple[float, Transfer]]]
"""The transfers that have not ended at a moment, in the order of each connection, with the bytes that are left of each."""


@dataclass(eq=False, slots=True)
class Begun:
    """A transfer that begins at a moment, and what is under way then, with it. That of no connection is before all others."""

    moment: float
    connection: Connection | None
    transfer: Transfer
    queues: Queues


class SharedLinks:
    """All transfers over a cluster's described links. Moments are in seconds of the host's clock, and may be told out of order.

    The run began at the moment `began`, from which the changes of links are counted. The weights of transfers
    are the simulator's of this seed, in the order in which each connection's transfers are begun.
    """

    def __init__(self, cluster: Cluster, *, seed: int, began: float = 0.0) -> None:
        self.cluster = cluster
        self._began = began
        self._seed = seed
        self._weights: dict[tuple[int, int], SharingWeights] = {}
        self._links: dict[tuple[str, int | str], Link] = {}
        self._connections: dict[tuple[int, int], Connection] = {}
        self._begun = [Begun(-inf, None, Transfer(-inf, 0), {})]
        """Those of the last HORIZON seconds, and the one before, in the order of their moments."""
        self._projected = True

    def carries(self, sender: int, receiver: int) -> bool:
        """Whether a described link is on the way between these ranks."""
        return bool(self.cluster.path(sender, receiver).links)

    def begin(self, sender: int, receiver: int, transfer: Transfer) -> None:
        """This transfer has begun, after those that were begun between these ranks before."""
        if self.cluster.network.sharing_noise is not None:
            ends = sender, receiver
            if ends not in self._weights:
                self._weights[ends] = SharingWeights(self.cluster, *ends, seed=self._seed)
            transfer.weight = self._weights[ends].next()
        begun = self._begun
        moment = max(transfer.begins, begun[0].moment)
        place = bisect_right(begun, moment, key=attrgetter("moment"))
        begun.insert(place, Begun(moment, self._connection(sender, receiver), transfer, {}))
        for before, each in pairwise(begun[place - 1 :]):
            assert each.connection is not None
            each.queues = flowed(before, each.moment, self._began)
            each.queues.setdefault(each.connection, deque()).append((each.transfer.nbytes, each.transfer))
        while begun[1].moment < begun[-1].moment - HORIZON:
            begun.pop(0)
        self._projected = False

    def project(self) -> None:
        """Set when each transfer ends if no other begins."""
        if not self._projected:
            flowed(self._begun[-1], inf, self._began)
            self._projected = True

    def _connection(self, sender: int, receiver: int) -> Connection:
        if (sender, receiver) not in self._connections:
            self._connections[sender, receiver] = connection_of(self.cluster, sender, receiver, self._links)
        return self._connections[sender, receiver]


def flowed(begun: Begun, until: float, began: float = 0.0) -> Queues:
    """What is left at this moment of what was under way when a transfer began, if no other has begun since."""
    queues = {connection: deque(queue) for connection, queue in begun.queues.items() if queue}
    advance(queues, begun.moment, until, began)
    return queues


def changed(connections: Iterable[Connection], moment: float, began: float) -> float:
    """Set the rates of links that change to those of a moment. Returns until when they hold."""
    holds = inf
    for link in dict.fromkeys(link for connection in connections for link in connection.links):
        if link.slowdown is not None:
            factor, end = link.slowdown.at(moment - began)
            link.bytes_per_second, holds = link.described / factor, min(holds, began + end)
    return max(holds, nextafter(moment, inf))


def advance(queues: Queues, moment: float, until: float, began: float = 0.0) -> None:
    """Let the transfers in these queues flow from a moment on, and take out those that end, at `ends`."""
    while moment < until and any(queues.values()):
        heads = {connection: queue[0] for connection, queue in queues.items() if queue}
        for connection, (_, transfer) in heads.items():
            connection.weight = transfer.weight
        holds = changed(heads, moment, began)
        rates = fair_rates(list(heads))
        ends = {connection: moment + left / rates[connection] for connection, (left, _) in heads.items()}
        until_next = min([until, holds, *ends.values()])
        for connection, (left, transfer) in heads.items():
            queues[connection].popleft()
            if ends[connection] <= until_next:
                transfer.ends = until_next
            else:
                queues[connection].appendleft((left - rates[connection] * (until_next - moment), transfer))
        moment = until_next
