"""From `cluster.machines` to rows of nodes, racks and a server.

The GPUs of a machine are a rack, and the link of the rack is the network card that they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hetsim import checks
from hetsim.cluster.parse.nodes import MAX_NODES_PER_ROW
from hetsim.cluster.parse.values import LINKS, _flag, _list, _number, _rate, _table

LATENCY_INSIDE, LATENCY_OUTWARDS = 10e-6, 20e-6
"""Seconds of a message, and what each machine adds that it leaves or enters: 50 µs between two machines."""
OF_MACHINE = ("gpus", "inside", "rack", "latency_seconds", "half_duplex")
SECONDS = ("seconds_per_sample", "overhead_seconds", "seconds_per_update")
"""What takes a node of twice the speed half as long; its table, too."""


class Described(NamedTuple):
    """Rows of nodes, each with its key in the config, and the network and the server that go with them."""

    rows: list[tuple[str, Any]]
    network: dict[str, Any]
    server: dict[str, Any]


class Card(NamedTuple):
    """What a network card sends and receives, in bytes per second."""

    up: float
    down: float

    @property
    def links(self) -> dict[str, float]:
        """As a node or a rack has it."""
        return dict(zip(LINKS, self, strict=True))


class Machine(NamedTuple):
    """So many equal machines, each of so many nodes. `key` is that of one node in the config, `inside` in bytes per second."""

    key: str
    node: dict[str, Any]
    num_nodes: int
    num_copies: int
    card: Card
    latency_seconds: float
    half_duplex: bool
    inside: float
    rack: str | None


def described(entries: Mapping[str, Any]) -> Described:
    """What these machines are, in the words of `cluster.nodes`; ValueError with one sentence if they are none."""
    if entries.get("nodes") is not None:
        raise ValueError("cluster has nodes and machines, which become nodes: leave one of them out")
    network, reference = _given("cluster.network", entries.get("network") or {}), _reference(entries.get("reference"))
    machines = [
        _machine(f"cluster.machines[{index}]", config, reference, network.get("bytes_per_second"))
        for index, config in enumerate(_list("cluster.machines", entries["machines"], "machines"))
    ]
    if not machines:
        raise ValueError("cluster.machines is empty: describe at least one machine")
    racks = checks.mapping("cluster.network.racks", network.get("racks") or {}, optional=None)
    rows: list[tuple[str, Any]] = []
    for machine in machines:
        outwards = {**machine.card.links, "latency_seconds": machine.latency_seconds, "half_duplex": machine.half_duplex}
        if machine.num_nodes == 1:
            rows.append((machine.key, {**machine.node, "count": machine.num_copies, **outwards, "rack": machine.rack}))
            continue
        for _ in range(machine.num_copies):
            box = f"box{len(rows)}"
            if box in racks:
                raise ValueError(f"cluster.network.racks.{box} is the name of a machine with several GPUs: call the rack otherwise")
            racks[box] = {**outwards, "within": machine.rack}
            links = Card(machine.inside, machine.inside).links
            rows.append((machine.key, {**machine.node, "count": machine.num_nodes, **links, "rack": box}))
    server = _given("cluster.server", entries.get("server") or {})
    given, fastest = server.pop("network", None), Card(*map(max, zip(*(machine.card for machine in machines), strict=True)))
    card = fastest if given is None else _card("cluster.server.network", given)
    server = {"seconds_per_update": 0.0, "latency_seconds": LATENCY_OUTWARDS, **card.links, **server}
    unbounded = max(*card, *fastest, *(machine.inside for machine in machines))
    network = {"latency_seconds": LATENCY_INSIDE, **network, "bytes_per_second": unbounded, "racks": racks}
    return Described(rows, network, server)


def _machine(key: str, config: Any, reference: Mapping[str, Any], default_card: Any) -> Machine:
    entry = _given(key, config)
    count = checks.whole(f"{key}.count", entry.pop("count", 1), most=MAX_NODES_PER_ROW)
    card = _card(f"{key}.network", entry.pop("network", default_card))
    num_nodes, of_node, node = _gpus(key, entry)
    return Machine(
        key=of_node,
        node=_timed(of_node, node, reference),
        num_nodes=num_nodes,
        num_copies=count,
        card=card,
        latency_seconds=_number(key, entry, "latency_seconds", LATENCY_OUTWARDS),
        half_duplex=_flag(key, entry, "half_duplex"),
        inside=_rate(f"{key}.inside", entry["inside"]) if num_nodes > 1 else 0.0,
        rack=entry.get("rack"),
    )


def _given(key: str, config: Any) -> dict[str, Any]:
    """A mapping of any keys, without those that are null."""
    return {name: value for name, value in checks.mapping(key, config, optional=None).items() if value is not None}


def _card(key: str, value: Any) -> Card:
    if value is None:
        raise ValueError(f"{key} is missing: give the rate of its network card, such as 1 Gbit/s")
    if not isinstance(value, Mapping):
        return Card(*2 * [_rate(key, value)])
    entry = checks.mapping(key, value, required=Card._fields)
    return Card(*(_rate(f"{key}.{name}", entry[name]) for name in Card._fields))


def _gpus(key: str, machine: Mapping[str, Any]) -> tuple[int, str, dict[str, Any]]:
    """How many nodes a machine is, the key that describes one of them, and what it says."""
    own = {name: value for name, value in machine.items() if name not in OF_MACHINE}
    if "gpus" not in machine:
        num_gpus, of_row, row = 1, key, own
    else:
        of_row = f"{key}.gpus"
        row = _given(of_row, machine["gpus"])
        if "count" not in row:
            raise ValueError(
                f"{of_row} has no count, and hetsim knows no GPU by its name: write gpus: {{count: 2, seconds_per_sample: 2.5 ms}}, with "
                f"the time of {next(iter(row), 'a GPU')}"
            )
        num_gpus = checks.whole(f"{of_row}.count", row.pop("count"), most=MAX_NODES_PER_ROW)
    if num_gpus > 1 and "inside" not in machine:
        raise ValueError(f"{key}.inside is missing: give what each GPU sends inside, such as 12 GB/s for PCIe 3 or 300 GB/s for NVLink")
    if num_gpus == 1 and "inside" in machine:
        raise ValueError(f"{key}.inside does nothing in a machine with one GPU: leave it out")
    if own and "gpus" in machine:
        raise ValueError(f"{key}.{next(iter(own))} is no key of a machine with gpus: keys of a node belong into {of_row}")
    return num_gpus, of_row, row


def _reference(config: Any) -> dict[str, Any]:
    """The times of a node of speed 1."""
    if config is None:
        return {}
    key = "cluster.reference"
    entry = checks.mapping(key, config, optional=(*SECONDS, "table"))
    times: dict[str, Any] = {name: _number(key, entry, name) for name in SECONDS if entry.get(name) is not None}
    return times if entry.get("table") is None else {**times, "table": _table(f"{key}.table", entry["table"], of="samples")}


def _timed(key: str, row: dict[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the times of the reference at its speed, unless it has times of its own."""
    own = next((name for name in ("seconds_per_sample", "table") if name in row), None)
    if own is not None and "speed" in row:
        raise ValueError(f"{key} has a speed and {own}, which says how fast it is: leave one of them out")
    if own is None and not reference:
        raise ValueError(f"{key}.seconds_per_sample is missing: give it, such as 2.5 ms, or a speed with cluster.reference")
    if own is None:
        speed = checks.number(f"{key}.speed", row.pop("speed", 1.0))
        table = [[samples, seconds / speed] for samples, seconds in reference.get("table", ())]
        scaled = {name: seconds / speed for name, seconds in reference.items() if name in SECONDS}
        row = {**scaled, **({"table": table} if table else {}), **row}
    return row if "table" in row else {"overhead_seconds": 0.0, **row}
