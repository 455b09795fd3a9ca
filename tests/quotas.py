"""Nodes with a share of a core, and whether this system lets a process have one."""

from __future__ import annotations

from typing import Any

from worlds import cluster, experiment, node

from hetsim.distributed.pacing.cpu_quota import check_quotas
from hetsim.runtime.experiment import Experiment


def with_quotas(*quotas: float | None, **keys: Any) -> Experiment:
    """A small experiment on nodes with these quotas."""
    nodes = [node(1e-5, 1e-3, **({} if quota is None else {"cpu_quota": quota})) for quota in quotas]
    return experiment("method=ssgd", cluster=cluster(*nodes), **keys)


def refused() -> str | None:
    """Why this system does not permit a cap; None if it does."""
    try:
        check_quotas(with_quotas(0.5))
    except ValueError as error:
        return str(error)
    return None
