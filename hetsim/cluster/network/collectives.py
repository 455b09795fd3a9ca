"""The seconds of a collective in closed form, from the entry of the last rank: the slowest message decides each step.

In a step all participants send at once. Each link is divided equally among the messages that cross it, so a step takes the
largest latency + nbytes / rate. With equal latencies, this is exactly the step's time under max-min sharing. A step begins when the
previous step is complete on all ranks. A ring in which each rank continues by itself (`tests/rings.py`) may be faster on unequal
links, but never slower. If messages have a jitter, the added time is computed rank by rank (`lateness.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from hetsim.cluster.compute_times import interpolate
from hetsim.cluster.model import Cluster, NodeSpec, has_links
from hetsim.cluster.network.changing import changes, slowdown_of
from hetsim.cluster.network.lateness import CollectiveLateness, Seconds
from hetsim.cluster.network.link_slowdown import Way, way_seconds
from hetsim.cluster.network.racks import Rack

T = TypeVar("T")


@dataclass(frozen=True)
class CollectiveStep:
    """The distinct (latency in seconds, bytes per second) of a step's messages, and the messages' ways if links change over time."""

    messages: frozenset[tuple[float, float]] = frozenset()
    ways: frozenset[Way] = frozenset()


TREE_EFFICIENCY = 0.92
"""The share of a link's rate that a tree reaches, by NCCL's model (`ncclTopoTuneModel`)."""
Phase = tuple[tuple[int, CollectiveStep, float], ...]
"""Simultaneous sequences of equal steps, each as (number of steps, step, parts): a message contains 1/parts of the vector.

