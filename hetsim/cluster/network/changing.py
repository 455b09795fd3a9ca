"""How long a run must be to show how its cluster changes over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from hetsim.cluster.distributions import Distribution
from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.cluster.network.racks import Between, Rack

CYCLES = 20
"""The number of periods, spells or crashes that show how large a share of the time they take."""


def seconds_of_changes(cluster: Cluster) -> float:
    """The seconds of a run that show how the cluster changes: 0 if it does not, infinite if a change does not repeat.

    Otherwise, `CYCLES` times the longest period, or the longest mean time from one spell or crash to the next.
    """
    return max(_seconds(cluster), default=0.0)


def _seconds(cluster: Cluster) -> Iterator[float]:
    network = cluster.network
    ends: list[Between | NodeSpec | Rack | Server] = [*cluster.nodes, cluster.server, *network.racks.values(), *network.between.values()]
    for node in cluster.nodes:
        if len(node.slowdown) > 1:
            yield _until(node.slowdown_period_seconds)
        if node.slow_spells is not None:
            yield CYCLES * (_mean(node.slow_spells.seconds_between) + _mean(node.slow_spells.seconds_lasting))
    for end in ends:
        if end.link_slowdown is not None and len(end.link_slowdown.points) > 1:
            yield _until(end.link_slowdown.period_seconds)
    for outages in cluster.faults.nodes.values():
        crash, repair = outages.seconds_to_crash, outages.seconds_to_repair
        yield math.inf if outages.scheduled or crash is None or repair is None else CYCLES * (_mean(crash) + _mean(repair))
    if any(cluster.faults.pauses.values()):
        yield math.inf


def _until(period_seconds: float | None) -> float:
    return math.inf if period_seconds is None else CYCLES * period_seconds


def _mean(distribution: Distribution) -> float:
    return float(distribution.draw(np.random.default_rng(0), 1000).mean())


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


def changes(ends: Iterable[Between | NodeSpec | Rack | Server]) -> bool:
    """Whether the links of any of these nodes, racks or servers change over time, or any of these ways between racks."""
    return any(end.link_slowdown is not None for end in ends)
