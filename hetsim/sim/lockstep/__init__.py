"""All ranks of a program that is the same on each of them, run as one with arrays."""

from hetsim.sim.lockstep.world import LockstepWorld

__all__ = ["LockstepWorld"]
