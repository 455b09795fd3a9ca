"""The candidates of an advice: methods, splits of the batch, and the sets of nodes that take part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from hetsim.advice.question import BASELINE, RATES, AdviceQuestion
from hetsim.cluster.compute_times import interpolate
from hetsim.cluster.model import Cluster
from hetsim.config.methods import Method

ALLOCATIONS = ("dbs", "lb_bsp", "optperf", "static")
"""The allocations that are tried instead of equal batches. Each is also part of a method; others re-allocate once in each epoch."""
ALIKE = ("all_reduce", "overlapped_all_reduce", "parameter_server")
"""Coordinations that train as DDP does if they wait for all workers."""
SERVERLESS = (
    *("all_reduce", "overlapped_all_reduce", "one_step_delay_all_reduce", "accumulating_all_reduce", "local_steps", "streaming_steps"),
)
"""Coordinations without a server."""
MOST_SETS = 4096
"""The maximum number of sets of nodes that are all tried. Otherwise the rule selects sets."""
PEERS = 8
"""The number of other nodes to which a node's path is examined, to find slow links."""

LeaveOut = tuple[int, ...]
"""The ranks of the nodes that are left out."""


@dataclass(frozen=True)
class Candidate:
    """A method, an allocation that replaces the method's own, and the nodes that are left out."""

    method: Method
    allocation: str | None = None
    leave_out: LeaveOut = ()
    factor: float = 1.0
    """The factor on the method's learning rates."""

    @property
    def label(self) -> str:
        """The candidate in words, without its rates."""
        split = f", allocation {self.allocation}" if self.allocation else ""
        out = f", without {'nodes' if len(self.leave_out) > 1 else 'node'} {', '.join(map(str, self.leave_out))}" if self.leave_out else ""
        return self.method.name + split + out

    @property
    def synchronous(self) -> bool:
        """Whether the candidate trains as DDP does: each version is the mean gradient of one global batch, with any split."""
        choices = self.method.choices
        counts_alike = "allocation" not in choices or choices.get("weighting") == "per_sample"
        return choices["admission"] == "barrier" and choices["coordination"] in ALIKE and counts_alike

    @property
    def needs_server(self) -> bool:
        """Whether it has a parameter server."""
        return self.method.choices["coordination"] not in SERVERLESS

    @property
    def weighs_samples(self) -> bool:
        """Whether the candidate uses `weighting=per_sample`: the mean over all samples."""
        return self.allocation is not None and self.synchronous and "weighting" not in self.method.choices

    def words(self, *, rates: bool = True) -> list[str]:
        """The candidate's arguments, to type after the arguments for all candidates."""
        typed = [f"method={self.method.name}"]
        if self.allocation is not None:
            typed.append(f"allocation={self.allocation}")
            if self.weighs_samples:
                typed.append("weighting=per_sample")
        if self.leave_out:
            typed.append(f"++cluster.leave_out=[{','.join(map(str, self.leave_out))}]")
        if rates:
            typed += [f"{rate}={self.method.keys[rate] * self.factor:.4g}" for rate in self.scaled]
        return typed

    @property
    def scaled(self) -> tuple[str, ...]:
        """The rates to search: only the local steps' rate if the outer step is an average."""
        rates = tuple(rate for rate in RATES if rate in self.method.keys)
        return rates[1:] if self.method.family == "local steps" and len(rates) > 1 else rates

    def at(self, factor: float) -> Candidate:
        """The same candidate, with learning rates multiplied by this factor."""
        return replace(self, factor=factor)


def baseline(split: str | None = None) -> Candidate:
    """Plain DDP: equal batches on all nodes. `split` is `AdviceQuestion.even`."""
    from hetsim.config.methods import read
    from hetsim.trust.shipped import configs

    return Candidate(read(configs() / "method" / f"{BASELINE}.yaml"), split)


