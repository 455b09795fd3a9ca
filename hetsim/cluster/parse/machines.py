"""From `cluster.machines` to rows of nodes, racks and a server.

The GPUs of a machine form a rack. The link of this rack is their shared network card.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hetsim import checks
from hetsim.cluster.model import MACHINE
from hetsim.cluster.network.collectives import AUTO
from hetsim.cluster.parse import values
from hetsim.cluster.parse.network import EXAMPLE as NETWORK
from hetsim.cluster.parse.network import OF_SERVER
from hetsim.cluster.parse.nodes import CHANGES, MAX_NODES, OF_ROW, check_number_of_nodes
from hetsim.cluster.parse.values import LINKS, Card

LATENCY_INSIDE, LATENCY_TCP, LATENCY_RDMA = 2e-6, 24e-6, 3e-6
"""The latency within a machine, and the latency that each machine adds to a message that leaves or enters, by the kind of network.

So there are 50 µs between two machines by TCP, and 8 µs by InfiniBand or RoCE. NCCL's model has 1.9 µs for a step over NVLink, 2.5 µs
over PCIe, and 4 to 8.5 µs over InfiniBand (`hwLatencies` of protocol LL128 in src/graph/tuning.cc, NVIDIA/nccl at 5067397c).
"""
RDMA_BYTES_PER_SECOND = 12.5e9
"""The rate of one network card, 100 Gbit/s, from which on it counts as InfiniBand or RoCE."""
PCIE_BYTES_PER_SECOND = 70e9
"""The rate inside a machine below which it counts as PCIe: PCIe 5 has 64 GB/s, and the slowest NVLink of an SXM module 80 GB/s."""
OVERLAP_SHARES = {"PCIe": 1.0, "NVLink": 0.0}
"""The share of a GPU's compute that its link takes while it carries a reduction, as fitted to published steps (`overlap_share`)."""
OUTWARDS = ("rack", "latency_seconds", "half_duplex", *CHANGES)
OF_MACHINE = ("gpus", "inside", "overlap_share", "loading", *OUTWARDS)
OF_NODE = (*(name for name in OF_ROW if name not in (*LINKS, *OUTWARDS)), "speed")
"""The keys of a node that a machine does not set."""
ONE, GPUS = "{seconds_per_sample: 2.5 ms, network: 1 Gbit/s}", "{count: 2, seconds_per_sample: 2.5 ms}"
SECONDS = ("seconds_per_sample", "overhead_seconds", "seconds_per_update", "seconds_per_local_update")
"""The times that a node of speed 2 halves, together with its table."""


class TranslatedMachines(NamedTuple):
    """Rows of nodes with their config keys, the network and the server for these rows, and the keys of the server that are assumed."""

    rows: list[tuple[str, Any]]
    network: dict[str, Any]
    server: dict[str, Any]
    assumed: frozenset[str]


class Inside(NamedTuple):
    """The bytes per second of a GPU inside its machine: to its neighbour in a pair, and to the others if there are pairs."""

    rate: float
    across: float | None = None

    @property
    def slowest(self) -> float:
        """The rate that decides the kind of the link."""
        return self.rate if self.across is None else self.across


class Kind(NamedTuple):
    """Equal nodes of a machine. `key` is the config key of one of them."""

    key: str
    node: dict[str, Any]
    num_nodes: int
    inside: Inside


class Machine(NamedTuple):
    """`num_copies` equal machines with these nodes."""

    kinds: list[Kind]
    num_copies: int
    card: Card
    latency_seconds: float
    half_duplex: bool
    changes: dict[str, Any]
    rack: str | None

    @property
    def num_nodes(self) -> int:
        """The number of nodes of one copy."""
        return sum(kind.num_nodes for kind in self.kinds)

    @property
    def is_box(self) -> bool:
        """Whether the machine is a rack, because it has several GPUs or network cards."""
        return self.num_nodes > 1 or self.card.num_cards > 1


