"""Racks of a cluster, and the ways between them. This module contains only data."""

from __future__ import annotations

from dataclasses import dataclass

from hetsim.cluster.network.link_slowdown import LinkSlowdown

Capacity = float | None
"""The bandwidth of a link, in bytes per second; None: the link is never the bottleneck."""


@dataclass(frozen=True, kw_only=True)
class Rack:
    """Nodes (and racks) at one switch. They share its link to other racks. A config may give only the uplink, for both directions."""

    uplink_bytes_per_second: Capacity = None
    downlink_bytes_per_second: Capacity = None
    half_duplex: bool = False
    link_slowdown: LinkSlowdown | None = None
    latency_seconds: float = 0.0
    message_bytes_per_second: Capacity = None
    """The maximum rate of one message through the link, such as that of one of several network cards. Collectives use all of them."""
    within: str | None = None
    """The rack that contains this one."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """The way between two racks, in either direction. Its values replace the network's for messages between these racks."""

    bytes_per_second: float | None = None
    """The maximum rate of one message. None: the network's rate."""
    latency_seconds: float | None = None
    """The latency of a message. None: the network's latency."""
    link_slowdown: LinkSlowdown | None = None
    """A factor that changes over time and divides the rate of each message."""


NOTHING = Between()
