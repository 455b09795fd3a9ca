"""Lockstep: a program that is the same on all ranks runs once, with arrays by rank."""

from hetsim.sim.lockstep.world import LockstepWorld

__all__ = ["LockstepWorld"]
