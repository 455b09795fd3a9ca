"""A cluster with some of another cluster's nodes, and the seconds of an all-reduce among another number of workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hetsim.cluster.model import Cluster


def without(cluster: Cluster, ranks: Collection[int]) -> Cluster:
    """The cluster without these nodes. The other nodes keep their order and get new ranks.

    Faults move with their nodes. Links stay. Measured seconds of all-reduces are converted to the remaining number of nodes (`among`).
    """
    left_out = frozenset(ranks)
    kept = [rank for rank in range(cluster.num_workers) if rank not in left_out]
    assert kept
    network, faults = cluster.network, cluster.faults
    if network.all_reduce_table:
        table = rescale_all_reduce_table(network.all_reduce_table, cluster.num_workers, len(kept))
        network = replace(network, all_reduce_table=tuple(table))
    return replace(
        cluster,
        nodes=tuple(cluster.nodes[rank] for rank in kept),
        network=network,
        faults=replace(faults, nodes={new: faults.nodes[old] for new, old in enumerate(kept) if old in faults.nodes}),
    )


def rescale_all_reduce_table(table: Sequence[tuple[int, float]], num_before: int, num_after: int) -> list[tuple[int, float]]:
    """Convert the seconds of all-reduces among `num_before` workers to `num_after` workers, as for a ring: 2(N−1)(latency + n/(N · rate)).

    The seconds of the smallest all-reduce count as latency. A table for one worker is kept, because nothing can be concluded from it.
    """
    if num_before == 1 or num_before == num_after or not table:
        return [(size, seconds) for size, seconds in table]
    latency = table[0][1]
    more_steps, less_each = (num_after - 1) / (num_before - 1), num_before / num_after
    return [(size, more_steps * (latency + (seconds - latency) * less_each)) for size, seconds in table]
