"""The user's own training loop as a world: it computes the gradients, and a method does everything else."""

from hetsim.loop.team import Team

__all__ = ["Team"]
