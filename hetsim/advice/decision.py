"""What an advice comes to in a sentence: what to run on which nodes, what it gains over plain DDP, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hetsim.advice.candidates import Candidate
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster
from hetsim.results.writing.describe import formatted


class Parts(NamedTuple):
    """Of a step, in seconds: until the slowest node has computed, and the rest, in which all wait for the network or an update."""

    compute: float
    network: float


def parts(step_seconds: float, per_worker: Sequence[dict[str, float]]) -> Parts:
    """Of the mean step of a synchronous run, by the mean gradient of the node that computes longest."""
    slowest = max((worker["compute_seconds"] / worker["iterations"] for worker in per_worker if worker["iterations"]), default=0.0)
    return Parts(min(slowest, step_seconds), max(0.0, step_seconds - slowest))


def what_to_do(candidate: Candidate, num_nodes: int) -> str:
    """An order, without a full stop."""
    kept = [rank for rank in range(num_nodes) if rank not in candidate.leave_out]
    split = f" with allocation={candidate.allocation}" if candidate.allocation else ""
    if not candidate.leave_out:
        keep = f"keep all {num_nodes} nodes and " if num_nodes > 1 else ""
        return f"{keep}run {candidate.method.name}{split}"
    return f"leave out {nodes(candidate.leave_out)} and run {candidate.method.name}{split} on {nodes(kept)}"


def nodes(ranks: Sequence[int]) -> str:
    """Ranks in words: node 3; nodes 2 to 5; nodes 0, 1, 4 and 7."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = [text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"node {listed}" if len(ranks) == 1 else f"nodes {listed}"


def why(candidate: Candidate, cluster: Cluster, before: Parts, after: Parts | None) -> str:
    """The larger of the two parts of a step of plain DDP that the candidate saves; `after` is None for one that does not wait for all."""
    whole = before.compute + before.network
    if after is None:
        share = f"{100 * before.network / whole:.0f} % of it for the network" if before.network > 0.1 * whole else "for the slowest node"
        return f"because a step of plain DDP takes {seconds(whole)}, {share}, and this method does not wait for all nodes in every step"
    if before.network - after.network > before.compute - after.compute:
        return (
            f"because the network holds up each step of plain DDP for {seconds(before.network)} of {seconds(whole)}, and here for "
            f"{seconds(after.network)}{_link(candidate, cluster)}"
        )
    return (
        f"because each step of plain DDP waits {seconds(before.compute)} for the slowest node's gradient, and here {seconds(after.compute)}"
    )


def _link(candidate: Candidate, cluster: Cluster) -> str:
    """The slowest link around all nodes, if fewer nodes have a faster one."""
    (rate, owner), (faster, _) = slowest_link(cluster), slowest_link(without(cluster, candidate.leave_out))
    return f": {owner} carries {bits(rate)}" if rate < 0.999 * faster else ""


def slowest_link(cluster: Cluster) -> tuple[float, str]:
    """Bytes per second between neighbours around the ring, of the slowest pair, and what bounds them."""
    found = (math.inf, "")
    num = cluster.num_workers
    for sender in range(num if num > 1 else 0):
        path = cluster.path(sender, (sender + 1) % num)
        found = min(found, (path.bytes_per_second, "a way between two nodes"))
        for _, owner in path.links:
            rate = min(cluster.capacity((direction, owner)) for direction, its in path.links if its == owner)
            found = min(found, (rate, f"the link of node {owner}" if isinstance(owner, int) else f"the uplink of {owner}"))
    return found


def bits(rate: float) -> str:
    """A rate in bytes per second as people say it: 1 Gbit/s."""
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if 8 * rate >= size:
            return f"{8 * rate / size:.3g} {unit}"
    return f"{8 * rate:.3g} bit/s"


def seconds(value: float) -> str:
    """Seconds, or thousandths of them."""
    return f"{formatted(value)} s" if value >= 0.1 else f"{1000 * value:.3g} ms"
