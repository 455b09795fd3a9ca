"""The config as a run reads it: quantities in SI units, names of GPUs replaced by their tables, and the size of the model put in.

So neither the written config nor the identity contains a text that stands for other values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from hetsim import checks
from hetsim.cluster.parse.machines import OF_NODE, OUTWARDS
from hetsim.cluster.parse.network import SHARING, network_mapping
from hetsim.cluster.quantities import convert_to_si
from hetsim.trust.shipped import choice, configs
from hetsim.workloads.device import AUTO, CPU, usual_kind

if TYPE_CHECKING:
    from hetsim.catalogue.tables import Model
    from hetsim.catalogue.times import Times


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
        resolved_part = {**part, "gpus": chosen(part["gpus"])} if "gpus" in part else {**part}
        return resolved_part | {"device": usual_kind() if real else CPU.kind} if part.get("device") == AUTO else resolved_part

    config: dict[str, Any] = chosen({"device": AUTO, **entries})
    if isinstance(cluster, Mapping):
        cluster = {**cluster, "network": with_sharing(cluster["network"])} if "network" in cluster else cluster
        config["cluster"] = {key: chosen(part) if key in ("nodes", "machines", "server") else part for key, part in cluster.items()}
    return config


def with_sharing(network: Any) -> Any:
    """A network with an explicit `sharing` of network cards."""
    network = network_mapping(network)
    if not isinstance(network, Mapping) or network.get("sharing") is not None:
        return network
    return {**network, "sharing": SHARING}


# The size of the model: `cluster.model`, next to the machines, is the size of `workload=phantom`

PHANTOM = "hetsim.workloads.phantom.PhantomWorkload"
NUM_PARAMETERS = 1_000_000
"""The default size of a phantom."""
SIZES = {"parameters": "num_parameters", "bytes_per_parameter": "bytes_per_parameter"}
"""The keys of `cluster.model`, each with its key of the workload."""


def with_model(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config whose phantom gets missing sizes from `cluster.model`."""
    workload, model = entries.get("workload"), _model_of(entries)
    if not isinstance(workload, Mapping) or not _is_phantom(workload):
        return {**entries}
    sizes = {key: model.get(name) if workload.get(key) is None else workload[key] for name, key in SIZES.items()}
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
    for name, key in SIZES.items():
        if model.get(name) is not None and checks.whole(f"cluster.model.{name}", model[name]) != workload[key]:
            raise ValueError(
                f"cluster.model.{name} is {checks.shown(model[name])} and workload.{key} is {checks.shown(workload[key])}: "
                f"leave workload.{key} out, or type cluster.model.{name}={workload[key]}"
            )


