"""hetsim from Python: runs, sweeps, tables, comparisons, searches, advice and stragglers."""

from hetsim.api.calls import advise, compare, load, run, search, stragglers, sweep, table
from hetsim.api.returned import Advice, Comparison, Run, Search, Stragglers, Table

__all__ = [
    "Advice",
    "Comparison",
    "Run",
    "Search",
    "Stragglers",
    "Table",
    "advise",
    "compare",
    "load",
    "run",
    "search",
    "stragglers",
    "sweep",
    "table",
]
