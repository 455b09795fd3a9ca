"""The engines of a pool: this machine, or the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hetsim.pool.pool import LocalPool, Pool

ENGINES = ("local", "ray")
"""Where processes run: on this machine, or on the nodes of a Ray cluster."""
MAX_ON_RAY = 10_000
"""The maximum number of processes on a Ray cluster."""


def check_engine(engine: str) -> None:
    """Raise ValueError for an unknown engine."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be {' or '.join(ENGINES)}, not {engine}")


def check_processes(processes: int, engine: str = "local", name: str = "processes") -> None:
    """Raise ValueError for more processes than this machine's cores, or than the maximum with Ray."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most, limit = (cores, f"the {cores} cores of this machine") if engine == "local" else (MAX_ON_RAY, str(MAX_ON_RAY))
    if not 1 <= processes <= most:
        raise ValueError(f"{name} must be from 1 to {limit}, not {processes}")


@contextlib.contextmanager
def opened_pool(
    engine: str, function: str, size: int | None, *, of: str, first: object = None, folder: Path | None = None
) -> Iterator[Pool]:
    """The processes of an engine, for a block. With `size=None`, Ray has one for each CPU of its cluster.

    `function`, `of` and `first` are the arguments of `Process`. `folder` contains the processes' runs: Ray copies files of runs to it from
    nodes without this folder.
    """
    with contextlib.ExitStack() as stack:
        if engine == "ray":
            from hetsim.pool.ray import RayPool, connected

            stack.enter_context(connected(size or 0))
            pool: Pool = RayPool(function, size, of=of, first=first, folder=folder)
        else:
            assert size is not None
            pool = LocalPool(function, size, of=of, first=first)
        stack.callback(pool.close)
        yield pool
