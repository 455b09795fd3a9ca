"""A cluster that changes at known seconds: its conditions one after the other, and the cluster that stays in one of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.cluster.network.racks import Between, Rack

End = TypeVar("End", Between, NodeSpec, Rack, Server)


@dataclass(frozen=True)
class Condition:
    """The factor of each recorded slowdown, and the ranks that are absent or stopped."""

    factors: tuple[float, ...]
    absent: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Schedule:
    """Everything of a cluster that changes at known seconds: recorded slowdowns, scheduled outages and short stops."""

    cluster: Cluster

    @cached_property
    def slowdowns(self) -> list[LinkSlowdown]:
        """The distinct slowdowns that change, of nodes and of links."""
        network = self.cluster.network
        ends: list[Between | NodeSpec | Rack | Server] = [self.cluster.server, *self.cluster.nodes]
        ends += [*network.racks.values(), *network.between.values()]
        recorded = [*map(_of_node, self.cluster.nodes), *(end.link_slowdown for end in ends)]
        return list(dict.fromkeys(slowdown for slowdown in recorded if slowdown is not None and len(slowdown.points) > 1))

    @cached_property
    def outages(self) -> list[tuple[int, float, float]]:
        """The scheduled outages: rank, first second, and second of the return."""
        return [(rank, *times) for rank, faults in self.cluster.faults.nodes.items() for times in faults.scheduled]

    @cached_property
    def stops(self) -> list[tuple[int, float, float]]:
        """The scheduled short stops."""
        return [(rank, *times) for rank, stops in self.cluster.faults.pauses.items() for times in stops]

    @property
    def changes(self) -> bool:
        """Whether anything changes at a known second."""
        return bool(self.slowdowns or self.outages or self.stops)

    def at(self, second: float) -> tuple[Condition, float]:
        """The condition at a second, and the second at which it changes next; infinite if it stays."""
        current = [slowdown.at(second) for slowdown in self.slowdowns]
        bounds = [bound for _, *times in (*self.outages, *self.stops) for bound in times if bound > second]
        until = min((*bounds, *(end for _, end in current)), default=math.inf)
        absent, stopped = (frozenset(rank for rank, start, end in times if start <= second < end) for times in (self.outages, self.stops))
        return Condition(tuple(factor for factor, _ in current), absent, stopped), until

    def next_return(self, second: float) -> float:
        """The next second at which an outage or a stop ends; infinite if none does."""
        return min((end for _, _, end in (*self.outages, *self.stops) if end > second), default=math.inf)

    def interruption(self, second: float, leave_out: Collection[int]) -> float:
        """The seconds for which the other nodes of a collective wait from this second on, because a node is lost or comes back."""
        faults = self.cluster.faults
        used = [outage for outage in self.outages if outage[0] not in leave_out]
        lost = [faults.detection_of(rank, start) for rank, start, _ in used if start == second]
        regroups = bool(lost) or any(end == second for _, _, end in used)
        return max(lost, default=0.0) + (faults.regroup_seconds if regroups else 0.0)

    def steady(self, condition: Condition) -> Cluster:
        """The cluster that stays in this condition, with all nodes. Random spells and crashes remain."""
        factors = dict(zip(self.slowdowns, condition.factors, strict=True))

        def constant(slowdown: LinkSlowdown | None) -> LinkSlowdown | None:
            factor = factors.get(slowdown) if slowdown is not None else None
            return slowdown if factor is None else None if factor == 1 else LinkSlowdown(((0.0, factor),))

        def end_in(end: End) -> End:
            return replace(end, link_slowdown=constant(end.link_slowdown))

        def node_in(node: NodeSpec) -> NodeSpec:
            slowdown = constant(_of_node(node))
            return replace(end_in(node), slowdown=() if slowdown is None else slowdown.points, slowdown_period_seconds=None)

        network, faults = self.cluster.network, self.cluster.faults
        nodes = {id(node): node_in(node) for node in self.cluster.nodes}
        remaining = {rank: replace(outages, scheduled=()) for rank, outages in faults.nodes.items() if outages.seconds_to_crash is not None}
        return replace(
            self.cluster,
            nodes=tuple(nodes[id(node)] for node in self.cluster.nodes),
            server=end_in(self.cluster.server),
            network=replace(
                network,
                racks={name: end_in(rack) for name, rack in network.racks.items()},
                between={pair: end_in(way) for pair, way in network.between.items()},
            ),
            faults=replace(faults, nodes=remaining, pauses={}),
        )


def _of_node(node: NodeSpec) -> LinkSlowdown | None:
    return LinkSlowdown(node.slowdown, node.slowdown_period_seconds) if node.slowdown else None
