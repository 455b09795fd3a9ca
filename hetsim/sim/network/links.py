"""Links, routes over them, and the transfers under way on them."""

from __future__ import annotations

import math
from heapq import heapify
from typing import Any, Final

from hetsim.sim.clock import Callback

INF: Final = math.inf


class Link:
    """What carries so many bytes per second, among all the flows that cross it. Carries the flows of one `Flows` at a time.

    Either it is named by the groups in `groups`, or `alone` is the one flow on it, or it is idle: never two of these.
    """

    __slots__ = ("alone", "bytes_per_second", "groups", "left", "name", "open")

    def __init__(self, bytes_per_second: float, name: str = "") -> None:
        if not 0 < bytes_per_second < INF:
            raise ValueError(f"a link's bytes_per_second must be finite and above 0, not {bytes_per_second} ({name or 'unnamed'})")
        self.bytes_per_second = bytes_per_second
        self.name = name
        self.alone: Flow | None = None
        self.groups: dict[Group, None] = {}  # in the order in which they came
        self.left = 0.0  # while rates are filled: bytes per second that nobody has yet,
        self.open = 0  # and the flows without a rate

    def __repr__(self) -> str:
        return f"Link({self.bytes_per_second!r}, {self.name!r})"


class Route:
    """The way from a sender to a receiver: made once, and used by every flow between the two.

    `shared` are links that many flows use as a rule, `own` those that as a rule carry one flow at a time. That is a matter
    of speed alone: rates are the same wherever a link stands. `limit` is what one flow gets at most, in bytes per second.
    Without links and limit a flow takes no time.
    """

    __slots__ = ("cap", "flows", "group", "limit", "own", "shared")

    def __init__(self, shared: tuple[Link, ...] = (), own: tuple[Link, ...] = (), limit: float = INF) -> None:
        links = shared + own
        if len(set(links)) < len(links):
            raise ValueError(f"a route crosses each of its links once, not {[link.name for link in links]}")
        if not limit > 0:
            raise ValueError(f"a route's limit must be above 0 bytes per second, not {limit}")
        self.shared = shared
        self.own = own
        self.limit = limit
        self.cap = min([limit, *(link.bytes_per_second for link in own)])  # where its own links carry nothing else
        self.flows: object = None  # which used it last,
        self.group: Group  # and the group there of flows whose own links carry nothing else


NOWHERE: Final = Route()


class Flow:
    """A transfer under way: who is called when its last byte is there, and where it stands meanwhile."""

    __slots__ = ("answer", "callback", "group", "mark", "route", "serial")

    answer: Any
    group: Group | None  # None when it is over
    mark: float
    route: Route
    serial: int
    callback: Callback | None  # None when it was cancelled


class Group:
    """Flows that cross the same links under the same cap. Max-min fairness gives each of them the same rate.

    `given` bytes have gone to each until the moment `since`, from where on each gets `rate` bytes per second. `heap` holds
    (mark, serial, flow), and also flows that have left since: those whose `group` is another. `alarms` are the moments, falling,
    at which the clock will have a look: the last is not later than the end of the first flow, but for rounding.

    The flows that share no link are one group, too: each has its cap for all of its time, so their total counts *seconds*. There
    `given` and `since` stay 0, `cap` and `rate` 1, the total is the time, and a mark is the moment of the end, to the last bit.
    """

    __slots__ = ("alarms", "bytes_per_second", "cap", "given", "heap", "links", "num_flows", "rate", "since", "solitary")

    def __init__(self, links: tuple[Link, ...], cap: float) -> None:
        self.links = links
        self.cap = cap  # of each flow
        self.bytes_per_second = min((link.bytes_per_second for link in links), default=INF)  # of all flows
        self.heap: list[tuple[float, int, Flow]] = []
        self.alarms = [INF]
        self.num_flows = 0
        self.solitary = True  # no other group crosses its links
        self.given = 0.0
        self.rate = 1.0
        self.since = 0.0

    def settle(self, now: float) -> None:
        """Bring the books up to date: what was given at this rate until now is given."""
        if self.since != now:
            self.given += self.rate * (now - self.since)
            self.since = now

    def rebase(self) -> None:
        """Count from zero again; what is left to each flow stays."""
        heap = []
        for _, serial, flow in self.heap:
            if flow.group is self:
                flow.mark -= self.given
                heap.append((flow.mark, serial, flow))
        heapify(heap)
        self.heap = heap
        self.given = 0.0
