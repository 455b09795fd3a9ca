"""What a process that hetsim's own launcher started has to know."""

from __future__ import annotations

from typing import NamedTuple


class Started(NamedTuple):
    """How `launch` started a process."""

    rank: int
    incarnation: int
    """How often this rank was started before."""
    members: tuple[int, ...]
    """The ranks that take part when the run begins."""
    joins_at: float | None
    """When this one takes part, in seconds of the run, if it does not from the beginning."""
    port: int
    """Of the run's store, which the keeper hosts."""
    elastic: bool
    """Whether the run goes on when a rank is lost."""
    succession: bool = False
    """Whether it does when the leader is: another rank leads then."""
