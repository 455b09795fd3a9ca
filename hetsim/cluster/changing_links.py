"""Which links of a cluster change over time."""

from __future__ import annotations

from collections.abc import Iterable

from hetsim.cluster.link_slowdown import LinkSlowdown
from hetsim.cluster.model import Cluster, Node, Server
from hetsim.cluster.racks import Between, Rack


def slowdown_of(cluster: Cluster, link: tuple[str, int | str]) -> LinkSlowdown | None:
    """The slowdown of a link, by the link's name; None if the link does not change."""
    owner = link[1]
    if isinstance(owner, int):
        return cluster.nodes[owner].link_slowdown
    if owner.startswith("server"):
        return cluster.server.link_slowdown
    if owner.startswith("way "):
        return cluster.between(*map(int, owner.split()[1:])).link_slowdown
    return None if owner.startswith("host ") else cluster.network.racks[owner.removeprefix("rack ")].link_slowdown


def changes(ends: Iterable[Between | Node | Rack | Server]) -> bool:
    """Whether the links of any of these nodes, racks or servers change over time, or any of these ways between racks."""
    return any(end.link_slowdown is not None for end in ends)
