"""The exceptions of a run, by their cause. Each can be constructed from one string, as SimPy and pickle require.

- ValueError: the config is wrong; one sentence names the key, the value and what to do
- RunFailed: the run cannot continue; one sentence gives the reason
    - ProgramError: the method is wrong; its program asked for something that its world cannot answer
- RunStopped: the run was asked to stop, and has saved a checkpoint; this is no error
- PeerLost: another rank is lost; thrown into programs, which may catch it and continue
- AssertionError: hetsim is wrong
"""

from __future__ import annotations


class RunFailed(Exception):
    """A run that cannot continue, with the reason in one sentence."""


class RunStopped(BaseException):
    """A run that was asked to stop and has saved a checkpoint. The sentence shows how to resume it."""


class ProgramError(RunFailed):
    """A method's program asked for something that its world cannot answer."""


class PeerLost(Exception):
    """A rank that takes part in the run is lost; `rank` is its number, if it is known."""

    rank: int | None = None

    @classmethod
    def of(cls, rank: int) -> PeerLost:
        """The loss of this rank."""
        lost = cls(f"rank {rank} is gone")
        lost.rank = rank
        return lost


class RunOver(Exception):
    """The run has ended, because the leader's program ended while this rank waited for others."""
