"""Which nodes take part: every set of nodes up to those that are interchangeable, or by a rule where these are too many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hetsim.cluster.compute_times import interpolated
from hetsim.cluster.model import Cluster

MOST = 4096
"""Sets of nodes that are all tried; of more, those of the rule."""
MOST_CLASSES = 8
"""Classes of which every union is left out by the rule."""
PEERS = 8
"""Nodes to which a node's way is looked at, to see how slow its link is."""

LeaveOut = tuple[int, ...]
"""The ranks of the nodes that take no part."""


@dataclass(frozen=True)
class Subsets:
    """What may be left out, nothing first; `num` sets of nodes exist, up to interchangeable ones."""

    leave_out: tuple[LeaveOut, ...]
    num: int

    @property
    def all(self) -> bool:
        """Whether every set is among them."""
        return len(self.leave_out) == self.num


def subsets(cluster: Cluster, *, batch_size: int, nbytes: int) -> Subsets:
    """The sets of nodes to try: all of them up to interchangeable nodes, if these are at most `MOST`, else those of `by_rule`."""
    its = classes(cluster)
    num = math.prod(len(ranks) + 1 for ranks in its) - 1
    if num > MOST:
        found = [(), *by_rule(cluster, its, batch_size, nbytes)]
        return Subsets(tuple(dict.fromkeys(found)), num)
    distinct: dict[Any, LeaveOut] = {}
    shape = _shapes(cluster, its)
    for counts in product(*(range(len(ranks), -1, -1) for ranks in its)):
        if any(counts):
            left_out = tuple(sorted(rank for ranks, count in zip(its, counts, strict=True) for rank in ranks[count:]))
            distinct.setdefault(shape(counts), left_out)
    return Subsets(tuple(distinct.values()), len(distinct))


def classes(cluster: Cluster) -> list[list[int]]:
    """The ranks of interchangeable nodes: of the same description, in the same rack, with the same faults.

    Where the order around a ring matters, nodes of a class are also neighbours.
    """
    network = cluster.network
    same_latency = len({node.latency_seconds for node in cluster.nodes}) == 1
    in_order = bool(network.racks or network.between) or network.all_reduce != "ring" or not same_latency
    kinds: list[Any] = []
    found: dict[tuple[int, int], list[int]] = {}
    run, before = 0, -1
    for rank, node in enumerate(cluster.nodes):
        described = (node, cluster.faults.nodes.get(rank))
        kind = next((place for place, other in enumerate(kinds) if other == described), len(kinds))
        if kind == len(kinds):
            kinds.append(described)
        run += in_order and kind != before
        before = kind
        found.setdefault((kind, run), []).append(rank)
    return list(found.values())


def _shapes(cluster: Cluster, its: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], Any]:
    """By how many nodes of each class take part: what two sets have in common that differ in which of several equal racks is meant.

    Not of a rack that contains another or is in one, that `between` names, that has the server, or whose nodes are no neighbours.
    """
    network = cluster.network
    racks = [cluster.nodes[ranks[0]].rack for ranks in its]
    special = {cluster.server.rack, *(rack.within for rack in network.racks.values())}
    special |= {name for name, rack in network.racks.items() if rack.within}
    special |= {str(end).removeprefix("rack ") for pair in network.between for end in pair}
    for name in set(racks):
        places = [place for place, rack in enumerate(racks) if rack == name]
        if places[-1] - places[0] >= len(places):
            special.add(name)
    described = [
        repr({name: value for name, value in vars(cluster.nodes[ranks[0]]).items() if name not in ("rack", "on_its_share")})
        for ranks in its
    ]

    def shape(counts: Sequence[int]) -> Any:
        single, members = [], dict[str, list[Any]]()
        for place, (rack, count) in enumerate(zip(racks, counts, strict=True)):
            if rack is None or rack in special:
                single.append((place, count))
            elif count:
                members.setdefault(rack, []).append((described[place], count))
        equal = Counter((repr(network.racks[name]), tuple(nodes)) for name, nodes in members.items())
        return tuple(single), frozenset(equal.items())

    return shape


def by_rule(cluster: Cluster, its: Sequence[Sequence[int]], batch_size: int, nbytes: int) -> Iterator[LeaveOut]:
    """Of very many sets: without the worst by speed, by link and by both, 1, 2, 3, 4, 6, 8, 12 … of them, and without whole classes."""
    num = cluster.num_workers
    share = max(1, batch_size // num)
    peers = range(0, num, -(-num // PEERS))

    def compute(rank: int) -> float:
        node = cluster.nodes[rank].on_its_share
        return interpolated(node.table, share) if node.table else node.overhead_seconds + share * node.seconds_per_sample

    def link(rank: int) -> float:
        others = [peer for peer in peers if peer != rank]
        return min(max(cluster.message_seconds(rank, peer, nbytes), cluster.message_seconds(peer, rank, nbytes)) for peer in others)

    slowest = sorted(range(num), key=lambda rank: -compute(rank))
    farthest = sorted(range(num), key=lambda rank: -link(rank))
    for count in _counts(num):
        yield tuple(sorted(slowest[:count]))
        yield tuple(sorted(farthest[:count]))
    for one in _counts(num):
        for other in _counts(num):
            if len(both := {*slowest[:one], *farthest[:other]}) < num:
                yield tuple(sorted(both))
    if len(its) <= MOST_CLASSES:
        for kept in product((True, False), repeat=len(its)):
            if any(kept):
                yield tuple(sorted(rank for ranks, stays in zip(its, kept, strict=True) if not stays for rank in ranks))


def _counts(num: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16 … below `num`, and the number before it."""
    power = 1
    while power < num:
        yield power
        if power > 1 and power * 3 // 2 < num:
            yield power * 3 // 2
        power *= 2
    if num > 2:
        yield num - 1


def neighbours(left_out: LeaveOut, its: Iterable[Sequence[int]]) -> Iterator[LeaveOut]:
    """The sets with one node of a class less, and with one more."""
    gone = set(left_out)
    for ranks in its:
        there = [rank for rank in ranks if rank not in gone]
        absent = [rank for rank in ranks if rank in gone]
        if there:
            yield tuple(sorted({*gone, there[-1]}))
        if absent:
            yield tuple(sorted(gone - {absent[0]}))
