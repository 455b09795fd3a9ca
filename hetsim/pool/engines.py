"""The engines that run the processes of a sweep, a search or an advice: this machine, or the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hetsim.pool.pool import LocalPool, Pool

ENGINES = ("local", "ray")
"""The engines."""
MAX_ON_RAY = 10_000
"""The maximum number of processes on a Ray cluster."""


def check_engine(engine: str) -> None:
    """Raise ValueError for an unknown engine."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be {' or '.join(ENGINES)}, not {engine}")


def check_processes(processes: int, engine: str = "local", name: str = "processes") -> None:
    """Raise ValueError for more processes than this machine's cores, or than the maximum with Ray."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most, what = (cores, f"the {cores} cores of this machine") if engine == "local" else (MAX_ON_RAY, str(MAX_ON_RAY))
    if not 1 <= processes <= most:
        raise ValueError(f"{name} must be from 1 to {what}, not {processes}")


@contextlib.contextmanager
def opened_pool(engine: str, module: str, size: int | None, *, of: str, folder: Path | None = None) -> Iterator[Pool]:
    """The processes of an engine, for a block. With `size=None`, Ray has one for each CPU of its cluster.

    `folder` contains their runs. Ray copies files of runs to it from nodes without this folder.
    """
    if engine == "ray":
        from hetsim.pool.ray_pool import RayPool, connected

        with connected(size or 0):
            pool: Pool = RayPool(module, size, of=of, folder=folder)
            try:
                yield pool
            finally:
                pool.close()
        return
    assert size is not None
    pool = LocalPool(module, size, of=of)
    try:
        yield pool
    finally:
        pool.close()
