"""Make links, racks and a server from `cluster.network` and `cluster.server`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hetsim import checks
from hetsim.cluster.model import Network, NodeSpec, Server
from hetsim.cluster.network.collectives import ALGORITHMS, AUTO
from hetsim.cluster.network.racks import NOTHING, Between, Rack
from hetsim.cluster.parse import values
from hetsim.cluster.parse.hosts import CPU, parse_communication, parse_cpu
from hetsim.cluster.parse.nodes import CHANGES, parse_link_slowdown
from hetsim.cluster.parse.values import LINKS

OF_RACK = ("oversubscription", "half_duplex", "latency_seconds", "message_bytes_per_second", "within", *CHANGES)
"""The keys of a rack besides its links."""
OF_SERVER = (
    *("seconds_per_update", "seconds_per_byte", "seconds_per_vector_operation", "noise", "shards", "latency_seconds"),
    *(*LINKS, *CHANGES, "half_duplex", "rack", "device", *CPU),
)
EXAMPLE = "1 Gbit/s or {latency_seconds: 50 us, bytes_per_second: 1 Gbit/s}"
LATENCY = 50e-6
"""The default latency of a network, in seconds."""
SHARING = "max_min"
"""The default of a network's `sharing`."""


def network_mapping(network: Any) -> Any:
    """The network as a mapping. A rate alone becomes a mapping, and so does that of several cards."""
    is_rate = isinstance(network, str | int | float) or (isinstance(network, Mapping) and "cards" in network)
    return {"bytes_per_second": network} if is_rate else network


def parse_network(config: Any) -> Network:
    """The network without its racks and the ways between them. Raises ValueError if it is invalid."""
    required = ("bytes_per_second",)
    timing = ("latency_seconds", "jitter_seconds", "sharing", "sharing_noise", "cpu", *LINKS)
    optional = (*timing, "all_reduce", "all_reduce_table", "racks", "between")
    entry = checks.mapping("cluster.network", config, required=required, optional=optional, example=EXAMPLE)
    table = entry.get("all_reduce_table")
    sharing = SHARING if entry.get("sharing") is None else entry["sharing"]
    algorithm = "ring" if entry.get("all_reduce") is None else entry["all_reduce"]
    return Network(
        latency_seconds=values.number("cluster.network", entry, "latency_seconds", LATENCY),
        bytes_per_second=values.rate("cluster.network.bytes_per_second", entry["bytes_per_second"]),
        sharing=checks.choice("cluster.network.sharing", sharing, ("max_min", "none")),
        jitter_seconds=values.distribution("cluster.network", entry, "jitter_seconds"),
        sharing_noise=values.distribution("cluster.network", entry, "sharing_noise"),
        all_reduce=checks.choice("cluster.network.all_reduce", algorithm, (*ALGORITHMS, AUTO)),
        all_reduce_table=() if table is None else values.table("cluster.network.all_reduce_table", table, of="bytes"),
        cpu=parse_communication(entry.get("cpu")),
    )


def parse_server(config: Any) -> Server:
    """The server that `cluster.server` describes. Raises ValueError if it is invalid."""
    key = "cluster.server"
    optional = (*OF_SERVER[1:], "network")
    entry = values.expand_network(
        key, checks.mapping(key, config, required=OF_SERVER[:1], optional=optional, example="{seconds_per_update: 1 ms}")
    )
    return Server(
        seconds_per_update=checks.seconds(f"{key}.seconds_per_update", entry["seconds_per_update"], zero=True),
        seconds_per_byte=values.number(key, entry, "seconds_per_byte"),
        seconds_per_vector_operation=values.number(key, entry, "seconds_per_vector_operation"),
        noise=values.distribution(key, entry, "noise"),
        shards=checks.whole(f"{key}.shards", 1 if entry.get("shards") is None else entry["shards"]),
        latency_seconds=values.number(key, entry, "latency_seconds"),
        uplink_bytes_per_second=values.number(key, entry, LINKS[0], None),
        downlink_bytes_per_second=values.number(key, entry, LINKS[1], None),
        half_duplex=values.flag(key, entry, "half_duplex"),
        link_slowdown=parse_link_slowdown(key, entry),
        rack=None if entry.get("rack") is None else str(entry["rack"]),
        device=None if entry.get("device") is None else checks.device("cluster.server.device", entry["device"]),
        **parse_cpu(key, entry),
    )


