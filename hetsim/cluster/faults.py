"""When nodes are absent or stopped: data only; `outages.py` draws the crashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetsim.cluster.distributions import Distribution


@dataclass(frozen=True, kw_only=True)
class Outages:
    """When a node is absent: the `scheduled` (from, until) in seconds, in order, and after them crashes with drawn times between them."""

    scheduled: tuple[tuple[float, float], ...] = ()
    seconds_to_crash: Distribution | None = None
    seconds_to_repair: Distribution | None = None
    """None: it does not return."""
    hangs: frozenset[float] = frozenset()
    """The beginnings of those outages in which its process is stopped, and gives no sign of life, rather than ended."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Which nodes are absent when, seconds until the others know it, and seconds that a regroup costs."""

    detection_seconds: float = 0.0
    regroup_seconds: float = 0.0
    nodes: Mapping[int, Outages] = field(default_factory=dict)
    lost_after_seconds: float = 10.0
    """Until a node that gives no sign of life counts as lost."""
    pauses: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """(from, until) in seconds, in order, at which a node is stopped for less than that, and only computes nothing."""

    def detection_of(self, rank: int, start: float) -> float:
        """Seconds from the beginning of an outage until the others know it."""
        return self.lost_after_seconds if start in self.nodes[rank].hangs else self.detection_seconds
