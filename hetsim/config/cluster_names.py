"""The names of clusters in results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from hetsim.config.resolved import resolved
from hetsim.trust.shipped import configs

PARTS = {
    **{name: f"other {name}" for name in ("nodes", "hosts")},
    **{name: f"another {name}" for name in ("network", "server")},
    "faults": "faults",
}
"""The keys of a cluster that change times, and the name of a cluster in which one was changed."""


def name_of(cluster: Mapping[str, Any]) -> str:
    """The name of a resolved cluster. A shipped cluster with a changed part gets another name, except `cluster=machines`."""
    name = str(cluster["name"])
    shipped = _shipped(name)
    changed = [
        said
        for part, said in PARTS.items()
        if shipped and not shipped.get("machines") and (cluster.get(part) or None) != (shipped.get(part) or None)
    ]
    if not changed:
        return name
    *others, last = changed
    return f"{name} with {', '.join(others)}{' and ' if others else ''}{last}"


@cache
def _shipped(name: str) -> dict[str, Any] | None:
    """The shipped cluster with this name, resolved as in a run; None if there is none."""
    file = next((path for path in (configs() / "cluster").glob("*.yaml") if path.stem == name), None)
    if file is None:
        return None
    found: dict[str, Any] = resolved({"cluster": OmegaConf.to_container(OmegaConf.load(file))})["cluster"]
    return found
