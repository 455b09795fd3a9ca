"""The simulator: answers a method's questions in virtual time. The only place that knows SimPy."""

from hetsim.sim.backend import Simulator

__all__ = ["Simulator"]
