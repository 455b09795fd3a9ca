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
    nodes = _shipped_nodes().get(name)
    return name if nodes is None or cluster.get("nodes") == nodes else f"{name} with other nodes"


@cache
def _shipped_nodes() -> dict[str, Any]:
    """The rows of `nodes` of each shipped cluster that has some."""
    loaded = [OmegaConf.to_container(OmegaConf.load(path)) for path in (configs() / "cluster").glob("*.yaml")]
    return {str(each["name"]): each["nodes"] for each in loaded if isinstance(each, dict) and "nodes" in each}
