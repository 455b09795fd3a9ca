"""Nodes, links and faults in SI units: data only, read by both backends. The simulator takes its times from here, and padding too.

docs/cluster.md has the equations and a picture of each part; `description.py` makes these objects from a config.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hetsim.cluster.distributions import Distribution

Capacity = float | None
"""What a link carries, in bytes per second; None: it is never the narrowest."""


@dataclass(frozen=True, kw_only=True)
class SlowSpells:
    """A node shared with others: work takes `factor` times as long in spells that come and go, the first one behind a fast time."""

    factor: float
    seconds_between: Distribution
    seconds_lasting: Distribution


@dataclass(frozen=True, kw_only=True)
class Node:
    """One worker: a gradient of b samples takes (overhead_seconds + b · seconds_per_sample) · noise, or what a table says · noise.

    `table` has measured (samples, seconds), rising in samples: linear in between, constant below the first, and going on as
    between the last two behind the last. `slowdown` has (seconds, factor) from 0 on: from then on all work takes `factor`
    times as long. Both that and slow spells act on work in progress.
    """

    seconds_per_sample: float = 0.0
    overhead_seconds: float = 0.0
    table: tuple[tuple[int, float], ...] = ()
    seconds_per_update: float = 0.0
    noise: Distribution | None = None
    slow_spells: SlowSpells | None = None
    slowdown: tuple[tuple[float, float], ...] = ()
    max_samples: int | None = None
    """What fits into its memory at once."""
    latency_seconds: float = 0.0
    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    rack: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rack:
    """Nodes (and racks) behind one switch, whose link to the rest they share; a config may give its uplink alone, for both directions."""

    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    latency_seconds: float = 0.0
    within: str | None = None
    """The rack that this one stands in."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What lies between any two: a message of n bytes takes latency_seconds + n / bytes_per_second where no link is narrower.

    Each link that a node, a rack or the server describes is shared max-min fairly by the messages that pass it at the same time.
    """

    latency_seconds: float
    bytes_per_second: float
    """The most that one message gets."""
    jitter_seconds: Distribution | None = None
    """On top of each message's latency; collectives know none."""
    all_reduce: str = "ring"
    """ring, halving_doubling or two_level."""
    racks: Mapping[str, Rack] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Server:
    """Applies one update at a time, each (seconds_per_update + nbytes · seconds_per_byte) · noise.

    With `shards` k, k machines have a part of the weights each, under one logical version: that divides an update's time, and
    the bytes that each of the server's links carries, by k.
    """

    seconds_per_update: float = 0.0
    seconds_per_byte: float = 0.0
    noise: Distribution | None = None
    shards: int = 1
    latency_seconds: float = 0.0
    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    rack: str | None = None

    def update_seconds(self, nbytes: float) -> float:
        """Before noise."""
        return (self.seconds_per_update + nbytes * self.seconds_per_byte) / self.shards


@dataclass(frozen=True, kw_only=True)
class Outages:
    """When a node is not there: `scheduled` (from, until) in seconds, in order, and behind them crashes by law, again and again."""

    scheduled: tuple[tuple[float, float], ...] = ()
    seconds_to_crash: Distribution | None = None
    seconds_to_repair: Distribution | None = None
    """None: it stays away."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Which nodes are not there when, how soon the others know it, and what a new beginning without them costs them."""

    detection_seconds: float = 0.0
    regroup_seconds: float = 0.0
    nodes: Mapping[int, Outages] = field(default_factory=dict)


@dataclass(frozen=True)
class Path:
    """What a message passes: latency in all, the most that one message gets, and the links that it shares with others.

    A link is named by its direction and by whose it is: ("up", 3), ("down", "server"), ("up", "rack a").
    """

    latency_seconds: float
    bytes_per_second: float
    links: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers 0 … N−1, the network between them, the server of the methods that have one (rank N), and faults."""

    name: str
    nodes: tuple[Node, ...]
    network: Network
    server: Server
    faults: Faults = field(default_factory=Faults)

    @property
    def num_workers(self) -> int:
        """N."""
        return len(self.nodes)

    @property
    def max_samples(self) -> tuple[int, ...] | None:
        """What fits into each node's memory, in samples; None where no node has a bound."""
        if all(node.max_samples is None for node in self.nodes):
            return None
        return tuple(2**62 if node.max_samples is None else node.max_samples for node in self.nodes)

    def capacity(self, link: tuple[str, int | str]) -> float:
        """What a link carries, in bytes per second."""
        direction, whose = link
        end: Node | Rack | Server
        if isinstance(whose, int):
            end, times = self.nodes[whose], 1
        elif whose == "server":
            end, times = self.server, self.server.shards
        else:
            end, times = self.network.racks[whose.removeprefix("rack ")], 1
        carries = end.uplink_bytes_per_second if direction == "up" else end.downlink_bytes_per_second
        return math.inf if carries is None else carries * times

    @cached_property
    def shares_links(self) -> bool:
        """Whether any link is described, so that messages may be in each other's way."""
        ends: list[Node | Rack | Server] = [*self.nodes, self.server, *self.network.racks.values()]
        return any(end.uplink_bytes_per_second is not None or end.downlink_bytes_per_second is not None for end in ends)

    def path(self, sender: int, receiver: int) -> Path:
        """From one rank to another; rank N is the server."""
        up, down = self._way_out(sender), self._way_out(receiver)
        while up[-1] == down[-1]:  # a rack that both stand in is not left
            up, down = up[:-1], down[:-1]
        shards = self.server.shards if self.num_workers in (sender, receiver) else 1
        ends = [*(("up", end) for end in up), *(("down", end) for end in reversed(down))]
        return Path(
            latency_seconds=self.network.latency_seconds + sum(self._latency(end) for _, end in ends),
            bytes_per_second=self.network.bytes_per_second * shards,
            links=tuple(link for link in ends if self.capacity(link) < math.inf),
        )

    def message_seconds(self, sender: int, receiver: int, nbytes: float) -> float:
        """From hand-over to delivery of a message that has its way for itself, without jitter."""
        path = self.path(sender, receiver)
        return path.latency_seconds + nbytes / min([path.bytes_per_second, *map(self.capacity, path.links)])

    def _way_out(self, rank: int) -> list[int | str]:
        """Whose links a message passes on its way out of everything: the node's own first, then from rack to rack."""
        way: list[int | str] = ["server" if rank == self.num_workers else rank]
        rack = self.server.rack if rank == self.num_workers else self.nodes[rank].rack
        while rack is not None:
            way.append(f"rack {rack}")
            rack = self.network.racks[rack].within
        return way

    def _latency(self, end: int | str) -> float:
        if isinstance(end, int):
            return self.nodes[end].latency_seconds
        return self.server.latency_seconds if end == "server" else self.network.racks[end.removeprefix("rack ")].latency_seconds