def allocation_variants(question: AdviceQuestion, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Methods with equal batches, each with the other allocations."""
    if not question.typed("allocation"):
        for candidate in candidates:
            if "allocation" not in candidate.method.choices:
                yield from (replace(candidate, allocation=allocation) for allocation in ALLOCATIONS)


@dataclass(frozen=True)
class Subsets:
    """The sets of nodes to leave out, the empty set first. `num` is the number of all sets, up to interchangeable nodes."""

    leave_out: tuple[LeaveOut, ...]
    num: int
    equal: tuple[tuple[int, ...], ...]
    """The classes of equal nodes (`equal_nodes`)."""

    @property
    def all(self) -> bool:
        """Whether all sets are included."""
        return len(self.leave_out) == self.num

    def is_whole(self, leave_out: LeaveOut) -> bool:
        """Whether equal nodes are left out together or not at all."""
        out = set(leave_out)
        return all(out.isdisjoint(ranks) or out.issuperset(ranks) for ranks in self.equal)

    def whole(self, leave_out: LeaveOut) -> tuple[LeaveOut, LeaveOut]:
        """This set without, and with, the nodes that have equals on the other side; the second one may be all nodes."""
        out = set(leave_out)
        smaller = [rank for ranks in self.equal if out.issuperset(ranks) for rank in ranks]
        larger = [rank for ranks in self.equal if not out.isdisjoint(ranks) for rank in ranks]
        return tuple(sorted(smaller)), tuple(sorted(larger))

    def whole_neighbours(self, leave_out: LeaveOut) -> Iterator[LeaveOut]:
        """The sets with one class of equal nodes less, and those with one more."""
        for ranks in self.equal:
            changed = set(leave_out).symmetric_difference(ranks)
            if len(changed) < sum(map(len, self.equal)):
                yield tuple(sorted(changed))


def subsets(cluster: Cluster, *, batch_size: int, nbytes: int) -> Subsets:
    """The sets of nodes to leave out: all of them up to interchangeable nodes, if at most `MOST_SETS`.

    Otherwise, all sets of whole classes of equal nodes if these are at most `MOST_SETS`, and those of `subsets_by_rule`.
    """
    node_classes = classes(cluster)
    equal = tuple(map(tuple, equal_nodes(cluster)))
    num = math.prod(len(ranks) + 1 for ranks in node_classes) - 1
    if num > MOST_SETS:
        sets = [(), *subsets_by_rule(cluster, equal, batch_size, nbytes)]
        return Subsets(tuple(dict.fromkeys(sets)), num, equal)
    distinct: dict[Any, LeaveOut] = {}
    shape = _shapes(cluster, node_classes)
    for counts in product(*(range(len(ranks), -1, -1) for ranks in node_classes)):
        if any(counts):
            left_out = tuple(sorted(rank for ranks, count in zip(node_classes, counts, strict=True) for rank in ranks[count:]))
            distinct.setdefault(shape(counts), left_out)
    return Subsets(tuple(distinct.values()), len(distinct), equal)


def equal_nodes(cluster: Cluster) -> list[list[int]]:
    """Classes of equal nodes, as ranks: nodes with the same description, faults and place in the network.

    Different racks are one place if they have the same description, nodes and racks inside, and are in one place themselves.
    """
    racks, texts = cluster.network.racks, {id(node): repr(replace(node, rack=None)) for node in cluster.nodes}
    nodes = [(texts[id(node)], repr(cluster.faults.nodes.get(rank))) for rank, node in enumerate(cluster.nodes)]
    ends = {*map(str, (end for pair in cluster.network.between for end in pair)), f"rack {cluster.server.rack}"}
    single = {outer for end in ends for outer in _outwards(cluster, end.removeprefix("rack "))}
    inside: dict[str | None, list[Any]] = {}
    for rank, node in enumerate(cluster.nodes):
        inside.setdefault(node.rack, []).append(nodes[rank])

    @cache
    def content(name: str) -> Any:
        if name in single:
            return name
        within = Counter(content(inner) for inner, rack in racks.items() if rack.within == name)
        return repr(replace(racks[name], within=None)), frozenset(Counter(inside.get(name, ())).items()), frozenset(within.items())

    members: dict[Any, list[int]] = {}
    for rank, node in enumerate(cluster.nodes):
        number = rank if str(rank) in ends else None
        members.setdefault((nodes[rank], number, *map(content, _outwards(cluster, node.rack))), []).append(rank)
    return list(members.values())


def _outwards(cluster: Cluster, rack: str | None) -> Iterator[str]:
    """A rack, and the racks around it."""
    while rack in cluster.network.racks:
        yield str(rack)
        rack = cluster.network.racks[str(rack)].within


def classes(cluster: Cluster) -> list[list[int]]:
    """Classes of interchangeable nodes, as ranks: nodes with the same description, rack and faults.

    If the order around a ring matters, nodes of a class are also neighbours.
    """
    network = cluster.network
    same_latency = len({node.latency_seconds for node in cluster.nodes}) == 1
    in_order = bool(network.racks or network.between) or network.all_reduce != "ring" or not same_latency
    kinds: list[Any] = []
    members: dict[tuple[int, int], list[int]] = {}
    run, previous = 0, -1
    for rank, node in enumerate(cluster.nodes):
        described = (node, cluster.faults.nodes.get(rank))
        kind = next((place for place, description in enumerate(kinds) if description == described), len(kinds))
        if kind == len(kinds):
            kinds.append(described)
        run += in_order and kind != previous
        previous = kind
        members.setdefault((kind, run), []).append(rank)
    return list(members.values())


def _shapes(cluster: Cluster, node_classes: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], Any]:
    """A function that maps a set of nodes to its shape. Sets of one shape differ only in which of several equal racks they use.

    Racks that contain racks or are in one are not interchanged, nor racks in `between` or with the server, nor racks of scattered nodes.
    """
    network = cluster.network
    racks = [cluster.nodes[ranks[0]].rack for ranks in node_classes]
    special = {cluster.server.rack, *(rack.within for rack in network.racks.values())}
    special |= {name for name, rack in network.racks.items() if rack.within}
    special |= {str(end).removeprefix("rack ") for pair in network.between for end in pair}
    for name in set(racks):
        places = [place for place, rack in enumerate(racks) if rack == name]
        if places[-1] - places[0] >= len(places):
            special.add(name)
    described = [
        repr({name: value for name, value in vars(cluster.nodes[ranks[0]]).items() if name not in ("rack", "on_its_share")})
        for ranks in node_classes
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


def subsets_by_rule(cluster: Cluster, equal: Sequence[Sequence[int]], batch_size: int, nbytes: int) -> Iterator[LeaveOut]:
    """From very many sets: without the 1, 2, 3, 4, 6, 8, 12 … worst nodes by speed, by link or by both, and without equal nodes."""
    num = cluster.num_workers
    share = max(1, batch_size // num)
    peers = range(0, num, -(-num // PEERS))

    def compute(rank: int) -> float:
        node = cluster.nodes[rank].on_its_share
        return interpolate(node.table, share) if node.table else node.overhead_seconds + share * node.seconds_per_sample

    def link(rank: int) -> float:
        others = [peer for peer in peers if peer != rank]
        return min(max(cluster.message_seconds(rank, peer, nbytes), cluster.message_seconds(peer, rank, nbytes)) for peer in others)

    slowest = sorted(range(num), key=lambda rank: -compute(rank))
    farthest = sorted(range(num), key=lambda rank: -link(rank))
    for count in _counts(num):
        yield tuple(sorted(slowest[:count]))
        yield tuple(sorted(farthest[:count]))
    for num_slow in _counts(num):
        for num_far in _counts(num):
            if len(both := {*slowest[:num_slow], *farthest[:num_far]}) < num:
                yield tuple(sorted(both))
    if 2 ** len(equal) <= MOST_SETS:
        for kept in product((True, False), repeat=len(equal)):
            if any(kept):
                yield tuple(sorted(rank for ranks, stays in zip(equal, kept, strict=True) if not stays for rank in ranks))


def _counts(num: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16 … below `num`, and `num` − 1."""
    power = 1
    while power < num:
        yield power
        if power > 1 and power * 3 // 2 < num:
            yield power * 3 // 2
        power *= 2
    if num > 2:
        yield num - 1


def neighbours(left_out: LeaveOut, node_classes: Iterable[Sequence[int]]) -> Iterator[LeaveOut]:
    """The sets with one node of a class less, and the sets with one more."""
    out = set(left_out)
    for ranks in node_classes:
        present = [rank for rank in ranks if rank not in out]
        absent = [rank for rank in ranks if rank in out]
        if present:
            yield tuple(sorted({*out, present[-1]}))
        if absent:
            yield tuple(sorted(out - {absent[0]}))
