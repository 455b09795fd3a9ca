"""What the processes of a run have to know beside the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Emulation = Literal["pad", "quota", "none"]

NEEDS_ONE_CLOCK = "backend.emulate=pad needs one clock, so all processes on one host: use backend.emulate=none across hosts"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of `backend`, with what stood for null resolved."""

    interface: str
    """The network interface that gloo binds to."""
    emulate: Emulation
    """pad: results are held until they are due. quota: each worker gets its share of a core. none: neither."""
    reduction: str = "ordered"
    """How an all-reduce adds up: "ordered", by rank as the simulator does, or "native", as the library does."""
    micro_batch: int | None = None
    """The most samples of a gradient between two looks at whether it is given up; None: it is computed to its end."""
    heartbeat_seconds: float = 0.5
    """Between two signs of life of a rank."""
    lost_after_seconds: float = 10.0
    """Without one, after which a rank counts as lost."""
    one_host: bool = True
    """Whether all processes are known to be on one host, and so to share its clock; if not, they find out."""
