"""Racks of a cluster, and the ways between them: data only."""

from __future__ import annotations

from dataclasses import dataclass

from hetsim.cluster.link_slowdown import LinkSlowdown

Capacity = float | None
"""The bandwidth of a link, in bytes per second; None: the link is never the bottleneck."""


@dataclass(frozen=True, kw_only=True)
class Rack:
    """Nodes (and racks) at one switch. They share its link to the rest. A config may give only the uplink, for both directions."""

    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    half_duplex: bool = False
    link_slowdown: LinkSlowdown | None = None
    latency_seconds: float = 0.0
    within: str | None = None
    """The rack that contains this one."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """The path between two racks, in either direction. Its numbers replace the network's for messages between these racks."""

    bytes_per_second: float | None = None
    """The most that one message gets. None: as the network's."""
    latency_seconds: float | None = None
    """None: as the network's."""
    link_slowdown: LinkSlowdown | None = None
    """Divides the rate of each message over time."""


NOTHING = Between()
