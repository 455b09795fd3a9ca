"""What a collective takes, in closed form, from the last entry: the slowest participant and the slowest link decide each step.

In a step all participants send at once. Each link divides equally among the messages that pass it, so a step takes the largest
latency + nbytes / rate. Where all latencies are equal that is exactly the time of a step under max-min sharing. Steps follow each
other, everyone's at once: a ring whose nodes go on by themselves (`sim/ring.py`) may be faster where links are unequal, never slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from hetsim.cluster.model import Cluster, Node, Rack

T = TypeVar("T")


Step = frozenset[tuple[float, float]]
"""The distinct (latency, bytes per second) of the messages of one step."""


class Collectives:
    """Collectives among these ranks of a cluster; what depends on who takes part is found out once."""

    def __init__(self, cluster: Cluster, members: Sequence[int] | None = None) -> None:
        self.cluster = cluster
        self.members = tuple(range(cluster.num_workers)) if members is None else tuple(members)
        self._known: dict[float, float] = {}

    def all_reduce_seconds(self, nbytes: int) -> float:
        """The network's all-reduce of a vector of so many bytes; nothing for one participant."""
        if nbytes not in self._known:
            algorithm: Callable[[int], float] = getattr(self, self.cluster.network.all_reduce)
            self._known[nbytes] = algorithm(nbytes) if len(self.members) > 1 else 0.0
        return self._known[nbytes]

    def gather_seconds(self) -> float:
        """One number of eight bytes from everyone to everyone: N−1 steps around the ring."""
        return (len(self.members) - 1) * self._number

    def ring(self, nbytes: int) -> float:
        """2(N−1) steps, in each of which everyone sends 1/N of the vector to the next one."""
        num = len(self.members)
        return 2 * (num - 1) * self._seconds(self._ring, nbytes, num)

    def halving_doubling(self, nbytes: int) -> float:
        """Recursive halving, then doubling: log2(P) exchanges of 1/2, 1/4 … 1/P of the vector with partners 1, 2 … P/2 away, twice.

        P is the largest power of two in N; each of the N − P others first hands its vector to a partner and at the end gets
        the sum from it. Rabenseifner 2004 (10.1007/978-3-540-24685-5_1).
        """
        exchanges, there, back = self._exchanges
        total = self._seconds(there, nbytes) + self._seconds(back, nbytes)
        for power, step in enumerate(exchanges, start=1):
            total += 2 * self._seconds(step, nbytes, 2**power)
        return total

    def two_level(self, nbytes: int) -> float:
        """Reduce-scatter around the ring of each rack, all-reduce among the racks, all-gather in each rack.

        A rack of m nodes takes m−1 steps of 1/m of the vector, before and after. Among R racks, as many rings as the smallest
        rack has nodes, M, carry 1/M of the vector each, side by side: 2(R−1) steps of 1/(M·R).
        """
        within, num_rings, among = self._racks
        inside = max(((num - 1) * self._seconds(step, nbytes, num) for num, step in within), default=0.0)
        num_racks = len(self._by_rack)
        return 2 * inside + 2 * (num_racks - 1) * self._seconds(among, nbytes, num_racks * num_rings)

    @staticmethod
    def _seconds(step: Step, nbytes: float, parts: int = 1) -> float:
        """What a step takes in which everyone sends 1/parts of so many bytes."""
        return max((latency + nbytes / (parts * rate) for latency, rate in step), default=0.0)

    def _step(self, messages: Iterable[tuple[int, int]]) -> Step:
        """The step in which these (sender, receiver) are under way at once."""
        cluster = self.cluster
        if not cluster.shares_links and not self._latencies_differ:
            return frozenset([(cluster.network.latency_seconds, cluster.network.bytes_per_second)] if any(True for _ in messages) else [])
        paths = [cluster.path(sender, receiver) for sender, receiver in messages]
        passing = Counter(link for path in paths for link in path.links)
        rates = {link: cluster.capacity(link) / count for link, count in passing.items()}
        return frozenset((path.latency_seconds, min([path.bytes_per_second, *(rates[link] for link in path.links)])) for path in paths)

    @cached_property
    def _latencies_differ(self) -> bool:
        ends: list[Node | Rack] = [*self.cluster.nodes, *self.cluster.network.racks.values()]
        return any(end.latency_seconds for end in ends)

    @cached_property
    def _ring(self) -> Step:
        return self._step(_around(self.members))

    @cached_property
    def _number(self) -> float:
        """What it takes to hand eight bytes on around the ring."""
        return self._seconds(self._ring, 8)

    @cached_property
    def _exchanges(self) -> tuple[list[Step], Step, Step]:
        """The step of each power of two, and those in which who is left over hands its vector over and gets the sum."""
        power = len(self.members).bit_length() - 1
        core = self.members[: 2**power]
        exchanges = [self._step((rank, core[place ^ 2**k]) for place, rank in enumerate(core)) for k in range(power)]
        left_over = list(zip(self.members[2**power :], core, strict=False))
        return exchanges, self._step(left_over), self._step((partner, rank) for rank, partner in left_over)

    @cached_property
    def _by_rack(self) -> list[list[int]]:
        racks: dict[str | None, list[int]] = {}
        for rank in self.members:
            racks.setdefault(self.cluster.nodes[rank].rack, []).append(rank)
        return list(racks.values())

    @cached_property
    def _racks(self) -> tuple[list[tuple[int, Step]], int, Step]:
        """Each rack's size and step, how many rings go around the racks, and their step."""
        racks = self._by_rack
        within = [(len(rack), self._step(_around(rack))) for rack in racks if len(rack) > 1]
        num_rings = min(map(len, racks))
        among = self._step((one[k], other[k]) for one, other in _around(racks) for k in range(num_rings)) if len(racks) > 1 else frozenset()
        return within, num_rings, among


def _around(places: Sequence[T]) -> Iterable[tuple[T, T]]:
    """Everyone and the next one, the last and the first."""
    yield from pairwise([*places, places[0]]) if len(places) > 1 else ()
