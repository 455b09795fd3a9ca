"""What a cluster is called in results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from hetsim.trust.shipped import configs


def name_of(cluster: Mapping[str, Any]) -> str:
    """The name of a resolved cluster. A shipped cluster whose `nodes` were changed is another one."""
    name = str(cluster["name"])
    nodes = _shipped_nodes(name)
    return name if nodes is None or cluster.get("nodes") == nodes else f"{name} with other nodes"


@cache
def _shipped_nodes(name: str) -> Any:
    """The rows of `nodes` of the shipped cluster of this name; None if there is none, or if it has no such rows."""
    file = next((path for path in (configs() / "cluster").glob("*.yaml") if path.stem == name), None)
    return None if file is None else OmegaConf.to_container(OmegaConf.load(file)).get("nodes")  # type: ignore[union-attr]
