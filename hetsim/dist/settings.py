"""What the processes of a run have to know beside the experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of `backend`, with what stood for null resolved."""

    interface: str
    """The network interface that gloo binds to."""
    pad: bool
    """Whether results are held until they are due."""
    reduction: str = "ordered"
    """How an all-reduce adds up: "ordered", by rank as the simulator does, or "native", as the library does."""
