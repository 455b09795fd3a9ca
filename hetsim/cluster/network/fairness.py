"""Max-min fair rates by progressive filling: D. Bertsekas and R. Gallager, *Data Networks*, 2nd ed. (1992), section 6.5.2.

A flow of weight w counts as w flows. If one link limits several flows, their rates are proportional to their weights.
"""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import Any, Protocol, TypeVar


class SharedLink(Protocol):
    """A link that `groups` of flows cross. `max_min_fair` writes the other attributes.

    `unassigned` is the capacity not assigned yet. `open` is the total weight of the flows without a rate. `waiting` is the number of their
    groups.
    """

    bytes_per_second: float
    unassigned: float
    open: float
    waiting: int

    @property
    def groups(self) -> dict[Any, None]:
        """The groups of flows that cross the link."""


class FlowGroup(Protocol):
    """Flows that cross the same links, with their total weight and the cap of each flow."""

    weight: float

    @property
    def cap(self) -> float:
        """The maximum rate of a flow, in bytes per second and unit of weight."""

    @property
    def links(self) -> tuple[Any, ...]:
        """The links that the flows cross."""


G = TypeVar("G", bound=FlowGroup)
L = TypeVar("L", bound=SharedLink)


def connected_groups(group: G) -> tuple[list[G], list[Any]]:
    """The groups whose rates depend on this group's rate, including this group, and all links that they cross."""
    groups, links = {group: None}, dict.fromkeys(group.links)
    fresh = list(links)
    while fresh:
        for neighbour in fresh.pop().groups:
            if neighbour not in groups:
                groups[neighbour] = None
                for link in neighbour.links:
                    if link not in links:
                        links[link] = None
                        fresh.append(link)
    return list(groups), list(links)


def max_min_fair(groups: list[G], links: list[L]) -> dict[G, float]:
    """Each group's rate, in bytes per second and unit of weight, by progressive filling.

    The rates of all flows rise together. When a flow reaches its cap or a link is full, the limited flows keep
    their rates. The rates of the other flows rise further.
    """
    for link in links:
        link.unassigned = link.bytes_per_second
        link.open = 0.0
        link.waiting = 0
    for group in groups:
        for link in group.links:
            link.open += group.weight
            link.waiting += 1
    rates: dict[G, float] = {}
    by_cap = sorted(groups, key=attrgetter("cap"), reverse=True)
    while len(rates) < len(groups):
        level: float = inf
        full: Any = None  # unless all that are left stop at their caps
        for link in links:
            if link.waiting and link.unassigned < level * link.open:
                level, full = link.unassigned / link.open, link
        stopped = []
        while by_cap and by_cap[-1].cap <= level:
            stopped.append(by_cap.pop())
        for group in stopped or full.groups:
            if group not in rates:
                rates[group] = rate = min(group.cap, level)
                for link in group.links:
                    link.unassigned -= rate * group.weight
                    link.open -= group.weight
                    link.waiting -= 1
    return rates
