"""hetsim from Python: runs, sweeps, tables, comparisons, searches and advice."""

from hetsim.api.calls import advise, compare, load, run, search, sweep, table
from hetsim.api.returned import Advice, Comparison, Run, Search, Table

__all__ = ["Advice", "Comparison", "Run", "Search", "Table", "advise", "compare", "load", "run", "search", "sweep", "table"]
