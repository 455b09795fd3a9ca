"""The simulator: answers a method's effects in virtual time. Only this package imports SimPy."""

from hetsim.sim.backend import Simulation, Simulator

__all__ = ["Simulation", "Simulator"]
