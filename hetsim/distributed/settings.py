"""The settings of a run's processes besides the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Emulation = Literal["pad", "quota", "none"]

NEEDS_ONE_CLOCK = "backend.emulate=pad needs one clock, so all processes on one host: use backend.emulate=none across hosts"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of `backend`, with nulls resolved."""

    interface: str
    """The network interface that gloo binds to."""
    emulate: Emulation
    """pad: results are held until they are due. quota: each worker gets its share of a core. none: neither."""
    reduction: str = "ordered"
    """The order of sums in an all-reduce: "ordered" by rank, as in the simulator, or "native", as in the library."""
    micro_batch: int | None = None
    """The maximum number of a gradient's samples between two checks whether it is given up; None: it is computed to its end."""
    heartbeat_seconds: float = 0.5
    """The interval of a rank's heartbeats."""
    lost_after_seconds: float = 10.0
    """The time without a heartbeat after which a rank counts as lost."""
    one_host: bool = True
    """Whether all processes are known to share a host and its clock. If not, they find out."""
