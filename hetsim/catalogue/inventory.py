"""Machines from files that people have: `nvidia-smi -L` with `nvidia-smi topo -m`, `sinfo`, and `kubectl get nodes -o json`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.catalogue.tables import Catalogue, Gpu
from hetsim.catalogue.typed_machines import Kind, TypedMachine

MAX_BYTES, MAX_MACHINES = 64_000_000, 100_000
FORMATS = "nvidia-smi -L (with nvidia-smi topo -m behind it), sinfo -N -o '%N %G', kubectl get nodes -o json"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
CARD = re.compile(r"^GPU\s+[0-9]+:\s+(.+?)\s*\(UUID:", re.MULTILINE)
SLICE = re.compile(r"^\s+MIG\s+(?:[0-9]+c\.)?([0-9]+g\.[0-9]+gb)\S*\s+Device", re.MULTILINE)
LINKS = re.compile(r"^\s*GPU([0-9]+)\s+(.+)$", re.MULTILINE)
GRES = re.compile(r"\bgpu:(?:([^:,()\s]+):)?([0-9]+)")
HOSTS = re.compile(r"([^\[\],]+)(?:\[([^\]]+)\])?([^\[\],]*)")
PRODUCTS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
MAX_RING = 8
"""The most cards among which a ring of links is searched. With more, all pairs must be linked."""
PCIE = "16 GB/s"
"""What GPUs without NVLink send to each other at least, by PCIe 3.0 x16."""


@dataclass(frozen=True)
class FoundMachine:
    """The GPUs of a machine, as (name in the file, number), and what the file says about the links between them."""

    gpus: tuple[tuple[str, int], ...]
    links: str = ""
    """The kinds of links, as `nvidia-smi topo -m` prints them, if one is not NVLink: `SYS`."""

    @property
    def num_gpus(self) -> int:
        """The number of all its GPUs."""
        return sum(number for _, number in self.gpus)


def inventory(files: Sequence[Path], catalogue: Catalogue) -> Iterator[str]:
    """The machines in these files, as lines of a cluster's file. Raises ValueError for a file of another kind."""
    machines: dict[FoundMachine, int] = {}
    for file in files:
        for machine in _machines(file):
            machines[machine] = machines.get(machine, 0) + 1
    if not machines:
        raise ValueError(f"no machine in {', '.join(map(str, files))} has a GPU: give files of other machines")
    lines = [[*_lines(machine, count, catalogue)] for machine, count in machines.items()]
    typed = [_typed(machine, count, catalogue) for machine, count in machines.items()]
    yield from ("name: my-machines", "machines:", *(line for of_machine in lines for line in of_machine))
    if any(_gpu(name, catalogue) for machine in machines for name, _ in machine.gpus):
        yield "catalogue: {model: '???'}  # such as resnet50: hetsim-catalogue lists all"
    several = [", inside: " in of_machine[-1] for of_machine, machine in zip(lines, machines, strict=True) if machine.num_gpus > 1]
    if all(typed) and len({*several}) < 2:
        inside = f" inside='{PCIE}'" if any(several) else ""
        yield f"# or in one line: hetsim-advise '{' + '.join(map(str, typed))}' model=resnet50 network='10 Gbit/s'{inside}"


def _machines(file: Path) -> list[FoundMachine]:
    """The machines in a file that have GPUs."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        text = ESCAPE.sub("", content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"{file} cannot be read ({reason}): give the output of {FORMATS}") from None
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file} has over {MAX_BYTES // 10**6} MB: give a part of it")
    if text.lstrip().startswith(("{", "[")):
        machines = _of_kubernetes(text)
    elif CARD.search(text):
        machines = [_of_nvidia_smi(text)]
    elif LINKS.search(text):
        raise ValueError(f"{file} has links and no names of GPUs: write nvidia-smi -L in front, as in (nvidia-smi -L; nvidia-smi topo -m)")
    else:
        machines = _of_slurm(text)
    if machines is None:
        raise ValueError(f"{checks.printable(str(file))} cannot be read: give the output of {FORMATS}")
    if len(machines) > MAX_MACHINES:
        raise ValueError(f"{checks.printable(str(file))} has over {MAX_MACHINES} machines: give a part of it")
    return [machine for machine in machines if machine.gpus]


def _of_nvidia_smi(text: str) -> FoundMachine:
    """The cards, or the MIG slices of a card that has some."""
    names: list[str] = []
    cards = [*CARD.finditer(text)]
    for card, end in zip(cards, [*(card.start() for card in cards[1:]), len(text)], strict=True):
        slices = SLICE.findall(text, card.end(), end)
        names += [f"{card[1]} MIG {profile}" for profile in slices] or [card[1]]
    return FoundMachine(tuple(Counter(names).items()), _links_without_nvlink(text, len(cards)))


def _links_without_nvlink(text: str, num_cards: int) -> str:
    """The kinds of links besides NVLink; an empty string if a ring of NVLinks passes all cards, or nothing is known."""
    rows = {int(row[1]): row[2].split()[:num_cards] for row in LINKS.finditer(text)}
    if [*rows] != [*range(num_cards)] or any(len(row) != num_cards or row[place] != "X" for place, row in rows.items()):
        return ""
    linked = {place: {other for other, link in enumerate(row) if link.startswith("NV")} for place, row in rows.items()}
    kinds = {link for row in rows.values() for link in row if link != "X" and not link.startswith("NV")}
    return "" if num_cards <= MAX_RING and _has_ring(linked, [0]) else " ".join(sorted(kinds))


def _has_ring(linked: Mapping[int, set[int]], path: list[int]) -> bool:
    """Whether this path continues to a ring through all cards."""
    if len(path) == len(linked):
        return path[0] in linked[path[-1]]
    return any(_has_ring(linked, [*path, card]) for card in linked[path[-1]] if card not in path)


def _of_slurm(text: str) -> list[FoundMachine] | None:
    """The nodes of `sinfo`, each once, although it may be in several partitions."""
    head, *rows = [line.split() for line in text.splitlines() if line.strip()] or [[]]
    columns = [name.upper() for name in head]
    if "GRES" not in columns:
        columns, rows = [], [head, *rows]
    nodes: dict[str, FoundMachine] = {}
    for row in rows:
        place = columns.index("GRES") if columns else next((place for place, cell in enumerate(row) if GRES.search(cell)), len(row))
        names = [place for place, name in enumerate(columns) if name in ("NODELIST", "HOSTNAMES")] or [0]
        gpus = GRES.findall(row[place]) if place < len(row) else []
        counts = {name: sum(int(number[:6]) for other, number in gpus if other == name) for name, _ in gpus}
        for host in _hosts(row[names[0]] if names[0] < len(row) else ""):
            nodes[host] = FoundMachine(tuple((name, count) for name, count in counts.items() if count))
    return [*nodes.values()] if columns or any(machine.gpus for machine in nodes.values()) else None


def _hosts(text: str) -> Iterator[str]:
    """The names in a list of hosts, such as gpu[01-04,07]."""
    for start, numbers, end in HOSTS.findall(text):
        for part in (numbers or "").split(","):
            first, _, last = part.partition("-")
            if not last:
                yield start + part + end
            elif first.isdecimal() and last.isdecimal():
                stop = min(int(last), int(first) + MAX_MACHINES) + 1
                yield from (f"{start}{number:0{len(first)}}{end}" for number in range(int(first), stop))


def _of_kubernetes(text: str) -> list[FoundMachine] | None:
    """The nodes of `kubectl get nodes -o json`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    items = content.get("items", [content]) if isinstance(content, Mapping) else []
    if not isinstance(items, list) or not all(isinstance(item, Mapping) and item.get("kind") == "Node" for item in items):
        return None
    return [_of_node(_part(item, "metadata", "labels"), _part(item, "status", "allocatable")) for item in items]


