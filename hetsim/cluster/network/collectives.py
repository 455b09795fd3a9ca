"""The seconds of a collective in closed form, from the entry of the last rank: the slowest message decides each step.

In a step all participants send at once. Each link is divided equally among the messages that cross it, so a step takes the
largest latency + nbytes / rate. With equal latencies, this is exactly the step's time under max-min sharing. A step begins when the
previous step is complete on all ranks. A ring in which each rank continues by itself (`tests/rings.py`) may be faster on unequal
links, but never slower. If messages have a jitter, the added time is computed rank by rank (`lateness.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from hetsim.cluster.compute_times import interpolate
from hetsim.cluster.model import Cluster, NodeSpec, has_links
from hetsim.cluster.network.changing import changes, slowdown_of
from hetsim.cluster.network.lateness import CollectiveLateness
from hetsim.cluster.network.link_slowdown import Way, way_seconds
from hetsim.cluster.network.racks import Rack

T = TypeVar("T")


@dataclass(frozen=True)
class CollectiveStep:
    """The distinct (latency in seconds, bytes per second) of a step's messages, and the messages' ways if links change over time."""

    messages: frozenset[tuple[float, float]] = frozenset()
    ways: frozenset[Way] = frozenset()


Phase = tuple[tuple[int, CollectiveStep, int], ...]
"""Simultaneous sequences of equal steps, each as (number of steps, step, parts): a message contains 1/parts of the vector."""


class Collectives:
    """Collectives among these ranks of a cluster. Values that depend only on the ranks are computed once."""

    def __init__(self, cluster: Cluster, members: Sequence[int] | None = None, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.members = tuple(range(cluster.num_workers)) if members is None else tuple(members)
        self.seed = seed
        self._cached_seconds: dict[float, float] = {}

    def all_reduce_seconds(self, nbytes: int, number: Sequence[int] = (), begins: float = 0.0) -> float:
        """Seconds of the network's all-reduce of a vector of `nbytes` bytes; zero for one participant.

        `number` identifies the collective within the run, and determines the jitters of its messages. If links change over time, the
        result depends on `begins`, the second at which the collective begins.
        """
        network = self.cluster.network
        if self._changes and len(self.members) > 1:
            self._cached_seconds[nbytes] = self._changing_seconds(ALGORITHMS[network.all_reduce][2](self), nbytes, begins)
        elif nbytes not in self._cached_seconds:
            if network.all_reduce_table:
                self._cached_seconds[nbytes] = interpolate(network.all_reduce_table, nbytes)
            else:
                self._cached_seconds[nbytes] = ALGORITHMS[network.all_reduce][0](self, nbytes) if len(self.members) > 1 else 0.0
        late = self._lateness(number)
        if late is None:
            return self._cached_seconds[nbytes]
        ALGORITHMS[network.all_reduce][1](self, nbytes, late)
        return self._cached_seconds[nbytes] + late.last

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

    @staticmethod
    def _seconds(step: CollectiveStep, nbytes: float, num_parts: int = 1) -> float:
        """Seconds of a step in which every message has `nbytes` / `num_parts` bytes."""
        return max((latency + nbytes / (num_parts * rate) for latency, rate in step.messages), default=0.0)

    @staticmethod
    def _latency(step: CollectiveStep, nbytes: float, num_parts: int = 1) -> float:
        """The latency of the slowest message of a step. A rank that has sent waits up to this long for the other message."""
        return max(((latency + nbytes / (num_parts * rate), latency) for latency, rate in step.messages), default=(0.0, 0.0))[1]

    def _step(self, messages: Iterable[tuple[int, int]]) -> CollectiveStep:
        """The step in which these (sender, receiver) pairs send at once."""
        cluster = self.cluster
        if self._alike:
            message = (cluster.network.latency_seconds, cluster.network.bytes_per_second)
            return CollectiveStep(frozenset([message] if any(True for _ in messages) else []))
        paths = [cluster.path(sender, receiver) for sender, receiver in messages]
        crossing = Counter(link for path in paths for link in path.links)
        rates = {link: cluster.capacity(link) / count for link, count in crossing.items()}
        sent = frozenset((path.latency_seconds, min([path.bytes_per_second, *(rates[link] for link in path.links)])) for path in paths)
        if not self._changes:
            return CollectiveStep(sent)
        shares = {link: (rate, slowdown_of(cluster, link)) for link, rate in rates.items()}
        ways = ((path.latency_seconds, path.bytes_per_second, tuple(shares[link] for link in path.links)) for path in paths)
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
        racks: dict[str | None, list[int]] = {}
        for rank in self.members:
            racks.setdefault(self.cluster.nodes[rank].rack, []).append(rank)
        return list(racks.values())

    @cached_property
    def _racks(self) -> tuple[list[tuple[int, CollectiveStep]], int, CollectiveStep]:
        """Each rack's size and step, the number of rings among the racks, and their step."""
        racks = self._by_rack
        within = [(len(rack), self._step(_around(rack))) for rack in racks if len(rack) > 1]
        num_rings = min(map(len, racks))
        neighbours = [(rack[k], following[k]) for rack, following in _around(racks) for k in range(num_rings)]
        among = self._step(neighbours)
        return within, num_rings, among


Late = Callable[[Collectives, int, CollectiveLateness], None]
ALGORITHMS: dict[str, tuple[Callable[[Collectives, int], float], Late, Callable[[Collectives], list[Phase]]]] = {
    "ring": (Collectives.ring, Collectives.late_ring, Collectives.phases_of_ring),
    "halving_doubling": (Collectives.halving_doubling, Collectives.late_halving_doubling, Collectives.phases_of_halving_doubling),
    "two_level": (Collectives.two_level, Collectives.late_two_level, Collectives.phases_of_two_level),
}
"""For each value of `cluster.network.all_reduce`: functions for the seconds, the lateness, and the phases."""


def _around(places: Sequence[T]) -> Iterable[tuple[T, T]]:
    """Pairs of each place and the next one. The last pair is the last and the first place."""
    yield from pairwise([*places, places[0]]) if len(places) > 1 else ()
