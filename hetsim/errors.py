"""What can go wrong in a run, by whose fault it is. Each can be made from one string.

ValueError          the config's: one sentence that names the key, the value and what to do
RunFailed           a run that cannot go on, with one sentence that says why
  └─ ProgramError   the method's: its program asked for what its world cannot answer
PeerLost            the world's: thrown into programs, which may catch it and go on
AssertionError      hetsim's own
"""

from __future__ import annotations


class RunFailed(Exception):
    """A run that cannot go on, with one sentence that says why."""


class ProgramError(RunFailed):
    """A method's program asked for something that its world cannot answer."""


class PeerLost(Exception):
    """A rank that was waited for, or that takes part, is gone: `rank`, where that is known."""

    rank: int | None = None

    @classmethod
    def of(cls, rank: int) -> PeerLost:
        """The loss of this rank."""
        lost = cls(f"rank {rank} is gone")
        lost.rank = rank
        return lost