With infinitely many parts, a step takes its latency alone.
"""


class Collectives:
    """Collectives among these ranks of a cluster. Values that depend only on the ranks are computed once."""

    def __init__(self, cluster: Cluster, members: Sequence[int] | None = None, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.members = tuple(range(cluster.num_workers)) if members is None else tuple(members)
        self.seed = seed
        self._cached_seconds: dict[float, float] = {}
        self._cached_algorithms: dict[float, str] = {}

    def all_reduce_seconds(self, nbytes: int, number: Sequence[int] = (), begins: float = 0.0) -> float:
        """Seconds of the network's all-reduce of a vector of `nbytes` bytes; zero for one participant.

        `number` identifies the collective within the run, and determines the jitters of its messages. If links change over time, the
        result depends on `begins`, the second at which the collective begins.
        """
        table = self.cluster.network.all_reduce_table
        if self._changes and len(self.members) > 1:
            self._cached_seconds[nbytes] = self._changing_seconds(ALGORITHMS[self.algorithm(nbytes)][2](self), nbytes, begins)
        elif nbytes not in self._cached_seconds:
            if table:
                self._cached_seconds[nbytes] = interpolate(table, nbytes)
            else:
                self._cached_seconds[nbytes] = ALGORITHMS[self.algorithm(nbytes)][0](self, nbytes) if len(self.members) > 1 else 0.0
        late = self._lateness(number)
        if late is None:
            return self._cached_seconds[nbytes]
        ALGORITHMS[self.algorithm(nbytes)][1](self, nbytes, late)
        return self._cached_seconds[nbytes] + late.last

    def algorithm(self, nbytes: int) -> str:
        """The algorithm of an all-reduce of `nbytes` bytes. With `auto`, it is that with the fewest seconds by the described links.

        As in NCCL, neither jitter nor changes of the links affect the choice.
        """
        if self.cluster.network.all_reduce != AUTO:
            return self.cluster.network.all_reduce
        if nbytes not in self._cached_algorithms:
            self._cached_algorithms[nbytes] = min(CHOICES, key=lambda name: ALGORITHMS[name][0](self, nbytes))
        return self._cached_algorithms[nbytes]

    @cached_property
    def slow_gradients(self) -> bool:
        """Whether a reduction beside a gradient takes some of its time."""
        return bool(self._overlap_seconds_per_byte.any())

    def gradients_end(self, sizes: Sequence[int], ends: Seconds, intervals: Sequence[tuple[float, float]]) -> float:
        """The second at which the last member has computed its gradient, beside all-reduces of these sizes in these intervals.

        Without them, the members' gradients end at `ends`. Of an all-reduce, 2(N−1)/N of the vector pass each member's link. So it takes
        as many times `overlap_seconds_per_byte` of the gradient, but not more than its own seconds. If only a part of it is before the
        gradient's end, it takes the same part of them.
        """
        lost = np.zeros_like(ends)
        for nbytes, (begin, end) in zip(sizes, intervals, strict=True):
            if end > begin:
                share = np.clip((ends - begin) / (end - begin), 0.0, 1.0)
                lost += share * np.minimum(nbytes * self._overlap_seconds_per_byte, end - begin)
        return float((ends + lost).max())

    @cached_property
    def _overlap_seconds_per_byte(self) -> Seconds:
        num = len(self.members)
        return 2 * (num - 1) / num * np.array([self.cluster.nodes[rank].overlap_seconds_per_byte for rank in self.members])

    def gather_seconds(self, number: Sequence[int] = (), begins: float = 0.0, *, nbytes: int = 8) -> float:
        """Seconds of an all-gather of `nbytes` bytes from each rank, such as a number: N−1 steps around the ring."""
        num_steps = len(self.members) - 1
        if self._changes:
            seconds = self._changing_seconds([((num_steps, self._ring, 1),)], nbytes, begins)
        else:
            seconds = num_steps * (self._number if nbytes == 8 else self._seconds(self._ring, nbytes))
        late = self._lateness(number)
        if late is None:
            return seconds
        late.ring(num_steps, self._latency(self._ring, nbytes))
        return seconds + late.last

    @staticmethod
    def _changing_seconds(phases: Iterable[Phase], nbytes: float, begins: float) -> float:
        """Seconds of phases over links that change. Each step begins when the previous step is complete."""
        now = begins
        for phase in phases:
            ends = [now]
            for num_steps, step, num_parts in phase:
                end = now
                for _ in range(num_steps):
                    end += max((way_seconds(way, nbytes / num_parts, end) for way in step.ways), default=0.0)
                ends.append(end)
            now = max(ends)
        return now - begins

    def _lateness(self, number: Sequence[int]) -> CollectiveLateness | None:
        jitter = self.cluster.network.jitter_seconds
        num = len(self.members)
        return None if jitter is None or num == 1 else CollectiveLateness(num, jitter, (self.seed, *number))

    def ring(self, nbytes: int) -> float:
        """2(N−1) steps. In each step, every rank sends 1/N of the vector to the next rank."""
        num = len(self.members)
        return 2 * (num - 1) * self._seconds(self._ring, nbytes, num)

    def phases_of_ring(self) -> list[Phase]:
        """The steps of a ring."""
        num = len(self.members)
        return [((2 * (num - 1), self._ring, num),)]

    def late_ring(self, nbytes: int, late: CollectiveLateness) -> None:
        """Add the lateness of each rank at the end of a ring."""
        num = len(self.members)
        late.ring(2 * (num - 1), self._latency(self._ring, nbytes, num))

    def halving_doubling(self, nbytes: int) -> float:
        """Recursive halving, then doubling: log2(P) exchanges of 1/2, 1/4 … 1/P of the vector with partners 1, 2 … P/2 away, twice.

        P is the largest power of two up to N. Each of the N − P other ranks first sends its vector to a partner, and finally receives the
        sum from it. Rabenseifner 2004 (10.1007/978-3-540-24685-5_1).
        """
        exchanges, to_partner, back = self._exchanges
        total = self._seconds(to_partner, nbytes) + self._seconds(back, nbytes)
        for power, step in enumerate(exchanges, start=1):
            total += 2 * self._seconds(step, nbytes, 2**power)
        return total

    def phases_of_halving_doubling(self) -> list[Phase]:
        """The steps of halving and doubling."""
        exchanges, to_partner, back = self._exchanges
        halving: list[Phase] = [((1, step, 2**power),) for power, step in enumerate(exchanges, start=1)]
        return [((1, to_partner, 1),), *halving, *reversed(halving), ((1, back, 1),)]

    def late_halving_doubling(self, nbytes: int, late: CollectiveLateness) -> None:
        """Add the lateness of each rank at the end. Each of the N − P other ranks is as late as the sum that it receives."""
        exchanges, _, back = self._exchanges
        core = np.arange(2 ** len(exchanges))
        remaining = np.arange(len(core), len(self.members))
        late.send(remaining, remaining - len(core))
        powers = range(len(exchanges))
        for power in (*powers, *reversed(powers)):
            late.exchange(self._latency(exchanges[power], nbytes, 2 ** (power + 1)), core ^ 2**power)
        late.send(remaining - len(core), remaining)
        late.wait(core, self._seconds(back, nbytes))

    def two_level(self, nbytes: int) -> float:
        """Reduce-scatter around the ring of each rack, all-reduce among the racks, all-gather in each rack.

        A rack of m nodes takes m−1 steps of 1/m of the vector, before and after the all-reduce. Among R racks, M rings run at once, where M
        is the size of the smallest rack. Each ring carries 1/M of the vector in 2(R−1) steps of 1/(M·R).
        """
        within, num_rings, among = self._racks
        inside = max(((num - 1) * self._seconds(step, nbytes, num) for num, step in within), default=0.0)
        num_racks = len(self._by_rack)
        return 2 * inside + 2 * (num_racks - 1) * self._seconds(among, nbytes, num_racks * num_rings)

    def phases_of_two_level(self) -> list[Phase]:
        """The steps within all racks at once, among the racks, and within again."""
        within, num_rings, among = self._racks
        num_racks = len(self._by_rack)
        inside: Phase = tuple((num - 1, step, num) for num, step in within)
        return [inside, ((2 * (num_racks - 1), among, num_racks * num_rings),), inside]

    def late_two_level(self, nbytes: int, late: CollectiveLateness) -> None:
        """Add the lateness of each rank at the end.

        A rank of a faster rack can make up lateness before its ring among the racks. In a rack with more nodes than rings, all ranks wait
        for each other.
        """
        within, num_rings, among = self._racks
        place_of = {rank: place for place, rank in enumerate(self.members)}
        racks = [np.array([place_of[rank] for rank in rack]) for rack in self._by_rack]
        steps = {place: step for place, (_, step) in zip((k for k, rack in enumerate(racks) if len(rack) > 1), within, strict=True)}
        inside = max(((num - 1) * self._seconds(step, nbytes, num) for num, step in within), default=0.0)

        def around_racks() -> None:
            for place, rack in enumerate(racks):
                num, step = len(rack), steps.get(place, CollectiveStep())
                late.ring(num - 1, self._latency(step, nbytes, num), rack)
                late.wait(rack, inside - (num - 1) * self._seconds(step, nbytes, num))
                if num > num_rings:
                    late.barrier(rack)

        around_racks()
        latency = self._latency(among, nbytes, len(racks) * num_rings)
        for k in range(num_rings):
            late.ring(2 * (len(racks) - 1), latency, np.array([rack[k] for rack in racks]))
        for rack in racks:
            if len(rack) > num_rings:
                late.barrier(rack)
        around_racks()

    def tree(self, nbytes: int) -> float:
        """Chains inside the racks, and a double binary tree among them, in pipelined pieces: NCCL's tree.

        The first piece takes 2(m−1) steps inside the largest rack of m nodes, and 2·floor(log2 R) steps among R racks. All further pieces
        follow it at `TREE_EFFICIENCY` of the slowest link's rate. Through each link of a chain flow all bytes in both directions. Each tree
        carries half of the vector, and its inner racks are leaves of the other one: Sanders, Speck, Träff 2009
        (10.1016/j.parco.2009.09.001).
        """
        phases = [phase for phase in self.phases_of_tree() if phase]
        return sum(max(num_steps * self._seconds(step, nbytes, parts) for num_steps, step, parts in phase) for phase in phases)

    def phases_of_tree(self) -> list[Phase]:
        """The steps of the first piece without bytes, except the last of them, which has the bytes of the slowest link."""
        chains, among, num_rings = self._chains
        depth = len(self._by_rack).bit_length() - 1
        begins: Phase = tuple((2 * (num - 1) - (not depth), step, math.inf) for num, step in chains)
        flows: Phase = tuple((1, step, TREE_EFFICIENCY) for _, step in chains)
        if not depth:
            return [begins, flows]
        return [begins, ((2 * depth - 1, among, math.inf),), ((1, among, TREE_EFFICIENCY * 2 * num_rings), *flows)]

    def late_tree(self, nbytes: int, late: CollectiveLateness) -> None:
        """Add the lateness of each rank at the end. On the way up a rank waits for all ranks below it, on the way down for its parent."""
        place_of = {rank: place for place, rank in enumerate(self.members)}
        racks = [[place_of[rank] for rank in rack] for rack in self._by_rack]
        longest, num_rings = max(map(len, racks)), min(map(len, racks))
        links = [np.array([[rack[k], rack[k + 1]] for rack in racks if len(rack) > k + 1]).T for k in range(longest - 1)]
        for first, second in reversed(links):
            late.send(second, first)
        for rack in racks:
            late.barrier(np.array(rack))
        start, ends = late.seconds.copy(), [late.seconds]
        for k in range(num_rings):
            for tree in _double_tree(len(racks)):
                late.seconds = start.copy()
                edges = [(np.array([racks[child][k]]), np.array([racks[parent][k]])) for child, parent in tree]
                for child_place, parent_place in edges:
                    late.send(child_place, parent_place)
                for child_place, parent_place in reversed(edges):
                    late.send(parent_place, child_place)
                ends.append(late.seconds)
        late.seconds = np.maximum.reduce(ends)
        for rack in racks:
            late.barrier(np.array(rack))
        for first, second in links:
            late.send(first, second)

    @staticmethod
    def _seconds(step: CollectiveStep, nbytes: float, num_parts: float = 1) -> float:
        """Seconds of a step in which every message has `nbytes` / `num_parts` bytes."""
        return max((latency + nbytes / (num_parts * rate) for latency, rate in step.messages), default=0.0)

    @staticmethod
    def _latency(step: CollectiveStep, nbytes: float, num_parts: int = 1) -> float:
        """The latency of the slowest message of a step. A rank that has sent waits up to this long for the other message."""
        return max(((latency + nbytes / (num_parts * rate), latency) for latency, rate in step.messages), default=(0.0, 0.0))[1]

    def _step(self, messages: Iterable[tuple[int, int]], *, one_each: bool = True) -> CollectiveStep:
        """The step in which these (sender, receiver) pairs send at once. `one_each`: no rank sends or receives several messages."""
        cluster = self.cluster
        if self._alike and one_each:
            message = (cluster.network.latency_seconds, cluster.network.bytes_per_second)
            return CollectiveStep(frozenset([message] if any(True for _ in messages) else []))
        paths = [(cluster.path(*ends, divided=True), count) for ends, count in Counter(messages).items()]
        crossing = Counter(link for path, count in paths for link in count * path.links)
        rates = {link: cluster.capacity(link) / count for link, count in crossing.items()}
        bounds = [(path.latency_seconds, path.bytes_per_second / count, path.links) for path, count in paths]
        sent = frozenset((latency, min([bound, *(rates[link] for link in links)])) for latency, bound, links in bounds)
        if not self._changes:
            return CollectiveStep(sent)
        shares = {link: (rate, slowdown_of(cluster, link)) for link, rate in rates.items()}
        ways = ((latency, bound, tuple(shares[link] for link in links)) for latency, bound, links in bounds)
        return CollectiveStep(sent, frozenset(ways))

    @cached_property
    def _changes(self) -> bool:
        """Whether a link of a node or a rack changes over time, or a way between two racks."""
        network = self.cluster.network
        return changes([*self.cluster.nodes, *network.racks.values(), *network.between.values()])

    @cached_property
    def _alike(self) -> bool:
        """Whether all messages of all steps take the same time, because no two messages share a link or a network card."""
        cluster = self.cluster
        ends: list[NodeSpec | Rack] = [*cluster.nodes, *cluster.network.racks.values()]
        shared_cards = cluster.network.sharing != "none" and cluster.hosts
        return not (self._changes or has_links(ends) or shared_cards or cluster.network.between or any(end.latency_seconds for end in ends))

    @cached_property
    def _ring(self) -> CollectiveStep:
        return self._step(_around(self.members))

    @cached_property
    def _number(self) -> float:
        """Seconds of a step around the ring with eight bytes."""
        return self._seconds(self._ring, 8)

    @cached_property
    def _exchanges(self) -> tuple[list[CollectiveStep], CollectiveStep, CollectiveStep]:
        """The step for each power of two, and the steps in which the remaining ranks send their vectors and receive the sum."""
        power = len(self.members).bit_length() - 1
        core = self.members[: 2**power]
        exchanges = [self._step((rank, core[place ^ 2**k]) for place, rank in enumerate(core)) for k in range(power)]
        remaining = list(zip(self.members[2**power :], core, strict=False))
        return exchanges, self._step(remaining), self._step((partner, rank) for rank, partner in remaining)

    @cached_property
    def _by_rack(self) -> list[list[int]]:
        """The ranks of each rack. A node without a rack is alone."""
        racks: dict[str | int, list[int]] = {}
        for rank in self.members:
            rack = self.cluster.nodes[rank].rack
            racks.setdefault(rank if rack is None else rack, []).append(rank)
        return list(racks.values())

    @cached_property
    def _chains(self) -> tuple[list[tuple[int, CollectiveStep]], CollectiveStep, int]:
        """Each rack's size and step in both directions of its chain, the step among the racks, and its number of trees side by side."""
        racks = self._by_rack
        chains = [(len(rack), self._step(_both_ways(pairwise(rack)), one_each=False)) for rack in racks if len(rack) > 1]
        num_rings = min(map(len, racks))
        edges = [edge for tree in _double_tree(len(racks)) for edge in tree]
        among = [(racks[child][k], racks[parent][k]) for child, parent in edges for k in range(num_rings)]
        return chains, self._step(_both_ways(among), one_each=False), num_rings

    @cached_property
    def _racks(self) -> tuple[list[tuple[int, CollectiveStep]], int, CollectiveStep]:
        """Each rack's size and step, the number of rings among the racks, and their step."""
        racks = self._by_rack
        within = [(len(rack), self._step(_around(rack))) for rack in racks if len(rack) > 1]
        num_rings = min(map(len, racks))
        neighbours = [(rack[k], following[k]) for rack, following in _around(racks) for k in range(num_rings)]
        among = self._step(neighbours)
        return within, num_rings, among