def _model_of(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    cluster = entries.get("cluster")
    model = cluster.get("model") if isinstance(cluster, Mapping) else None
    return model if isinstance(model, Mapping) else {}


def _is_phantom(workload: Mapping[str, Any]) -> bool:
    return workload.get("_target_") == PHANTOM


# Names of GPUs: `gpus: {a100-40gb: 2}` with `cluster.catalogue: {model: resnet50}`

CATALOGUE = "catalogue"
EXAMPLE = "{model: resnet50}"
OPTIONAL = ("precision", "factors", "file")


@dataclass(frozen=True)
class Named:
    """The catalogue's data of the GPUs that a cluster names."""

    model: Model
    times: Mapping[str, Times]
    """The times by name in the config."""
    factors: Mapping[str, float]
    """The factor on the catalogue's seconds of a GPU, by name in the config."""
    ranks: Mapping[str, tuple[int, ...]]
    """The ranks of each name."""


def named_gpus(cluster: Any) -> Named | None:
    """The catalogue's data; None if the cluster names no GPU. Raises ValueError if a GPU is not in the catalogue."""
    machines = cluster.get("machines") if isinstance(cluster, Mapping) else None
    names = [name for machine in machines if (name := _gpu_name(machine)) is not None] if isinstance(machines, Sequence) else []
    config = cluster.get(CATALOGUE) if isinstance(cluster, Mapping) else None
    if not names:
        if config is not None:
            raise ValueError(f"cluster.{CATALOGUE} does nothing, because no machine names a GPU: write gpus: {{t4: 4}}, or leave it out")
        return None
    if config is None:
        raise ValueError(
            f"cluster.machines names {names[0]}, whose time depends on the model: add {CATALOGUE}: {EXAMPLE}, or type model=resnet50"
        )
    from hetsim.catalogue.own import catalogue_of
    from hetsim.catalogue.times import Choice

    entry = checks.mapping(f"cluster.{CATALOGUE}", config, required=("model",), optional=OPTIONAL, example=EXAMPLE)
    catalogue = catalogue_of(entry.get("file"))
    factors = checks.mapping(f"cluster.{CATALOGUE}.factors", entry.get("factors") or {}, optional=names)
    precision = entry.get("precision")
    times = Choice(catalogue).times(names, str(entry["model"]), None if precision is None else str(precision))
    return Named(
        catalogue.model(str(entry["model"])),
        dict(zip(names, times, strict=True)),
        {name: checks.number(f"cluster.{CATALOGUE}.factors.{name}", factor) for name, factor in factors.items()},
        _ranks(machines or ()),
    )


def _ranks(machines: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each name's GPUs. Machines that are no mappings are reported elsewhere."""
    ranks: dict[str, tuple[int, ...]] = {}
    first = 0
    for machine in machines:
        name, gpus = _gpu_name(machine), machine.get("gpus") if isinstance(machine, Mapping) else None
        number = (gpus[name] if name in gpus else gpus.get("count", 1)) if isinstance(gpus, Mapping) else 1
        copies = machine.get("count") if isinstance(machine, Mapping) else 1
        after = first + checks.whole("cluster.machines.gpus", number) * checks.whole("cluster.machines.count", copies or 1)
        if name is not None:
            ranks[name] = (*ranks.get(name, ()), *range(first, after))
        first = after
    return ranks


def with_names(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config with tables instead of GPU names, and with the size of the named model."""
    cluster = entries.get("cluster")
    named = named_gpus(cluster)
    if named is None or not isinstance(cluster, Mapping):
        return {**entries}
    machines = [_described(machine, named) if _gpu_name(machine) is not None else machine for machine in cluster["machines"]]
    cluster = {key: value for key, value in cluster.items() if key != CATALOGUE} | {"machines": machines}
    return {**entries, "cluster": cluster, "workload": _sized(entries.get("workload"), cluster, named.model)}


def _sized(workload: Any, cluster: Mapping[str, Any], model: Model) -> Any:
    """The phantom with the size of the model, if neither it nor the cluster sets a size."""
    if not isinstance(workload, Mapping) or workload.get("num_parameters", 0) is not None or cluster.get("model") is not None:
        return workload
    if model.parameters is None:
        raise ValueError(f"no source gives the size of {model.name}: type workload.num_parameters=10M, with its number of parameters")
    from hetsim.catalogue.tables import BYTES_PER_PARAMETER

    sent = BYTES_PER_PARAMETER if workload.get("bytes_per_parameter") is None else workload["bytes_per_parameter"]
    return {**workload, "num_parameters": model.parameters, "bytes_per_parameter": sent}


def _gpu_name(machine: Any) -> str | None:
    """The name of the machine's GPUs; None if they are described."""
    gpus = machine.get("gpus") if isinstance(machine, Mapping) else None
    if not isinstance(gpus, Mapping) or "count" in gpus:
        return None
    other_keys = (*OF_NODE, *OUTWARDS)
    return next((str(key) for key, value in gpus.items() if key not in other_keys and type(value) is int), None)


def _described(machine: Mapping[str, Any], named: Named) -> dict[str, Any]:
    name = str(_gpu_name(machine))
    gpus = {str(key): value for key, value in machine["gpus"].items()}
    times, count, factor = named.times[name], gpus.pop(name), named.factors.get(name, 1.0)
    table = [[samples, float(f"{factor * seconds:.6g}")] for samples, seconds in times.table]
    bound = {} if times.max_samples is None else {"max_samples": times.max_samples}
    inside = {"inside": times.gpu.inside} if count > 1 and times.gpu.inside is not None else {}
    return {**inside, **machine, "gpus": {"count": count, "table": table, **bound, **gpus}}


# Names of clusters in results

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
        other_name
        for part, other_name in PARTS.items()
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
    cluster: dict[str, Any] = resolved({"cluster": OmegaConf.to_container(OmegaConf.load(file))})["cluster"]
    return cluster
