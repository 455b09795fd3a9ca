"""Where the processes of a sweep, a search or an advice are: on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hetsim.sweeps.pool import LocalPool, Pool

ENGINES = ("local", "ray")
"""Where processes are."""
MAX_ON_RAY = 10_000
"""Processes on a Ray cluster."""


def check_engine(engine: str) -> None:
    """ValueError with one sentence for an engine that does not exist."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be {' or '.join(ENGINES)}, not {engine}")


def check_processes(processes: int, engine: str = "local", name: str = "processes") -> None:
    """ValueError with one sentence for more processes than this machine has cores, or a sweep of Ray's may have."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most, what = (cores, f"the {cores} cores of this machine") if engine == "local" else (MAX_ON_RAY, str(MAX_ON_RAY))
    if not 1 <= processes <= most:
        raise ValueError(f"{name} must be from 1 to {what}, not {processes}")


@contextlib.contextmanager
def opened_pool(engine: str, module: str, size: int | None, *, of: str, folder: Path | None = None) -> Iterator[Pool]:
    """The processes of an engine, for a block. With `size=None` Ray has one for each CPU of its cluster.

    `folder` is where their runs go. Ray brings the files of a run there from a node that does not have this folder.
    """
    if engine == "ray":
        from hetsim.sweeps.ray_pool import RayPool, connected

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
