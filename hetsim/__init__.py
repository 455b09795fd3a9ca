"""hetsim: data-parallel training on machines of unequal speed, in simulation first and then for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetsim.version import __version__

if TYPE_CHECKING:
    from hetsim.api import Advice, Comparison, Run, Search, Stragglers, Table, advise, compare, load, run, search, stragglers, sweep, table
    from hetsim.loop import Team
    from hetsim.loop.trainer import Balanced
    from hetsim.workloads.own import Training, workload

__all__ = [
    "Advice",
    "Balanced",
    "Comparison",
    "Run",
    "Search",
    "Stragglers",
    "Table",
    "Team",
    "Training",
    "__version__",
    "advise",
    "compare",
    "load",
    "run",
    "search",
    "stragglers",
    "sweep",
    "table",
    "workload",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because a command needs only a few of them."""
    if name in ("Training", "workload"):
        from hetsim.workloads import own

        return getattr(own, name)
    if name == "Team":
        from hetsim.loop import Team

        return Team
    if name == "Balanced":
        from hetsim.loop.trainer import Balanced

        return Balanced
    if name in __all__:
        from hetsim import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
