"""Links, routes over links, and flows, which are transfers over routes."""

from __future__ import annotations

import math
from heapq import heapify
from typing import Any, Final

from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.sim.clock import Callback

INF: Final = math.inf


class Link:
    """A link with a rate in bytes per second, which all flows that cross it share. It belongs to one `Flows` at a time.

    A link is in one of three states: groups in `groups` name it, or `alone` is the only flow on it, or it is idle. With a `slowdown` its
    rate is `described` / factor, and `Flows` changes `bytes_per_second` while flows cross it.
    """

    __slots__ = ("alone", "bytes_per_second", "described", "groups", "most", "name", "open", "slowdown", "unassigned", "waiting", "watched")

    def __init__(self, bytes_per_second: float, name: str = "", slowdown: LinkSlowdown | None = None) -> None:
        if not 0 < bytes_per_second < INF:
            raise ValueError(f"a link's bytes_per_second must be finite and above 0, not {bytes_per_second} ({name or 'unnamed'})")
        self.bytes_per_second = bytes_per_second
        self.name = name
        self.slowdown = slowdown
        self.described = bytes_per_second
        self.most = bytes_per_second if slowdown is None else bytes_per_second / slowdown.least
        self.watched = False  # whether its next change is scheduled
        self.alone: Flow | None = None
        self.groups: dict[Group, None] = {}  # in the order of their first flows
        self.unassigned = 0.0  # during progressive filling: bytes per second that are not assigned yet,
        self.open = 0.0  # the weight of the flows without a rate,
        self.waiting = 0  # and the number of their groups

    def __repr__(self) -> str:
        return f"Link({self.bytes_per_second!r}, {self.name!r})"


class Route:
    """The links from a sender to a receiver: made once, and used by every flow between the two.

    `shared` are links that usually carry many flows, `own` links that usually carry one flow at a time. The distinction only
    affects the speed of the simulation: rates are the same for either. `limit` is the maximum rate of one flow in bytes per
    second. Without links and limit a flow takes no time. Links that change are `shared`.
    """

    __slots__ = ("cap", "changing", "flows", "group", "limit", "own", "shared")

    def __init__(self, shared: tuple[Link, ...] = (), own: tuple[Link, ...] = (), limit: float = INF) -> None:
        links = shared + own
        if len(set(links)) < len(links):
            raise ValueError(f"a route crosses each of its links once, not {[link.name for link in links]}")
        if not limit > 0:
            raise ValueError(f"a route's limit must be above 0 bytes per second, not {limit}")
        self.changing = tuple(link for link in links if link.slowdown is not None)
        self.shared = shared + tuple(link for link in own if link.slowdown is not None)
        self.own = own = tuple(link for link in own if link.slowdown is None)
        self.limit = limit
        self.cap = min([limit, *(link.bytes_per_second for link in own)])  # if its own links carry no other flow
        self.flows: object = None  # the `Flows` that used it last,
        self.group: Group  # and the group there of flows whose own links carry no other flow


EMPTY_ROUTE: Final = Route()


class Flow:
    """A transfer: its route, the callback for its end, and its group and mark until then."""

    __slots__ = ("answer", "callback", "group", "mark", "route", "serial", "weight")

    answer: Any
    group: Group | None  # None when it is over
    mark: float
    route: Route
    serial: int
    callback: Callback | None  # None when it was cancelled
    weight: float


class Group:
    """Flows that cross the same links under the same cap. Max-min fairness gives each of them the same rate, per unit of weight.

    Each flow has got `given` bytes until the moment `since`, and `rate` bytes per second from then on, times its weight; the cap, too, is
    per unit of weight. `passing` groups are dropped with their last flow, because another flow is unlikely to have the same cap. `heap` has
    (mark, serial, flow), also of flows that have left: those whose `group` is not this one. `alarms` are the moments of the
    scheduled alarms, in descending order: the last is no later than the end of the first flow, except for rounding.

    The flows that share no link are one group, too: each has its cap for all of its time, so their total counts *seconds*. In that
    group `given` and `since` stay 0, `cap` and `rate` 1, the total is the time, and a mark is exactly the moment of the end.
    """

    __slots__ = (
        "alarms",
        "bytes_per_second",
        "cap",
        "given",
        "heap",
        "links",
        "num_flows",
        "passing",
        "rate",
        "since",
        "solitary",
        "weight",
    )

    def __init__(self, links: tuple[Link, ...], cap: float, *, passing: bool = False) -> None:
        self.links = links
        self.cap = cap
        self.passing = passing
        self.bytes_per_second = min((link.bytes_per_second for link in links), default=INF)  # of all flows
        self.heap: list[tuple[float, int, Flow]] = []
        self.alarms = [INF]
        self.num_flows = 0
        self.weight = 0.0
        self.solitary = True  # no other group crosses its links
        self.given = 0.0
        self.rate = 1.0
        self.since = 0.0

    def settle(self, now: float) -> None:
        """Bring `given` and `since` up to this time, at the current rate."""
        if self.since != now:
            self.given += self.rate * (now - self.since)
            self.since = now

    def rebase(self) -> None:
        """Set the total to 0 and rebuild the heap; the remaining bytes of each flow stay the same."""
        heap = []
        for _, serial, flow in self.heap:
            if flow.group is self:
                flow.mark -= self.given
                heap.append((flow.mark, serial, flow))
        heapify(heap)
        self.heap = heap
        self.given = 0.0
