"""When a node is absent: scheduled outages, and crashes drawn from a distribution."""

from __future__ import annotations

from collections.abc import Iterator

from hetsim.cluster.distributions import OUTAGES
from hetsim.cluster.model import Cluster


def outages(cluster: Cluster, rank: int, *, seed: int) -> Iterator[tuple[float, float]]:
    """(from, until) of each outage of a node, in seconds: the scheduled ones, then crashes drawn from its distribution."""
    node_outages = cluster.faults.nodes.get(rank)
    if node_outages is None:
        return
    if node_outages.seconds_to_crash is None:
        yield from node_outages.scheduled
        return
    to_crash = node_outages.seconds_to_crash.draws(seed, rank, OUTAGES, 0)
    to_repair = node_outages.seconds_to_repair.draws(seed, rank, OUTAGES, 1) if node_outages.seconds_to_repair else None
    now = node_outages.scheduled[-1][1] if node_outages.scheduled else 0.0
    yield from node_outages.scheduled
    while True:
        crash = now + next(to_crash)
        now = crash + next(to_repair) if to_repair else float("inf")
        yield crash, now
        if to_repair is None:
            return
