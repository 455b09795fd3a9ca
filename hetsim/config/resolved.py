"""Replace texts that stand for other values when a config is read, so that neither the written config nor the identity contains them.

They are quantities with units, names of GPUs, a network that is a rate alone, the size of a phantom, and `device: auto`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from hetsim.cluster.parse.network import SHARING, network_mapping
from hetsim.cluster.quantities import convert_to_si
from hetsim.config.model_size import with_model
from hetsim.config.named_gpus import with_names
from hetsim.workloads.device import AUTO, CPU, usual_kind


def resolved(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config in SI units, with `auto` replaced by a device for the run, its nodes and its server.

    Of a real run that is a CUDA device if this machine has one, of a simulated one the CPU.
    What is no quantity stays as it is: the run reports it.
    """
    with contextlib.suppress(ValueError):
        entries = convert_to_si(entries)
    with contextlib.suppress(ValueError):
        entries = with_names(entries)
    entries = with_model(entries)
    backend, cluster = entries.get("backend"), entries.get("cluster")
    real = isinstance(backend, Mapping) and backend.get("_target_") == "hetsim.distributed.Processes"

    def chosen(part: Any) -> Any:
        if isinstance(part, list):
            return [*map(chosen, part)]
        if not isinstance(part, Mapping):
            return part
        its = {**part, "gpus": chosen(part["gpus"])} if "gpus" in part else {**part}
        return its | {"device": usual_kind() if real else CPU.kind} if part.get("device") == AUTO else its

    found: dict[str, Any] = chosen({"device": AUTO, **entries})
    if isinstance(cluster, Mapping):
        cluster = {**cluster, "network": with_sharing(cluster["network"])} if "network" in cluster else cluster
        found["cluster"] = {key: chosen(part) if key in ("nodes", "machines", "server") else part for key, part in cluster.items()}
    return found


def with_sharing(network: Any) -> Any:
    """A network with an explicit `sharing` of network cards."""
    network = network_mapping(network)
    if not isinstance(network, Mapping) or network.get("sharing") is not None:
        return network
    return {**network, "sharing": SHARING}
