"""What the processes of a run have to know beside the experiment."""

from __future__ import annotations

from dataclasses import dataclass

NEEDS_ONE_CLOCK = "backend.emulate=pad needs one clock, so all processes on one host: use backend.emulate=none across hosts"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of `backend`, with what stood for null resolved."""

    interface: str
    """The network interface that gloo binds to."""
    pad: bool
    """Whether results are held until they are due."""
    one_host: bool = True
    """Whether all processes are known to be on one host, and so to share its clock; if not, they find out."""
