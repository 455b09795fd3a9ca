"""The simulator answers a method's effects in virtual time. Only this package imports SimPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetsim.sim.backend import Simulation, Simulator

__all__ = ["Simulation", "Simulator"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is first used."""
    if name in __all__:
        from hetsim.sim import backend

        return getattr(backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