def translate_machines(entries: Mapping[str, Any]) -> TranslatedMachines:
    """Translate machines to the keys of `cluster.nodes`. Raises ValueError if they are invalid."""
    if entries.get("nodes") is not None:
        raise ValueError(
            "cluster has nodes and machines, which become nodes: leave one of them out; for typed machines take "
            "cluster=machines 'cluster.machines=[…]'"
        )
    network = _parse_mapping("cluster.network", entries.get("network"), example=NETWORK)
    reference = _parse_reference(entries.get("reference"))
    configs = values.sequence("cluster.machines", entries["machines"], "machines")
    if not configs:
        raise ValueError("cluster.machines is empty: describe at least one machine")
    racks = _parse_mapping("cluster.network.racks", network.get("racks"))
    machines = [
        _parse_machine(f"cluster.machines.{index}", config, reference, network.get("bytes_per_second"), racks)
        for index, config in enumerate(configs)
    ]
    num_nodes = sum(machine.num_copies * sum(kind.num_nodes for kind in machine.kinds) for machine in machines)
    check_number_of_nodes("the number of GPUs of cluster.machines", num_nodes)
    _refuse_unused(configs, network, reference)
    rows: list[tuple[str, Any]] = []
    number = 0
    inside: dict[str, float] = {}
    for machine in machines:
        outwards = {**machine.card.links, "latency_seconds": machine.latency_seconds, "half_duplex": machine.half_duplex, **machine.changes}
        if not machine.is_box:
            rows.append((machine.kinds[0].key, {**machine.kinds[0].node, "count": machine.num_copies, **outwards, "rack": machine.rack}))
            number += machine.num_copies
            continue
        for _ in range(machine.num_copies):
            box = f"{MACHINE}{number}"
            number += 1
            if box in racks:
                raise ValueError(f"cluster.network.racks.{box} is the name of a machine with several GPUs: call the rack otherwise")
            racks[box] = {**outwards, **_message_limit(machine.card), "within": machine.rack}
            inside[box] = max(kind.inside.slowest for kind in machine.kinds)
            for kind in machine.kinds:
                node = {**kind.node, **Card.even(kind.inside.rate).links}
                for rack, count in _racks_inside(box, kind, racks):
                    rows.append((kind.key, {**node, "count": count, "rack": rack}))
    server = _parse_mapping("cluster.server", entries.get("server"), keys=("network", *OF_SERVER), example="{network: 1 Gbit/s}")
    cards = [machine.card for machine in machines]
    own_card = None
    if server.get("network") is not None:
        own_card = values.card("cluster.server.network", server["network"])
        cards.append(own_card)
    server = values.expand_network("cluster.server", server)
    if (box := str(server.get("rack"))) in inside and not {*LINKS} & {*server}:
        raise ValueError(
            f"cluster.server is in rack {box}, so a network card is not its link: write server: {{rack: {box}, network: "
            f"{inside[box] / 1e9:g} GB/s}}"
        )
    fastest = Card(*map(max, zip(*cards, strict=True)))
    defaults = {"seconds_per_update": 0.0, "latency_seconds": _latency_outwards(own_card or fastest), **fastest.links}
    assumed = frozenset(defaults) - frozenset(server)
    unbounded = max(fastest.up, fastest.down, *(kind.inside.rate for machine in machines for kind in machine.kinds))
    algorithm = {"all_reduce": AUTO} if any(machine.num_nodes > 1 for machine in machines) else {}
    network = {"latency_seconds": LATENCY_INSIDE, **algorithm, **network, "bytes_per_second": unbounded, "racks": racks}
    return TranslatedMachines(rows, network, {**defaults, **server}, assumed)


def _latency_outwards(card: Card) -> float:
    """The latency that a machine with this card adds to a message."""
    return LATENCY_RDMA if min(card.up, card.down) / card.num_cards >= RDMA_BYTES_PER_SECOND else LATENCY_TCP


def _message_limit(card: Card) -> dict[str, float]:
    """The keys of a rack whose single messages use one of several cards."""
    return {"message_bytes_per_second": card.up / card.num_cards} if card.num_cards > 1 else {}


