"""When nodes are absent or stopped. This module contains only data; `outages.py` draws the crashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetsim.cluster.distributions import Distribution


@dataclass(frozen=True, kw_only=True)
class Outages:
    """When a node is absent: `scheduled` outages (from, until) in seconds, in order, followed by crashes at random times."""

    scheduled: tuple[tuple[float, float], ...] = ()
    seconds_to_crash: Distribution | None = None
    seconds_to_repair: Distribution | None = None
    """The time from a crash to the node's return. None: the node does not return."""
    hangs: frozenset[float] = frozenset()
    """The start times of outages in which the process hangs instead of ending. It then sends no heartbeats."""


@dataclass(frozen=True, kw_only=True)
class WeightCheckpoints:
    """How often the training saves its weights, and the times of saving and of a restart, when no node has the weights any more."""

    every: float
    """Seconds from the end of a checkpoint, or from a restart, to the next checkpoint. It begins at the first version after them."""
    seconds: float = 0.0
    """The seconds of a checkpoint. All workers wait for its end."""
    restart_seconds: float = 0.0
    """The seconds from the last node's return to the restart from the checkpoint, in addition to a regroup."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """When nodes are absent, how long detection takes, and how long a regroup takes."""

    detection_seconds: float = 0.0
    regroup_seconds: float = 0.0
    nodes: Mapping[int, Outages] = field(default_factory=dict)
    lost_after_seconds: float = 10.0
    """The seconds without a sign of life after which a node counts as lost."""
    pauses: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """Short stops (from, until) of each node in seconds, in order. During a stop, the node computes nothing, but does not count as lost."""

    checkpoint: WeightCheckpoints | None = None
    """None: a restart begins at the first version."""

    def detection_of(self, rank: int, start: float) -> float:
        """The seconds from the start of an outage until the other ranks detect it."""
        return self.lost_after_seconds if start in self.nodes[rank].hangs else self.detection_seconds