def parse_racks(config: Any, nodes: Sequence[NodeSpec], server: Server, card: float | None) -> dict[str, Rack]:
    """Racks by name. Raises ValueError for an empty, undescribed or cyclic rack. `card` is the bandwidth of a node's network card."""
    key = "cluster.network.racks"
    config = {} if config is None else config
    if not isinstance(config, Mapping):
        raise ValueError(f"{key} must be a mapping from names to racks, such as {{a: {{uplink_bytes_per_second: 1e9}}}}, not {config!r}")
    entries = {str(name): checks.mapping(f"{key}.{name}", entry or {}, optional=(*LINKS, *OF_RACK)) for name, entry in config.items()}
    inside = {name: None if entry.get("within") is None else str(entry["within"]) for name, entry in entries.items()}
    used = [*((f"node {rank}", node.rack) for rank, node in enumerate(nodes)), ("the server", server.rack)]
    used += [(f"{key}.{name}", within) for name, within in inside.items()]
    for label, rack in used:
        if rack is not None and rack not in entries:
            raise ValueError(f"{label} is in rack {rack!r}, which {key} does not describe: add it there{checks.suggestion(rack, entries)}")
    for name in entries:
        way, at = [name], inside[name]
        while at is not None:
            if at in way:
                raise ValueError(f"{key} has a circle, {' in '.join([*way, at])}: leave out the within of one of them")
            way.append(at)
            at = inside[at]
    occupied = {rack for _, rack in used if rack is not None}
    for name in entries:
        if name not in occupied:
            raise ValueError(f"{key}.{name} has nothing in it: give rows of cluster.nodes rack: {name}, or leave it out")
    members: dict[str, list[NodeSpec]] = {name: [] for name in entries}
    for node in nodes:
        for rack in _outwards(node.rack, inside):
            members[rack].append(node)
    return {name: _parse_rack(f"{key}.{name}", entry, members[name], card) for name, entry in entries.items()}


def parse_between(config: Any, racks: Mapping[str, Rack]) -> dict[frozenset[int | str], Between]:
    """The ways by pairs of racks. Raises ValueError for undescribed racks, racks that are no neighbours, and repeated pairs."""
    key, ways = "cluster.network.between", {}
    for place, value in enumerate(
        values.sequence(key, [] if config is None else config, "ways such as {racks: [a, b], bytes_per_second: 1e8}")
    ):
        row = f"{key}.{place}"
        entry = checks.mapping(row, value, required=("racks",), optional=("bytes_per_second", "latency_seconds", *CHANGES))
        names = [str(name) for name in values.sequence(f"{row}.racks", entry["racks"], "two racks")]
        if len(names) != 2 or names[0] == names[1]:
            raise ValueError(f"{row}.racks must be two racks, such as [a, b], not {entry['racks']!r}")
        for name in names:
            if name not in racks:
                raise ValueError(
                    f"{row} names rack {name!r}, which cluster.network.racks does not describe{checks.suggestion(name, racks)}"
                )
        if racks[names[0]].within != racks[names[1]].within:
            raise ValueError(f"{row}.racks are within different racks, {' and '.join(names)}: give the way between the outer ones")
        pair: frozenset[int | str] = frozenset(f"rack {name}" for name in names)
        if pair in ways:
            raise ValueError(f"{key} has the way between {' and '.join(names)} twice: leave one of them out")
        rate = None if entry.get("bytes_per_second") is None else values.rate(f"{row}.bytes_per_second", entry["bytes_per_second"])
        latency = values.number(row, entry, "latency_seconds", None)
        ways[pair] = Between(bytes_per_second=rate, latency_seconds=latency, link_slowdown=parse_link_slowdown(row, entry))
        if ways[pair] == NOTHING:
            raise ValueError(f"{row} describes nothing: give bytes_per_second, latency_seconds or link_slowdown")
    return ways


def _outwards(rack: str | None, inside: Mapping[str, str | None]) -> Iterator[str]:
    """This rack and the racks that contain it, from the inside out."""
    while rack is not None:
        yield rack
        rack = inside[rack]


def _parse_rack(key: str, entry: Mapping[str, Any], members: Sequence[NodeSpec], card: float | None) -> Rack:
    """A rack. With `oversubscription` k, its link carries 1/k of the sum over its nodes' links."""
    carries = {name: values.number(key, entry, name, None) for name in LINKS}
    if entry.get("oversubscription") is not None:
        times = checks.number(f"{key}.oversubscription", entry["oversubscription"])
        if any(carries.values()):
            raise ValueError(f"{key} has an oversubscription and a link of its own: leave one of them out")
        for name in LINKS:
            links = [link for node in members if (link := getattr(node, name) or card) is not None]
            if not links or len(links) < len(members):
                raise ValueError(f"{key}.oversubscription needs {name} of each of its nodes: add cluster.network.{name}")
            carries[name] = math.fsum(links) / times
    if carries[LINKS[1]] is None:
        carries[LINKS[1]] = carries[LINKS[0]]
    within = None if entry.get("within") is None else str(entry["within"])
    limit = entry.get("message_bytes_per_second")
    return Rack(
        **carries,
        half_duplex=values.flag(key, entry, "half_duplex"),
        link_slowdown=parse_link_slowdown(key, entry),
        latency_seconds=values.number(key, entry, "latency_seconds"),
        message_bytes_per_second=None if limit is None else values.rate(f"{key}.message_bytes_per_second", limit),
        within=within,
    )
