"""Connections over a cluster's described links, and the rates at which they flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.cluster.changing_links import slowdown_of
from hetsim.cluster.fairness import max_min_fair
from hetsim.cluster.link_slowdown import LinkSlowdown
from hetsim.cluster.model import Cluster


@dataclass(eq=False, slots=True)
class Link:
    """A link of the cluster, for `max_min_fair`. If it has a slowdown, the caller sets the present rate."""

    bytes_per_second: float
    slowdown: LinkSlowdown | None = None
    described: float = 0.0
    left: float = 0.0
    open: float = 0.0
    waiting: int = 0
    groups: dict[Any, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Connection:
    """From one rank to another: it transfers one message after another, and its first one is a flow for `max_min_fair`."""

    links: tuple[Link, ...]
    bytes_per_second: float
    weight: float = 1.0

    @property
    def cap(self) -> float:
        """The most that it gets, per unit of weight."""
        return self.bytes_per_second / self.weight


def connection_of(cluster: Cluster, sender: int, receiver: int, links: dict[tuple[str, int | str], Link]) -> Connection:
    """The one from a rank to another, over these links; those that were not met before are added to them."""
    path = cluster.path(sender, receiver)
    for link in path.links:
        if link not in links:
            links[link] = Link(cluster.capacity(link), slowdown_of(cluster, link), cluster.capacity(link))
    crossed = tuple(links[link] for link in path.links)
    return Connection(crossed, path.bytes_per_second)


def described_rates(cluster: Cluster, ways: Sequence[tuple[int, int]]) -> list[float]:
    """The rates of transfers from a rank to another that flow at the same time, one on each of these ways, all of one weight.

    They share described links alone: what a network card carries is not known before it is measured.
    """
    cluster = replace(cluster, network=replace(cluster.network, sharing="none"))
    links: dict[tuple[str, int | str], Link] = {}
    connections = [connection_of(cluster, *way, links) for way in ways]
    rates = fair_rates(connections)
    return [rates[each] for each in connections]


def fair_rates(flowing: list[Connection]) -> dict[Connection, float]:
    """The max-min fair rates of what flows over these connections, in bytes per second."""
    links = dict.fromkeys(link for connection in flowing for link in connection.links)
    for link in links:
        link.groups = {}
    for connection in flowing:
        for link in connection.links:
            link.groups[connection] = None
    rates = max_min_fair(flowing, list(links)) if flowing else {}
    return {connection: rate * connection.weight for connection, rate in rates.items()}
