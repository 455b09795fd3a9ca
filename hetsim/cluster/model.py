"""Nodes, links and faults in SI units: data only, read by both backends, for the simulator's times and for padding.

docs/reference/cluster.md has the equations and a picture of each part; `parse/` makes these objects from a config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from hetsim.cluster.distributions import Distribution
from hetsim.cluster.faults import Faults
from hetsim.cluster.hosts import CommunicationWork, Host, cold_after
from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.cluster.network.racks import NOTHING, Between, Capacity, Rack
from hetsim.cluster.validity import Calibration

MACHINE = "machine"
"""The prefix of the rack of a machine with several GPUs. The link of this rack is the machine's network card."""


@dataclass(frozen=True, kw_only=True)
class SlowSpells:
    """Slow spells of a node, caused by other programs: work takes `factor` times as long. A run starts with a fast spell."""

    factor: float
    seconds_between: Distribution
    seconds_lasting: Distribution


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One worker: a gradient of b samples takes (overhead_seconds + b · seconds_per_sample) · noise, or a measured time · noise.

    `table` contains measured (samples, seconds), rising in samples. Times are linear between points, constant below the first, and
    extrapolated from the last two. `slowdown` contains pairs (second, factor), the first at second 0. From each of these seconds on, all
    work takes `factor` times as long. Slowdowns and slow spells also act on work in progress. All times are for a whole core.
    """

    seconds_per_sample: float = 0.0
    overhead_seconds: float = 0.0
    table: tuple[tuple[int, float], ...] = ()
    loading: float = 0.0
    """The seconds in which its loader prepares a sample, beside the computing. A gradient takes at least those of all its samples."""
    seconds_per_update: float = 0.0
    seconds_per_local_update: float | None = None
    """The time of a local step's update; None: `seconds_per_update`."""
    noise: Distribution | None = None
    slow_spells: SlowSpells | None = None
    slowdown: tuple[tuple[float, float], ...] = ()
    slowdown_period_seconds: float | None = None
    """The period after which the slowdown repeats; None: the last factor holds to the end."""
    cpu_quota: float | None = None
    """The maximum share of one core, above 0 and at most 1; None: no quota."""
    cpu_quota_period_seconds: float | None = None
    """The period of the quota; None: a steady share."""
    cpu_quota_covers_messages: bool = False
    """Whether moving messages uses the quota too."""
    host: str | None = None
    """The machine whose cores the node shares; None: a machine of its own."""
    cold_seconds: float = 0.0
    """The maximum extra time of a gradient after a pause, because caches are cold."""
    cooling_seconds: float = math.inf
    """The time constant: the extra time after a pause of p seconds is cold_seconds · (1 − exp(−p / cooling_seconds))."""
    first_seconds: float = 0.0
    """The extra time of the first gradient of each number of samples, for which libraries prepare kernels."""
    program_seconds: float = 0.0
    """The seconds of the worker's own program. Each commit without a server costs them, or each message with weights from a server."""
    overlap_seconds_per_byte: float = 0.0
    """The time that each byte through the node's link takes from a gradient, if it is of a reduction beside this gradient."""
    max_samples: int | None = None
    """The largest share that fits into memory, in samples; None: no bound."""
    micro_batch: int | None = None
    """The samples of one pass. Larger shares take several passes, and their gradients are added up. None: one pass."""
    latency_seconds: float = 0.0
    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    half_duplex: bool = False
    """Whether sent and received messages share the uplink, as on a radio link."""
    link_slowdown: LinkSlowdown | None = None
    rack: str | None = None
    device: str | None = None
    """The device of the node's process in a real run; None: the config's `device`."""
    cost_per_hour: float = 0.0
    """The price of the node, in any currency. It does not affect times."""

    def cold(self, pause: float) -> float:
        """The extra seconds of a gradient that begins `pause` seconds after the end of the previous one."""
        return cold_after(pause, self.cold_seconds, self.cooling_seconds)

    def update_seconds(self, *, local: bool) -> float:
        """The seconds of an optimizer step on the whole node: of a local step, or of one that makes a version."""
        local_seconds = self.seconds_per_local_update if local else None
        return self.seconds_per_update if local_seconds is None else local_seconds

    @cached_property
    def on_its_share(self) -> NodeSpec:
        """An equally fast node without a quota: its gradients and updates take 1/cpu_quota times the described seconds.

        If the quota has periods, there is no such node, and this node is returned unchanged.
        """
        share = self.cpu_quota
        if share is None or self.cpu_quota_period_seconds is not None:
            return self
        return replace(
            self,
            seconds_per_sample=self.seconds_per_sample / share,
            overhead_seconds=self.overhead_seconds / share,
            table=tuple((samples, seconds / share) for samples, seconds in self.table),
            seconds_per_update=self.seconds_per_update / share,
            seconds_per_local_update=None if self.seconds_per_local_update is None else self.seconds_per_local_update / share,
            cpu_quota=None,
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Connects any two ranks. A message of n bytes takes latency_seconds + n / bytes_per_second if no link on its way is slower.

    Simultaneous messages over the same link share it max-min fairly, by their weights. Links belong to nodes, hosts, racks and the server.
    """

    latency_seconds: float
    bytes_per_second: float
    """The maximum rate of one message. If messages share network cards (`sharing`), it is also a card's bandwidth in each direction."""
    sharing: str = "max_min"
    """`max_min`: messages share the network cards of machines, too. `none`: messages share only links that the cluster describes."""
    jitter_seconds: Distribution | None = None
    """A random time that is added to the latency of each message, also in collectives."""
    sharing_noise: Distribution | None = None
    """The distribution of messages' weights when they share links. None: all weights are equal."""
    all_reduce: str = "ring"
    """The all-reduce algorithm: `ring`, `halving_doubling`, `two_level`, `tree`, or `auto`."""
    racks: Mapping[str, Rack] = field(default_factory=dict)
    between: Mapping[frozenset[int | str], Between] = field(default_factory=dict)
    """The ways between pairs of racks that have the same parent rack or none. A key contains both racks' names, such as "rack a"."""
    all_reduce_table: tuple[tuple[int, float], ...] = ()
    """Measured (bytes, seconds) of an all-reduce among all workers, interpolated linearly. It replaces the algorithm's times."""
    cpu: CommunicationWork | None = None
    """The CPU cost of moving bytes. None: free."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Applies one update at a time, each (seconds_per_update + nbytes · seconds_per_byte) · noise.

    Methods may also correct and add up gradients. Each operation on a whole vector adds `seconds_per_vector_operation`. With `shards` k,
    each of k machines holds 1/k of the weights. The version is the same on all of them. Each link of the server carries 1/k of the
    bytes, and an update takes 1/k of the time.
    """

    seconds_per_update: float = 0.0
    seconds_per_byte: float = 0.0
    seconds_per_vector_operation: float = 0.0
    noise: Distribution | None = None
    shards: int = 1
    latency_seconds: float = 0.0
    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    half_duplex: bool = False
    link_slowdown: LinkSlowdown | None = None
    rack: str | None = None
    device: str | None = None
    cpu_quota: float | None = None
    cpu_quota_period_seconds: float | None = None
    cpu_quota_covers_messages: bool = False
    host: str | None = None
    program_seconds: float = 0.0
    """The cost of the server's own program for each message with a vector that it receives."""
    assumed: frozenset[str] = frozenset()
    """The fields that a config of machines does not set."""

    def update_seconds(self, nbytes: float, operations: int = 0) -> float:
        """The seconds of an update with a gradient of `nbytes` bytes, made by so many operations on vectors, before noise."""
        share = 1.0 if self.cpu_quota is None or self.cpu_quota_period_seconds is not None else self.cpu_quota
        seconds = self.seconds_per_update + nbytes * self.seconds_per_byte + operations * self.seconds_per_vector_operation
        return seconds / self.shards / share


@dataclass(frozen=True)
class Path:
    """A message's path: its total latency, its maximum rate, and the links that it shares with other messages.

    A link is named by its direction and its owner: ("up", 3), ("down", "server"), ("down", "server of region 0"), ("up", "host lab"),
    ("up", "rack a"). If the rate from rank 0 to rank 3 between two racks changes over time, this pair has its own link ("over", "way 0 3").
    """

    latency_seconds: float
    bytes_per_second: float
    links: tuple[tuple[str, int | str], ...] = ()


class LinkEnd(NamedTuple):
    """A node, server, host or rack on a message's path: its links in both directions, if they limit messages, and its latency."""

    owner: int | str
    outwards: tuple[str, int | str] | None
    inwards: tuple[str, int | str] | None
    latency: float
    message_limit: float


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers 0 … N−1, the network between them, the server (rank N) of methods that have one, and faults."""

    name: str
    nodes: tuple[NodeSpec, ...]
    network: Network
    server: Server
    faults: Faults = field(default_factory=Faults)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    calibrated: Calibration | None = None
    """The calibration of measured times, which contains their range of validity. None: times were not measured."""

    @property
    def shares_cores(self) -> bool:
        """Whether any process shares the cores of a host or has a quota with periods, or messages take CPU-seconds."""
        ends: list[NodeSpec | Server] = [*self.nodes, self.server]
        return self.network.cpu is not None or any(end.host is not None or end.cpu_quota_period_seconds is not None for end in ends)

    @property
    def num_workers(self) -> int:
        """N."""
        return len(self.nodes)

    @property
    def cost_per_hour(self) -> float:
        """The price of all nodes together."""
        return math.fsum(node.cost_per_hour for node in self.nodes)

    @property
    def max_samples(self) -> tuple[int, ...] | None:
        """The samples that fit into the memory of each node; None if no node has a bound."""
        if all(node.max_samples is None for node in self.nodes):
            return None
        return tuple(2**62 if node.max_samples is None else node.max_samples for node in self.nodes)

    def capacity(self, link: tuple[str, int | str]) -> float:
        """The bandwidth of a link, in bytes per second: the described one, else the machine's network card, else infinite."""
        direction, owner = link
        card = math.inf if self.network.sharing == "none" else self.network.bytes_per_second
        end: NodeSpec | Rack | Server
        if isinstance(owner, int):
            end, times = self.nodes[owner], 1
        elif owner.startswith("server"):
            end, times = self.server, self.server.shards
        elif owner.startswith("host "):
            return card
        elif owner.startswith("way "):
            return self._rate(*map(int, owner.split()[1:]))
        else:
            end, times = self.network.racks[owner.removeprefix("rack ")], 1
        carries = end.uplink_bytes_per_second if direction == "up" else end.downlink_bytes_per_second
        if carries is None:  # switches have no card, and processes that share a host's cores share its card
            carries = math.inf if isinstance(end, Rack) or end.host is not None else card
        return carries * times

    @property
    def shares_links(self) -> bool:
        """Whether messages may slow each other down."""
        return self.network.sharing != "none" or self.describes_links

    @cached_property
    def describes_links(self) -> bool:
        """Whether the cluster describes a link of a node, a rack or the server, or a way between two racks that changes over time."""
        changing = any(way.link_slowdown is not None for way in self.network.between.values())
        return changing or has_links([*self.nodes, self.server, *self.network.racks.values()])

    @cached_property
    def region_racks(self) -> tuple[str | None, ...]:
        """The outermost rack of each node, without duplicates, in rank order; None stands for nodes without a rack."""
        return tuple(dict.fromkeys(self._outermost_rack(node) for node in self.nodes))

    @property
    def regions(self) -> tuple[int, ...]:
        """The number of each node's outermost rack."""
        number = {rack: place for place, rack in enumerate(self.region_racks)}
        return tuple(number[self._outermost_rack(node)] for node in self.nodes)

    def end(self, rank: int) -> NodeSpec | Server:
        """The node of a worker, or the server for a higher rank. Local servers equal the server, but are in their regions' racks."""
        return self.nodes[rank] if rank < self.num_workers else self.server

    def path(self, sender: int, receiver: int, *, divided: bool = False) -> Path:
        """The path from one rank to another. Rank N is the server, and higher ranks are local servers.

        `divided`: the message may use several network cards of a machine at once, as those of a collective do.
        """
        up, down = self._ends(sender, receiver)
        down = down[::-1]
        links = [*(end.outwards for end in up if end.outwards), *(end.inwards for end in down if end.inwards)]
        latency, rate = self.network.latency_seconds, self._rate(sender, receiver)
        way = self.between(sender, receiver)
        if way.latency_seconds is not None:
            latency = way.latency_seconds
        if way.link_slowdown is not None:
            links.append(("over", f"way {sender} {receiver}"))  # of these two alone, as it limits each message
            rate /= way.link_slowdown.least
        if self._limits_messages and not divided:
            rate = min([rate, *(end.message_limit for end in (*up, *down))])
        return Path(latency + sum([end.latency for end in (*up, *down)]), rate, tuple(links))

    def between(self, sender: int, receiver: int) -> Between:
        """The described way between the racks of two ranks. If the cluster describes none, the result has no values."""
        if not self.network.between:
            return NOTHING
        up, down = self._ends(sender, receiver)
        return self.network.between.get(frozenset((up[-1].owner, down[-1].owner)), NOTHING)

    def _rate(self, sender: int, receiver: int) -> float:
        """The highest rate of a message between two ranks, in bytes per second, before any slowdown."""
        rate = self.between(sender, receiver).bytes_per_second or self.network.bytes_per_second
        return rate * (self.server.shards if max(sender, receiver) >= self.num_workers else 1)

    def _ends(self, sender: int, receiver: int) -> tuple[list[LinkEnd], list[LinkEnd]]:
        """The ends on the sender's side, and those on the receiver's side, each from the inside out."""
        up, down = self._way_out(sender), self._way_out(receiver)
        while up[-1] == down[-1]:  # the message does not leave a rack that contains both
            up, down = up[:-1], down[:-1]
        return up, down

    def message_seconds(self, sender: int, receiver: int, nbytes: float) -> float:
        """The seconds from sending to delivery, for a message that shares no link, without jitter."""
        path = self.path(sender, receiver)
        return path.latency_seconds + nbytes / min([path.bytes_per_second, *map(self.capacity, path.links)])

    def _outermost_rack(self, node: NodeSpec) -> str | None:
        rack = node.rack
        while rack is not None and self.network.racks[rack].within is not None:
            rack = self.network.racks[rack].within
        return rack

    def _way_out(self, rank: int) -> list[LinkEnd]:
        """The ends from a rank to the outermost switch: the node or server, its host, and its racks from the inside out."""
        if rank in self._ways_out:
            return self._ways_out[rank]
        region = rank - self.num_workers - 1
        if region < 0:
            end = self.end(rank)
            owners: list[int | str] = ["server" if rank == self.num_workers else rank]
            owners += [] if end.host is None else [f"host {end.host}"]
            rack = end.rack
        else:  # where `coordination.num_regions` makes the regions, there are no racks
            owners = [f"server of region {region}"]
            rack = self.region_racks[region] if region < len(self.region_racks) else None
        while rack is not None:
            owners.append(f"rack {rack}")
            rack = self.network.racks[rack].within
        return self._ways_out.setdefault(rank, [*map(self._link_end, owners)])

    @cached_property
    def _ways_out(self) -> dict[int, list[LinkEnd]]:
        """By rank, `_way_out` so far."""
        return {}

    def _link_end(self, owner: int | str) -> LinkEnd:
        out, into = [link if self.capacity(link) < math.inf else None for link in (("up", owner), (self._inwards(owner), owner))]
        return LinkEnd(owner, out, into, self._latency(owner), self._message_limit(owner))

    def _inwards(self, end: int | str) -> str:
        """The direction of the link by which a message reaches its owner. It is "up" for half-duplex owners, which have one link."""
        owner: NodeSpec | Server | Rack | None
        if isinstance(end, int):
            owner = self.nodes[end]
        else:
            owner = self.server if end.startswith("server") else self.network.racks.get(end.removeprefix("rack "))
        return "up" if owner is not None and owner.half_duplex else "down"

    @cached_property
    def _limits_messages(self) -> bool:
        return any(rack.message_bytes_per_second is not None for rack in self.network.racks.values())

    def _message_limit(self, end: int | str) -> float:
        rack = self.network.racks.get(end.removeprefix("rack ")) if isinstance(end, str) else None
        return math.inf if rack is None or rack.message_bytes_per_second is None else rack.message_bytes_per_second

    def _latency(self, end: int | str) -> float:
        if isinstance(end, int):
            return self.nodes[end].latency_seconds
        if end.startswith("host "):
            return 0.0
        return self.server.latency_seconds if end.startswith("server") else self.network.racks[end.removeprefix("rack ")].latency_seconds


def has_links(ends: Iterable[NodeSpec | Rack | Server]) -> bool:
    """Whether any of these nodes, racks or servers has a described link."""
    return any(end.uplink_bytes_per_second is not None or end.downlink_bytes_per_second is not None for end in ends)