def _part(item: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        item = item.get(key) if isinstance(item, Mapping) else None
    return item if isinstance(item, Mapping) else {}


def _of_node(labels: Mapping[str, Any], allocatable: Mapping[str, Any]) -> FoundMachine:
    product = next((str(labels[label]) for label in PRODUCTS if labels.get(label)), "")
    shared = _whole(labels.get("nvidia.com/gpu.replicas")) > 1
    counts = [allocatable.get("nvidia.com/gpu"), allocatable.get("amd.com/gpu"), labels.get("nvidia.com/gpu.count")]
    count = next(filter(None, map(_whole, counts[::-1] if shared else counts)), 0)
    gpus = [(product.removesuffix("-SHARED"), count)] if count else []
    for resource, number in allocatable.items():
        profile = str(resource).removeprefix("nvidia.com/mig-")
        if profile != resource and _whole(number):
            gpus.append((f"{product} MIG {profile}", _whole(number)))
    return FoundMachine(tuple(gpus))


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, str | int) and str(value).isdecimal() and len(str(value)) < 7 else 0


# What is printed


def _gpu(name: str, catalogue: Catalogue) -> Gpu | None:
    with suppress(ValueError):
        return catalogue.gpu(name)
    return None


def _typed(machine: FoundMachine, count: int, catalogue: Catalogue) -> TypedMachine | None:
    """The machine in the form of one line; None if the catalogue lacks one of its GPUs."""
    kinds = [(number, _gpu(name, catalogue)) for name, number in machine.gpus]
    known = tuple(Kind(number, gpu.name) for number, gpu in kinds if gpu is not None)
    return TypedMachine(count, known) if len(known) == len(kinds) else None


def _lines(machine: FoundMachine, count: int, catalogue: Catalogue) -> Iterator[str]:
    """The machine as an item of a list in YAML, and comments on what has to be filled in."""
    gpus = [(checks.printable(name) or "a GPU", number, _gpu(name, catalogue)) for name, number in machine.gpus]
    rows = [
        f"{{count: {number}, seconds_per_sample: '???', max_samples: '???'}}" if gpu is None else f"{{{gpu.name}: {number}}}"
        for _, number, gpu in gpus
    ]
    unknown = [name for name, _, gpu in gpus if gpu is None]
    inside = ""
    if machine.num_gpus > 1 and (unknown or any(gpu is not None and gpu.inside is None for _, _, gpu in gpus)):
        inside = ", inside: '???'"
    elif machine.num_gpus > 1 and machine.links and any(gpu is not None and gpu.link == "NVLink" for _, _, gpu in gpus):
        inside = f", inside: {PCIE}"
        yield f"  # no ring of NVLinks ({machine.links}): {PCIE} is PCIe 3.0"
    if unknown:
        yield f"  # not in the catalogue: {', '.join(unknown)}. Fill in seconds, samples and rate (docs/reference/catalogue.md)"
    for name, _, gpu in gpus:
        if gpu is not None and len(cards := catalogue.cards(name)) > 1:
            yield f"  # {name} may be {' or '.join(cards)}"
    copies = f"count: {count}, " if count > 1 else ""
    kinds = rows[0] if len(rows) == 1 else f"[{', '.join(rows)}]"
    yield f"  - {{{copies}gpus: {kinds}{inside}, network: '???'}}"
