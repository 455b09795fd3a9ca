"""Connections over a cluster's described links, and the rates of their transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.cluster.model import Cluster
from hetsim.cluster.network.changing import slowdown_of
from hetsim.cluster.network.fairness import max_min_fair
from hetsim.cluster.network.link_slowdown import LinkSlowdown


@dataclass(eq=False, slots=True)
class ClusterLink:
    """A link of the cluster, for `max_min_fair`. If it has a slowdown, the caller sets the present rate."""

    bytes_per_second: float
    slowdown: LinkSlowdown | None = None
    described: float = 0.0
    unassigned: float = 0.0
    open: float = 0.0
    waiting: int = 0
    groups: dict[Any, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Connection:
    """A connection from one rank to another. It transfers its messages one by one. The first message is a flow for `max_min_fair`."""

    links: tuple[ClusterLink, ...]
    bytes_per_second: float
    weight: float = 1.0

    @property
    def cap(self) -> float:
        """The connection's maximum rate, per unit of weight."""
        return self.bytes_per_second / self.weight


def connection_of(cluster: Cluster, sender: int, receiver: int, links: dict[tuple[str, int | str], ClusterLink]) -> Connection:
    """The connection between two ranks over these links. Links that are not in `links` yet are added."""
    path = cluster.path(sender, receiver)
    for link in path.links:
        if link not in links:
            links[link] = ClusterLink(cluster.capacity(link), slowdown_of(cluster, link), cluster.capacity(link))
    crossed = tuple(links[link] for link in path.links)
    return Connection(crossed, path.bytes_per_second)


def described_rates(cluster: Cluster, ways: Sequence[tuple[int, int]]) -> list[float]:
    """The rates of simultaneous transfers of equal weight, one on each of these ways (sender, receiver).

    They share only described links, because the bandwidth of a network card is unknown before it is measured.
    """
    cluster = replace(cluster, network=replace(cluster.network, sharing="none"))
    links: dict[tuple[str, int | str], ClusterLink] = {}
    connections = [connection_of(cluster, *way, links) for way in ways]
    rates = fair_rates(connections)
    return [rates[connection] for connection in connections]


def fair_rates(flowing: list[Connection]) -> dict[Connection, float]:
    """The max-min fair rates of the transfers on these connections, in bytes per second."""
    links = dict.fromkeys(link for connection in flowing for link in connection.links)
    for link in links:
        link.groups = {}
    for connection in flowing:
        for link in connection.links:
            link.groups[connection] = None
    rates = max_min_fair(flowing, list(links)) if flowing else {}
    return {connection: rate * connection.weight for connection, rate in rates.items()}
