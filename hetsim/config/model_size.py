"""`cluster.model`: the size of the model, next to the machines. It is the size of `workload=phantom`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetsim import checks
from hetsim.trust.shipped import choice

PHANTOM = "hetsim.workloads.phantom.PhantomWorkload"
NUM_PARAMETERS = 1_000_000
"""The default size of a phantom."""
KEYS = {"parameters": "num_parameters", "bytes_per_parameter": "bytes_per_parameter"}
"""The keys of `cluster.model`, each with its key of the workload."""


def with_model(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config whose phantom gets missing sizes from `cluster.model`."""
    workload, model = entries.get("workload"), _model(entries)
    if not isinstance(workload, Mapping) or not _is_phantom(workload):
        return {**entries}
    sizes = {key: model.get(name) if workload.get(key) is None else workload[key] for name, key in KEYS.items()}
    if sizes["num_parameters"] is None:
        sizes["num_parameters"] = NUM_PARAMETERS
    return {**entries, "workload": {**workload, **sizes}}


def check_model(entries: Mapping[str, Any]) -> None:
    """Raise ValueError if `cluster.model` differs from the size of the workload, which `with_model` has completed."""
    cluster, workload = entries["cluster"], entries["workload"]
    if cluster.get("model") is None:
        return
    model = checks.mapping(
        "cluster.model", cluster["model"], required=("parameters",), optional=("bytes_per_parameter",), example="{parameters: 25.6 M}"
    )
    if not _is_phantom(workload):
        raise ValueError(
            f"cluster.model is the size of workload=phantom, and workload={choice('workload', workload)} has a model of its own: "
            "type workload=phantom, or leave the model out with cluster.model=null"
        )
    for name, key in KEYS.items():
        if model.get(name) is not None and checks.whole(f"cluster.model.{name}", model[name]) != workload[key]:
            raise ValueError(
                f"cluster.model.{name} is {checks.shown(model[name])} and workload.{key} is {checks.shown(workload[key])}: "
                f"leave workload.{key} out, or type cluster.model.{name}={workload[key]}"
            )


def _model(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    cluster = entries.get("cluster")
    model = cluster.get("model") if isinstance(cluster, Mapping) else None
    return model if isinstance(model, Mapping) else {}


def _is_phantom(workload: Mapping[str, Any]) -> bool:
    return workload.get("_target_") == PHANTOM