def _racks_inside(box: str, kind: Kind, racks: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The racks of a machine's GPUs of one kind, and their numbers of GPUs. Pairs are added to `racks`."""
    if kind.inside.across is None:
        yield box, kind.num_nodes
        return
    for first in range(0, kind.num_nodes, 2):
        count = min(2, kind.num_nodes - first)
        card = Card.even(kind.inside.across, count)
        pair = f"{box} pair{sum(name.startswith(f'{box} ') for name in racks)}"
        racks[pair] = {**card.links, **_message_limit(card), "within": box}
        yield pair, count


def _refuse_unused(configs: Sequence[Mapping[str, Any]], network: Mapping[str, Any], reference: Mapping[str, Any]) -> None:
    """Raise ValueError for a default that no machine uses."""
    of_own = all(config.get("network") is not None for config in configs)
    if name := next((name for name in ("bytes_per_second", *LINKS) if name in network and (of_own or name in LINKS)), None):
        raise ValueError(
            f"cluster.network.{name} does nothing, because {'every machine has its own' if of_own else 'machines have a'} network: "
            "leave it out, or set cluster.machines.0.network"
        )
    if reference and all(_time_key(row) for config in configs for _, row in _rows("", config)):
        raise ValueError(
            "cluster.reference does nothing, because every machine has times of its own: leave it out, or give a machine a speed"
        )


def _parse_machine(key: str, config: Any, reference: Mapping[str, Any], default_card: Any, racks: Collection[str]) -> Machine:
    entry = _parse_mapping(key, config, example=ONE)
    rack = entry.get("rack")
    if rack is not None and str(rack) not in racks:
        raise ValueError(
            f"{key}.rack is {checks.shown(rack)}, which cluster.network.racks does not describe: add it there"
            f"{checks.suggestion(rack, racks)}"
        )
    kinds = _parse_kinds(key, entry, reference)
    count = checks.whole(f"{key}.count", entry.pop("count", 1), most=MAX_NODES)
    card = values.card(f"{key}.network", entry.pop("network", default_card))
    if card.num_cards > 1 and kinds[0].inside.rate == 0.0:
        kinds = [kinds[0]._replace(inside=Inside(card.up))]
    half_duplex = values.flag(key, entry, "half_duplex")
    if half_duplex and card.up != card.down:
        raise ValueError(f"{key} is half_duplex, so its network carries both directions at one rate: write network: 40 Mbit/s")
    return Machine(
        kinds=kinds,
        num_copies=count,
        card=card,
        latency_seconds=values.number(key, entry, "latency_seconds", _latency_outwards(card)),
        half_duplex=half_duplex,
        changes={name: entry[name] for name in CHANGES if name in entry},
        rack=rack,
    )


def _parse_mapping(key: str, config: Any, *, keys: Collection[str] | None = None, example: str = "") -> dict[str, Any]:
    """The mapping at a key, with only known keys and without null values. null counts as an empty mapping."""
    entry = checks.mapping(key, {} if config is None else config, optional=keys, example=example)
    return {name: value for name, value in entry.items() if value is not None}


def _rows(key: str, machine: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The rows of a machine's nodes, with their config keys: its `gpus`, or the machine itself without those keys that no node has."""
    gpus = machine.get("gpus")
    if gpus is None:
        return [(key, {name: value for name, value in machine.items() if name not in (*OF_MACHINE, "count", "network")})]
    if isinstance(gpus, Sequence) and not isinstance(gpus, str):
        return [(f"{key}.gpus.{index}", row) for index, row in enumerate(gpus)]
    return [(f"{key}.gpus", gpus)]


def _parse_kinds(key: str, machine: Mapping[str, Any], reference: Mapping[str, Any]) -> list[Kind]:
    """The nodes of a machine: the machine itself, or its GPUs, of one kind or several."""
    rows = _rows(key, machine)
    if not rows:
        raise ValueError(f"{key}.gpus is empty: describe at least one GPU, such as {GPUS}")
    if "gpus" in machine:
        if misplaced := next((name for name in machine if name in OF_NODE and name not in ("count", "loading")), None):
            raise ValueError(f"{key}.{misplaced} is not a key of a machine with gpus: keys of a node belong into {key}.gpus")
        checks.mapping(key, machine, optional=("count", "network", *OF_MACHINE))
        rows = [(of_row, _parse_mapping(of_row, row, example=GPUS)) for of_row, row in rows]
    counts = [_take_number(of_row, row) if "gpus" in machine else 1 for of_row, row in rows]
    rates = [row.pop("inside", machine.get("inside")) for _, row in rows]
    if machine.get("loading") is not None:
        seconds = checks.seconds(f"{key}.loading", machine["loading"]) * sum(counts)
        rows = [(of_row, _add_loading(of_row, row, seconds)) for of_row, row in rows]
    kinds = []
    for (of_row, row), count, rate in zip(rows, counts, rates, strict=True):
        _check_row(of_row, row, sum(counts), beside=key)
        inside = _parse_inside(key, rate, sum(counts))
        overlap = _overlap(f"{key}.overlap_share", machine.get("overlap_share"), inside)
        kinds.append(Kind(of_row, {**overlap, **_add_reference_times(of_row, row, reference)}, count, inside))
    return kinds


def _add_loading(key: str, row: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The row with the loader that all GPUs of its machine share equally."""
    if row.get("loading") is not None:
        raise ValueError(f"{key}.loading and its machine's loading exclude each other: that of the machine is shared by its GPUs")
    return {**row, "loading": seconds}


def _parse_inside(key: str, value: Any, num_gpus: int) -> Inside:
    """The rate of a node's link in its machine, or its rates in a pair and across; 0 if it is alone there."""
    if num_gpus > 1 and value is None:
        raise ValueError(f"{key}.inside is missing: give what each GPU sends inside, such as 12 GB/s for PCIe 3 or 300 GB/s for NVLink")
    if num_gpus == 1 and value is not None:
        raise ValueError(f"{key}.inside does nothing in a machine with one GPU: leave it out, or write gpus: {GPUS} for several")
    if isinstance(value, Mapping):
        entry = checks.mapping(f"{key}.inside", value, required=("pairs", "across"))
        if num_gpus == 2:
            raise ValueError(f"{key}.inside.pairs does nothing in a machine with two GPUs, which are one pair: write inside: 56 GB/s")
        return Inside(*(values.rate(f"{key}.inside.{name}", entry[name]) for name in ("pairs", "across")))
    return Inside(0.0 if value is None else values.rate(f"{key}.inside", value))


def _overlap(key: str, share: Any, inside: Inside) -> dict[str, float]:
    """The key of a node for what a reduction takes from its gradient: a share of the time that its bytes need inside the machine."""
    if share is not None and checks.number(key, share, zero=True) > 1:
        raise ValueError(f"{key} is a share from 0 to 1, not {share:g}: of a percentage take a hundredth")
    if inside.slowest == 0.0:
        if share is not None:
            raise ValueError(f"{key} does nothing in a machine with one GPU: leave it out")
        return {}
    default = OVERLAP_SHARES["PCIe" if inside.slowest < PCIE_BYTES_PER_SECOND else "NVLink"]
    return {"overlap_seconds_per_byte": (default if share is None else share) / inside.slowest}


def _take_number(key: str, row: dict[str, Any]) -> int:
    """Take the number of GPUs out of a row of `gpus`."""
    if "count" not in row:
        raise ValueError(
            f"{key} has no count: write gpus: {GPUS}, with the time of {next(iter(row), 'a GPU')}, or a name of the catalogue, "
            "such as gpus: {t4: 4}, with catalogue: {model: resnet50}"
        )
    return checks.whole(f"{key}.count", row.pop("count"), most=MAX_NODES)


def _check_row(key: str, row: Mapping[str, Any], num_gpus: int, *, beside: str) -> None:
    """Raise ValueError for unknown keys of a node, and for keys that the machine, `beside` it, would override."""
    values.refuse_throughput(key, row)
    card = "network" if num_gpus == 1 else "inside"
    if link := next((name for name in LINKS if name in row), None):
        raise ValueError(f"{key}.{link} does nothing, because the links of machines are their network and inside: write {beside}.{card}")
    overridden = OUTWARDS if num_gpus == 1 else OUTWARDS[:1]
    if name := next((name for name in overridden if name in row), None):
        raise ValueError(f"{key}.{name} does nothing there: write {beside}.{name}")
    if key == beside:
        checks.mapping(key, row, optional=(*OF_NODE, "network", *OF_MACHINE))
    else:
        checks.mapping(key, row, optional=(*OF_NODE, *(name for name in OUTWARDS if name not in overridden)))


def _parse_reference(config: Any) -> dict[str, Any]:
    """The times of a node of speed 1."""
    if config is None:
        return {}
    key = "cluster.reference"
    if isinstance(config, Mapping):
        values.refuse_throughput(key, config)
    entry = checks.mapping(key, config, optional=(*SECONDS, "table"), example="{seconds_per_sample: 2.5 ms}")
    times: dict[str, Any] = {name: values.number(key, entry, name) for name in SECONDS if entry.get(name) is not None}
    return times if entry.get("table") is None else {**times, "table": values.table(f"{key}.table", entry["table"], of="samples")}


def _time_key(row: Mapping[str, Any]) -> str | None:
    """The key with which a row sets its own times, instead of using the reference."""
    return next((name for name in ("seconds_per_sample", "table") if row.get(name) is not None), None)


def _add_reference_times(key: str, row: dict[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the reference's times at its speed. A row with its own times is unchanged."""
    time_key = _time_key(row)
    if time_key is not None and "speed" in row:
        raise ValueError(f"{key} has a speed and {time_key}, which says how fast it is: leave one of them out")
    if time_key is None and not reference:
        raise ValueError(f"{key}.seconds_per_sample is missing: give it, such as 2.5 ms, or a speed with cluster.reference")
    if time_key is None:
        speed = checks.number(f"{key}.speed", row.pop("speed", 1.0))
        table = [[samples, seconds / speed] for samples, seconds in reference.get("table", ())]
        scaled = {name: seconds / speed for name, seconds in reference.items() if name in SECONDS}
        row = {**scaled, **({"table": table} if table else {}), **row}
    return row if "table" in row else {"overhead_seconds": 0.0, **row}