def shared_collectives(cluster: Cluster, *, seed: int = 0) -> Collectives:
    """The collectives among all nodes: one object for clusters with one network that differ only in how fast their nodes compute."""
    if cluster.num_workers > MAX_SHARED_NODES:
        return Collectives(cluster, seed=seed)
    links = [
        (node.rack, node.host, node.latency_seconds, node.uplink_bytes_per_second, node.downlink_bytes_per_second) for node in cluster.nodes
    ]
    others = [(node.half_duplex, id(node.link_slowdown), node.overlap_seconds_per_byte) for node in cluster.nodes]
    key = (id(cluster.network), bool(cluster.hosts), cluster.network.jitter_seconds and seed, *links, *others)
    if key not in _shared:
        if len(_shared) == MAX_SHARED:
            del _shared[next(iter(_shared))]
        _shared[key] = Collectives(cluster, seed=seed)
    return _shared[key]


MAX_SHARED, MAX_SHARED_NODES = 256, 256
"""The maximum number of collectives that are kept, and of their nodes."""
_shared: dict[Any, Collectives] = {}
"""By what they depend on. They hold their cluster, so the identities of its parts are not used again."""

Late = Callable[[Collectives, int, CollectiveLateness], None]
ALGORITHMS: dict[str, tuple[Callable[[Collectives, int], float], Late, Callable[[Collectives], list[Phase]]]] = {
    "ring": (Collectives.ring, Collectives.late_ring, Collectives.phases_of_ring),
    "halving_doubling": (Collectives.halving_doubling, Collectives.late_halving_doubling, Collectives.phases_of_halving_doubling),
    "two_level": (Collectives.two_level, Collectives.late_two_level, Collectives.phases_of_two_level),
    "tree": (Collectives.tree, Collectives.late_tree, Collectives.phases_of_tree),
}
"""For each algorithm of `cluster.network.all_reduce`: functions for the seconds, the lateness, and the phases."""
AUTO, CHOICES = "auto", ("ring", "tree")
"""The value of `cluster.network.all_reduce` that chooses by the size, and the algorithms among which NCCL chooses, too."""


def _around(places: Sequence[T]) -> Iterable[tuple[T, T]]:
    """Pairs of each place and the next one. The last pair is the last and the first place."""
    yield from pairwise([*places, places[0]]) if len(places) > 1 else ()


def _both_ways(pairs: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    return [way for one, other in pairs for way in ((one, other), (other, one))]


def _double_tree(num: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The (child, parent) edges of two binary trees over `num` places, from the leaves up. Inner places of one are leaves of the other.

    In the first one, a place is a leaf if its number from 1 is odd. The second one is its mirror image, or is shifted if `num` is odd.
    """
    first: list[tuple[int, int]] = []
    for power in range(num.bit_length()):
        low = 2**power
        for place in range(low, num + 1, 2 * low):
            parent = place - low | 2 * low
            if parent > num:
                parent = place - low
            if parent:
                first.append((place - 1, parent - 1))
    moved = [num - 1 - place if num % 2 == 0 else (place + 1) % num for place in range(num)]
    return first, [(moved[child], moved[parent]) for child, parent in first]
