"""GPUs of `cluster.machines` by the names of the catalogue: `gpus: {a100-40gb: 2}` with `cluster.catalogue: {model: resnet50}`.

They become measured tables, bounds of memory and links, where a config is read. So the written config depends on no later catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetsim import checks
from hetsim.cluster.parse.machines import OF_NODE, OUTWARDS

if TYPE_CHECKING:
    from hetsim.catalogue.tables import Model
    from hetsim.catalogue.times import Times

KEY = "catalogue"
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
    names = [name for each in machines if (name := _name(each)) is not None] if isinstance(machines, Sequence) else []
    config = cluster.get(KEY) if isinstance(cluster, Mapping) else None
    if not names:
        if config is not None:
            raise ValueError(f"cluster.{KEY} does nothing, because no machine names a GPU: write gpus: {{t4: 4}}, or leave it out")
        return None
    if config is None:
        raise ValueError(
            f"cluster.machines names {names[0]}, whose time depends on the model: add {KEY}: {EXAMPLE}, or type model=resnet50"
        )
    from hetsim.catalogue.own import catalogue_of
    from hetsim.catalogue.times import Choice

    entry = checks.mapping(f"cluster.{KEY}", config, required=("model",), optional=OPTIONAL, example=EXAMPLE)
    catalogue = catalogue_of(entry.get("file"))
    factors = checks.mapping(f"cluster.{KEY}.factors", entry.get("factors") or {}, optional=names)
    precision = entry.get("precision")
    times = Choice(catalogue).times(names, str(entry["model"]), None if precision is None else str(precision))
    return Named(
        catalogue.model(str(entry["model"])),
        dict(zip(names, times, strict=True)),
        {name: checks.number(f"cluster.{KEY}.factors.{name}", factor) for name, factor in factors.items()},
        _ranks(machines or ()),
    )


def _ranks(machines: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each name's GPUs. Machines that are no mappings are reported elsewhere."""
    found: dict[str, tuple[int, ...]] = {}
    first = 0
    for machine in machines:
        name, gpus = _name(machine), machine.get("gpus") if isinstance(machine, Mapping) else None
        its = (gpus[name] if name in gpus else gpus.get("count", 1)) if isinstance(gpus, Mapping) else 1
        copies = machine.get("count") if isinstance(machine, Mapping) else 1
        after = first + checks.whole("cluster.machines.gpus", its) * checks.whole("cluster.machines.count", copies or 1)
        if name is not None:
            found[name] = (*found.get(name, ()), *range(first, after))
        first = after
    return found


def with_names(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config with tables instead of GPU names, and with the size of the named model."""
    cluster = entries.get("cluster")
    named = named_gpus(cluster)
    if named is None or not isinstance(cluster, Mapping):
        return {**entries}
    machines = [_described(machine, named) if _name(machine) is not None else machine for machine in cluster["machines"]]
    cluster = {key: value for key, value in cluster.items() if key != KEY} | {"machines": machines}
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


def _name(machine: Any) -> str | None:
    """The name of the machine's GPUs; None if they are described."""
    gpus = machine.get("gpus") if isinstance(machine, Mapping) else None
    if not isinstance(gpus, Mapping) or "count" in gpus:
        return None
    known = (*OF_NODE, *OUTWARDS)
    return next((str(key) for key, value in gpus.items() if key not in known and type(value) is int), None)


def _described(machine: Mapping[str, Any], named: Named) -> dict[str, Any]:
    name = str(_name(machine))
    gpus = {str(key): value for key, value in machine["gpus"].items()}
    its, count, factor = named.times[name], gpus.pop(name), named.factors.get(name, 1.0)
    table = [[samples, float(f"{factor * seconds:.6g}")] for samples, seconds in its.table]
    bound = {} if its.max_samples is None else {"max_samples": its.max_samples}
    inside = {"inside": its.gpu.inside} if count > 1 and its.gpu.inside is not None else {}
    return {**inside, **machine, "gpus": {"count": count, "table": table, **bound, **gpus}}
