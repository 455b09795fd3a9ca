"""hetsim: data-parallel training on machines of unequal speed, in simulation first and then for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetsim import libraries

if TYPE_CHECKING:
    from hetsim.api import advise, compare, load, run, search, sweep, table
    from hetsim.results.returned import Advice, Comparison, Run, Search, Table
    from hetsim.workloads.own import Training, workload

libraries.install()
__version__ = "0.1.0"
__all__ = [
    "Advice",
    "Comparison",
    "Run",
    "Search",
    "Table",
    "Training",
    "advise",
    "compare",
    "load",
    "run",
    "search",
    "sweep",
    "table",
    "workload",
]


def __getattr__(name: str) -> Any:
    """What Python offers to notebooks and scripts, imported when it is first used: the command needs little of it."""
    if name in ("Training", "workload"):
        from hetsim.workloads import own

        return getattr(own, name)
    if name in __all__:
        from hetsim import api
        from hetsim.results import returned

        return getattr(returned if name[0].isupper() else api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
