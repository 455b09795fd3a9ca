"""The config as a run reads it: quantities in SI units, names of GPUs replaced by their tables, and the size of the model put in.

So neither the written config nor the identity contains a text that stands for other values.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf

from hetsim import checks
from hetsim.cluster.parse.machines import OF_NODE, OUTWARDS
from hetsim.cluster.parse.network import SHARING, network_mapping
from hetsim.cluster.parse.nodes import check_number_of_nodes
from hetsim.cluster.quantities import convert_to_si
from hetsim.trust.shipped import choice, configs
from hetsim.workloads.device import AUTO, CPU, usual_kind

if TYPE_CHECKING:
    from hetsim.catalogue.tables import Catalogue, Gpu, Model
    from hetsim.catalogue.times import Times


def resolved(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config in SI units, with `auto` replaced by a device for the run, its nodes and its server.

    Of a real run that is a CUDA device if this machine has one, of a simulated one the CPU.
    What is no quantity stays as it is: the run reports it.
    """
    with contextlib.suppress(ValueError):
        entries = convert_to_si(entries)
    with contextlib.suppress(ValueError):
        _warn_of_other_model(entries)
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
OPTIONAL = ("precision", "source", "factors", "file")


@dataclass(frozen=True)
class Named:
    """The catalogue's data of the GPUs that a cluster names. A name is that in the config, with its speed if it has one: t4*0.8."""

    model: Model
    times: Mapping[str, Times]
    """The times by name."""
    factors: Mapping[str, float]
    """The factor on the catalogue's seconds of a GPU, by name."""
    ranks: Mapping[str, tuple[int, ...]]
    """The ranks of each name."""
    catalogue: Catalogue
    sentence: str
    """What each machine has: `Machine 0: two A100 SXM4 40 GB; machine 1: four T4.`"""

    def without(self, leave_out: Sequence[int]) -> Named:
        """The same without some ranks. The other ranks get new numbers."""
        ranks = {
            name: tuple(rank - sum(out < rank for out in leave_out) for rank in of_name if rank not in leave_out)
            for name, of_name in self.ranks.items()
        }
        ranks = {name: of_name for name, of_name in ranks.items() if of_name}
        return replace(self, ranks=ranks, times={name: self.times[name] for name in ranks})

    @property
    def titles(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each title, such as `T4`."""
        ranks: dict[str, tuple[int, ...]] = {}
        for name, of_name in self.ranks.items():
            title = self.title(name)
            ranks[title] = (*ranks.get(title, ()), *of_name)
        return ranks

    def title(self, name: str) -> str:
        """The name in sentences, such as `T4`."""
        return _title(name, {name: self.times[name].gpu})


class NamedRow(NamedTuple):
    """GPUs of a machine, which are named in the config. `entry` has the other keys of its row."""

    gpu: str
    count: Any
    entry: dict[str, Any]

    @property
    def name(self) -> str:
        """The name in results."""
        speed = self.entry.get("speed")
        return self.gpu if speed is None else f"{self.gpu}*{checks.number(f'the speed of {self.gpu}', speed):.6g}"


def named_gpus(cluster: Any) -> Named | None:
    """The catalogue's data; None if the cluster names no GPU. Raises ValueError if a GPU is not in the catalogue."""
    machines = cluster.get("machines") if isinstance(cluster, Mapping) else None
    machines = machines if isinstance(machines, Sequence) else []
    rows = {row.name: row for machine in machines for row in _rows(machine) if isinstance(row, NamedRow)}
    config = cluster.get(CATALOGUE) if isinstance(cluster, Mapping) else None
    if not rows:
        if config is not None:
            raise ValueError(f"cluster.{CATALOGUE} does nothing, because no machine names a GPU: write gpus: {{t4: 4}}, or leave it out")
        return None
    if config is None:
        raise ValueError(
            f"cluster.machines names {next(iter(rows))}, whose time depends on the model: add {CATALOGUE}: {EXAMPLE}, "
            "or type model=resnet50"
        )
    from hetsim.catalogue.own import catalogue_of
    from hetsim.catalogue.times import Choice

    entry = checks.mapping(f"cluster.{CATALOGUE}", config, required=("model",), optional=OPTIONAL, example=EXAMPLE)
    with checks.values_hidden():
        catalogue = catalogue_of(entry.get("file"))
    factors = checks.mapping(f"cluster.{CATALOGUE}.factors", entry.get("factors") or {}, optional=[row.gpu for row in rows.values()])
    for name, factor in factors.items():
        checks.number(f"cluster.{CATALOGUE}.factors.{name}", factor)
    for row in rows.values():
        _refuse_misspelt_key(row.gpu, catalogue)
    precision, source = (None if entry.get(key) is None else str(entry[key]) for key in ("precision", "source"))
    times = Choice(catalogue).times([row.gpu for row in rows.values()], str(entry["model"]), precision, source)
    of_names = dict(zip(rows, times, strict=True))
    return Named(
        catalogue.model(str(entry["model"])),
        {name: times if name == rows[name].gpu else _of_slower_copy(times, rows[name]) for name, times in of_names.items()},
        {name: float(factors[row.gpu]) for name, row in rows.items() if row.gpu in factors},
        _ranks(machines),
        catalogue,
        _machine_sentence(machines, {name: times.gpu for name, times in of_names.items()}),
    )


def _of_slower_copy(times: Times, row: NamedRow) -> Times:
    """The catalogue's times of a GPU that has another speed, with the name in results."""
    return replace(times, gpu=replace(times.gpu, name=f"{times.gpu.name}*{row.entry['speed']:.6g}", chip=times.gpu.die))


def _refuse_misspelt_key(name: str, catalogue: Catalogue) -> None:
    """Raise ValueError for a name that is nearly a key of a node."""
    try:
        catalogue.gpu(name)
    except ValueError:
        if hint := checks.suggestion(name, OF_NODE):
            raise ValueError(f"cluster.machines.gpus.{name} is neither a GPU of the catalogue nor a key of a node{hint}") from None


def _rows(machine: Any) -> list[NamedRow | dict[str, Any]]:
    """The rows of a machine's `gpus`: a row for each name, and described rows as they are. Machines that are no mappings have none."""
    gpus = machine.get("gpus") if isinstance(machine, Mapping) else None
    rows: list[NamedRow | dict[str, Any]] = []
    for row in gpus if isinstance(gpus, list) else [gpus]:
        entry = row if isinstance(row, Mapping) else {}
        names = [key for key, value in entry.items() if "count" not in entry and _is_name(key, value)]
        shared = {str(key): value for key, value in entry.items() if key not in names}
        rows += [NamedRow(str(name), entry[name], shared) for name in names] or [shared]
    return rows


def _is_name(key: Any, value: Any) -> bool:
    return str(key) not in (*OF_NODE, *OUTWARDS, "inside") and type(value) is int


def _counts(machine: Any) -> tuple[list[tuple[str | None, int]], int]:
    """The names of a machine's rows with their numbers of GPUs, and the number of such machines."""
    copies = machine.get("count") if isinstance(machine, Mapping) else 1
    rows = [
        (row.name, row.count) if isinstance(row, NamedRow) else (None, 1 if row.get("count") is None else row["count"])
        for row in _rows(machine)
    ]
    counts = [(name, checks.whole("cluster.machines.gpus", count)) for name, count in rows]
    return counts, checks.whole("cluster.machines.count", copies or 1)


def _ranks(machines: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each name's GPUs. Machines that are no mappings are reported elsewhere."""
    ranks: dict[str, tuple[int, ...]] = {}
    first = 0
    for counts, copies in map(_counts, machines):
        num_gpus = sum(count for _, count in counts)
        for name, count in counts:
            if name is not None:
                starts = range(first, first + copies * num_gpus, num_gpus)
                ranks[name] = (*ranks.get(name, ()), *(rank for start in starts for rank in range(start, start + count)))
            first += count
            check_number_of_nodes("the number of GPUs of cluster.machines", first + (copies - 1) * num_gpus)
        first += (copies - 1) * num_gpus
    return ranks


NUMBERS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
MAX_MACHINES = 12
"""The most machines that a sentence lists."""


def number_in_words(number: int) -> str:
    """A number as a word, from one to twelve."""
    return NUMBERS[number] if 0 < number < len(NUMBERS) else str(number)


def _machine_sentence(machines: Sequence[Any], gpus: Mapping[str, Gpu]) -> str:
    """What each machine has. Equal machines in a row are listed once."""
    listed: list[tuple[str, int]] = []
    for counts, copies in map(_counts, machines):
        kinds = " and ".join(f"{number_in_words(count)} {_title(name, gpus)}" for name, count in counts)
        if listed and listed[-1][0] == kinds:
            listed[-1] = (kinds, listed[-1][1] + copies)
        else:
            listed.append((kinds, copies))
    phrases, first = [], 0
    for kinds, copies in listed:
        phrases.append(f"machine {first}: {kinds}" if copies == 1 else f"machines {first} to {first + copies - 1}: {kinds} each")
        first += copies
    shown = "; ".join(phrases[:MAX_MACHINES]) + (f"; and {len(phrases) - MAX_MACHINES} more" if len(phrases) > MAX_MACHINES else "")
    return f"{shown[0].upper()}{shown[1:]}."


def _title(name: str | None, gpus: Mapping[str, Gpu]) -> str:
    if name is None:
        return "described"
    title, speed = gpus[name].title, name.partition("*")[2]
    for maker in ("NVIDIA ", "AMD ", "GeForce "):
        title = title.removeprefix(maker)
    return f"{title} at {speed} times the speed" if speed else title


def with_names(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The config with tables instead of GPU names, and with the size of the named model."""
    cluster = entries.get("cluster")
    named = named_gpus(cluster)
    if named is None or not isinstance(cluster, Mapping):
        return {**entries}
    machines = [_described(machine, named) for machine in cluster["machines"]]
    cluster = {key: value for key, value in cluster.items() if key != CATALOGUE} | {"machines": machines}
    return {**entries, "cluster": cluster, "workload": _sized(entries.get("workload"), cluster, named.model)}


def _warn_of_other_model(entries: Mapping[str, Any]) -> None:
    """Warn if the times of named GPUs are of another model than the one that the run trains."""
    workload = entries.get("workload")
    if not isinstance(workload, Mapping) or _is_phantom(workload):
        return
    if (named := named_gpus(entries.get("cluster"))) is not None:
        model, trained = named.model.name, choice("workload", workload)
        warnings.warn(
            f"the times of the named GPUs are those of {model}, not of workload={trained}: workload=phantom stands for {model}, and "
            "hetsim-calibrate measures this workload",
            stacklevel=2,
        )


def _sized(workload: Any, cluster: Mapping[str, Any], model: Model) -> Any:
    """The phantom with the size of the model, if neither it nor the cluster sets a size."""
    if not isinstance(workload, Mapping) or workload.get("num_parameters", 0) is not None or cluster.get("model") is not None:
        return workload
    if model.parameters is None:
        raise ValueError(f"no source gives the size of {model.name}: type workload.num_parameters=10M, with its number of parameters")
    from hetsim.catalogue.tables import BYTES_PER_PARAMETER

    sent = BYTES_PER_PARAMETER if workload.get("bytes_per_parameter") is None else workload["bytes_per_parameter"]
    return {**workload, "num_parameters": model.parameters, "bytes_per_parameter": sent}


def _described(machine: Any, named: Named) -> Any:
    """A machine with tables instead of names."""
    rows = _rows(machine)
    if not any(isinstance(row, NamedRow) for row in rows):
        return machine
    needs_inside = "inside" not in machine and sum(count for _, count in _counts(machine)[0]) > 1
    described = [_with_table(row, named, with_inside=needs_inside) if isinstance(row, NamedRow) else row for row in rows]
    if len(rows) > 1:
        return {**machine, "gpus": described}
    inside = {"inside": described[0].pop("inside")} if needs_inside and "inside" in described[0] else {}
    return {**inside, **machine, "gpus": described[0]}


def _with_table(row: NamedRow, named: Named, *, with_inside: bool) -> dict[str, Any]:
    """The row with the catalogue's seconds, samples and rate."""
    times, entry = named.times[row.name], {key: value for key, value in row.entry.items() if key != "speed"}
    factor = named.factors.get(row.name, 1.0) / float(row.entry.get("speed") or 1.0)
    table = [[samples, float(f"{factor * seconds:.6g}")] for samples, seconds in times.table]
    bound = {} if times.max_samples is None else {"max_samples": times.max_samples}
    if bound and entry.get("micro_batch") is not None:
        micro_batch = checks.whole(f"the micro_batch of {row.gpu}", entry["micro_batch"])
        if micro_batch > bound["max_samples"]:
            most = f"{row.gpu} holds {bound['max_samples']} samples of {named.model.name}"
            raise ValueError(f"{most}, fewer than micro_batch={micro_batch}: lower it")
        bound = {}
    inside = {"inside": times.gpu.inside} if with_inside and times.gpu.inside is not None else {}
    return {"count": row.count, "table": table, **bound, **inside, **entry}


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
