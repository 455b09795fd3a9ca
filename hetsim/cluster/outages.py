"""When a node is absent: scheduled outages, and crashes drawn from a distribution."""

from __future__ import annotations

from collections.abc import Iterator

from hetsim.cluster.distributions import OUTAGES
from hetsim.cluster.model import Cluster


def outages(cluster: Cluster, rank: int, *, seed: int) -> Iterator[tuple[float, float]]:
    """(from, until) of each outage of a node, in seconds: the scheduled ones, then crashes drawn from its distribution."""
    its = cluster.faults.nodes.get(rank)
    if its is None:
        return
    if its.seconds_to_crash is None:
        yield from its.scheduled
        return
    to_crash = its.seconds_to_crash.draws(seed, rank, OUTAGES, 0)
    to_repair = its.seconds_to_repair.draws(seed, rank, OUTAGES, 1) if its.seconds_to_repair else None
    now = its.scheduled[-1][1] if its.scheduled else 0.0
    yield from its.scheduled
    while True:
        crash = now + next(to_crash)
        now = crash + next(to_repair) if to_repair else float("inf")
        yield crash, now
        if to_repair is None:
            return
