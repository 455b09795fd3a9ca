"""From a config to a cluster: each mistake gets one sentence that names the key, the value, and what to do."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.cluster import Cluster, Faults, Network, Node, Outages, Rack, Server, SlowSpells
from hetsim.laws import Law, law

LINKS = ("uplink_bytes_per_second", "downlink_bytes_per_second")
DRAWN = ("seconds_per_sample", "overhead_seconds", "seconds_per_update", "latency_seconds", *LINKS)
"""What a row of nodes may give as a law instead of a number: drawn for each of its nodes."""
POSITIVE = ("seconds_per_sample", *LINKS)
MOST = 1_000_000  # nodes of a row
ROW = 10  # sets the drawn nodes' streams of chance apart from those of step_times.py


def cluster(config: Any) -> Cluster:
    """The cluster that a config describes; ValueError with one sentence if it does not describe one."""
    required, optional = ("name", "nodes", "network", "server"), ("faults", "seed")
    entries = checks.mapping("cluster", config, required=required, optional=optional)
    if not isinstance(entries["name"], str) or not entries["name"].strip():
        raise ValueError(f"cluster.name must be a name, not {entries['name']!r}: it stands in every summary and picture")
    rows = _list("cluster.nodes", entries["nodes"], "nodes")
    seed = checks.whole("cluster.seed", 0 if entries.get("seed") is None else entries["seed"], least=0)
    network = _network(entries["network"])
    nodes: list[Node] = []
    for index, row in enumerate(rows):
        nodes += _nodes(f"cluster.nodes[{index}]", row, seed, index)
    if not nodes:
        raise ValueError("cluster.nodes is empty: describe at least one node")
    everyones = entries["network"]
    defaults = {key: _number("cluster.network", everyones, key) for key in LINKS if everyones.get(key) is not None}
    if defaults:
        nodes = [_with(node, {key: value for key, value in defaults.items() if getattr(node, key) is None}) for node in nodes]
    server = _server(entries["server"])
    racks = _racks(everyones.get("racks"), nodes, server)
    if network.all_reduce == "two_level" and any(node.rack is None for node in nodes):
        rank = next(rank for rank, node in enumerate(nodes) if node.rack is None)
        raise ValueError(f"cluster.network.all_reduce=two_level needs each node in a rack, and node {rank} is in none: give its row a rack")
    return Cluster(
        name=entries["name"],
        nodes=tuple(nodes),
        network=replace(network, racks=racks),
        server=server,
        faults=_faults(entries.get("faults"), len(nodes)),
    )


def _list(key: str, value: Any, of: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{key} must be a list of {of}, not {value!r}")
    return value


def _number(key: str, entry: Mapping[str, Any], name: str, default: float | None = 0.0) -> Any:
    """The number under this name, above zero where zero makes no sense; the default where it is missing or null."""
    value = entry.get(name)
    return default if value is None else checks.number(f"{key}.{name}", value, zero=name not in POSITIVE)


def _law(key: str, entry: Mapping[str, Any], name: str) -> Law | None:
    return None if entry.get(name) is None else law(f"{key}.{name}", entry[name])


def _nodes(key: str, config: Any, seed: int, index: int) -> Iterator[Node]:
    """The nodes of one row: `count` alike, but for what is drawn for each."""
    more = (*DRAWN[2:], "noise", "slow_spells", "slowdown", "max_samples", "rack")
    if isinstance(config, Mapping) and config.get("table") is not None:
        for name in DRAWN[:2]:
            if config.get(name) is not None:
                raise ValueError(f"{key} has a table and {name}, which the table replaces: leave one of them out")
        entry = checks.mapping(key, config, required=("count", "table"), optional=more)
        table = _table(f"{key}.table", entry["table"])
    else:
        entry = checks.mapping(key, config, required=("count", *DRAWN[:2]), optional=("table", *more))
        table = ()
    count = checks.whole(f"{key}.count", entry["count"])
    if count > MOST:
        raise ValueError(f"{key}.count must be at most {MOST}, not {count}: so many nodes would not fit into memory")
    drawn: dict[str, list[float]] = {}
    for place, name in enumerate(DRAWN):
        if isinstance(entry.get(name), Mapping):
            drawn[name] = law(f"{key}.{name}", entry[name]).some(count, seed, index, ROW, place)
            if name in POSITIVE and min(drawn[name]) <= 0:
                raise ValueError(f"{key}.{name} must be above zero, but its law drew {min(drawn[name])}: give it a loc above zero")
    given = {name: _number(key, entry, name, None if name in LINKS else 0.0) for name in DRAWN if name not in drawn}
    node = Node(
        **given,
        table=table,
        noise=_law(key, entry, "noise"),
        slow_spells=_spells(f"{key}.slow_spells", entry.get("slow_spells")),
        slowdown=_slowdown(f"{key}.slowdown", entry.get("slowdown")),
        max_samples=None if entry.get("max_samples") is None else checks.whole(f"{key}.max_samples", entry["max_samples"]),
        rack=None if entry.get("rack") is None else str(entry["rack"]),
    )
    for place in range(count):
        yield _with(node, {name: values[place] for name, values in drawn.items()})


def _with(node: Node, numbers: dict[str, Any]) -> Node:
    return replace(node, **numbers) if numbers else node


def _table(key: str, value: Any) -> tuple[tuple[int, float], ...]:
    points: list[tuple[int, float]] = []
    for place, point in enumerate(_list(key, value, "[samples, seconds] that were measured")):
        if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
            raise ValueError(f"{key}[{place}] must be [samples, seconds], not {point!r}")
        samples, seconds = checks.whole(f"{key}[{place}][0]", point[0]), checks.number(f"{key}[{place}][1]", point[1])
        if points and samples <= points[-1][0]:
            raise ValueError(f"{key} must rise in samples, but {samples} comes behind {points[-1][0]}: sort it, each size once")
        points.append((samples, seconds))
    if not points:
        raise ValueError(f"{key} is empty: give at least one [samples, seconds]")
    if len(points) > 1 and points[-1][1] < points[-2][1]:
        raise ValueError(f"{key} must not fall between its last two points, as it goes on like that behind them: measure a larger batch")
    return tuple(points)


def _spells(key: str, config: Any) -> SlowSpells | None:
    """A number of seconds is the mean of an exponential law."""
    if config is None:
        return None
    entry = checks.mapping(key, config, required=("factor", "seconds_between", "seconds_lasting"))
    laws = {}
    for name in ("seconds_between", "seconds_lasting"):
        value = entry[name]
        mean = None if isinstance(value, Mapping) else checks.number(f"{key}.{name}", value)
        laws[name] = law(f"{key}.{name}", value) if mean is None else Law("expon", {"scale": mean})
    return SlowSpells(factor=checks.number(f"{key}.factor", entry["factor"]), **laws)


def _slowdown(key: str, value: Any) -> tuple[tuple[float, float], ...]:
    """A recorded trace: a CSV file with the columns seconds and factor."""
    if value is None:
        return ()
    if not isinstance(value, str):
        raise ValueError(f"{key} must be null or the name of a CSV file with the columns seconds,factor, not {value!r}")
    try:
        with Path(value).open(encoding="utf-8-sig", newline="") as file:
            head, *rows = [*csv.reader(file)] or [[]]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}={value} cannot be read ({error}): give a CSV file with the columns seconds,factor") from None
    if [name.strip() for name in head] != ["seconds", "factor"]:
        raise ValueError(f"{key}={value} must begin with the line seconds,factor, not {','.join(head)!r}")
    points: list[tuple[float, float]] = []
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        where = f"{key}={value}, line {line}:"
        try:
            seconds, factor = (float(cell) for cell in row)
        except ValueError:
            raise ValueError(f"{where} needs two numbers, not {','.join(row)!r}") from None
        if not math.isfinite(seconds) or not 0 < factor < math.inf:
            raise ValueError(f"{where} seconds must be finite and the factor above zero, not {','.join(row)!r}")
        if not points and seconds != 0:
            raise ValueError(f"{where} a trace must start at 0 seconds, not {seconds:g}: add the factor that holds from there")
        if points and seconds <= points[-1][0]:
            if seconds == points[-1][0]:
                raise ValueError(f"{where} there are two factors from {seconds:g} s on: leave one of them out")
            raise ValueError(f"{where} time goes back from {points[-1][0]:g} to {seconds:g} s: sort the rows")
        points.append((seconds, factor))
    if not points:
        raise ValueError(f"{key}={value} has no rows: give at least 0,1")
    return tuple(points)


def _network(config: Any) -> Network:
    required = ("latency_seconds", "bytes_per_second")
    entry = checks.mapping("cluster.network", config, required=required, optional=("jitter_seconds", "all_reduce", "racks", *LINKS))
    algorithm = "ring" if entry.get("all_reduce") is None else entry["all_reduce"]
    return Network(
        latency_seconds=checks.number("cluster.network.latency_seconds", entry["latency_seconds"], zero=True),
        bytes_per_second=checks.number("cluster.network.bytes_per_second", entry["bytes_per_second"]),
        jitter_seconds=_law("cluster.network", entry, "jitter_seconds"),
        all_reduce=checks.choice("cluster.network.all_reduce", algorithm, ("ring", "halving_doubling", "two_level")),
    )


def _server(config: Any) -> Server:
    key = "cluster.server"
    optional = ("seconds_per_byte", "noise", "shards", "latency_seconds", *LINKS, "rack")
    entry = checks.mapping(key, config, required=("seconds_per_update",), optional=optional)
    return Server(
        seconds_per_update=checks.number(f"{key}.seconds_per_update", entry["seconds_per_update"], zero=True),
        seconds_per_byte=_number(key, entry, "seconds_per_byte"),
        noise=_law(key, entry, "noise"),
        shards=checks.whole(f"{key}.shards", 1 if entry.get("shards") is None else entry["shards"]),
        latency_seconds=_number(key, entry, "latency_seconds"),
        uplink_bytes_per_second=_number(key, entry, LINKS[0], None),
        downlink_bytes_per_second=_number(key, entry, LINKS[1], None),
        rack=None if entry.get("rack") is None else str(entry["rack"]),
    )


def _racks(config: Any, nodes: Sequence[Node], server: Server) -> dict[str, Rack]:
    """Racks by name: each one used, each one named described, none within itself."""
    key = "cluster.network.racks"
    config = {} if config is None else config
    if not isinstance(config, Mapping):
        raise ValueError(f"{key} must be a mapping from names to racks, such as {{a: {{uplink_bytes_per_second: 1e9}}}}, not {config!r}")
    entries = {
        str(name): checks.mapping(f"{key}.{name}", entry or {}, optional=(*LINKS, "oversubscription", "latency_seconds", "within"))
        for name, entry in config.items()
    }
    inside = {name: None if entry.get("within") is None else str(entry["within"]) for name, entry in entries.items()}
    used = [*((f"node {rank}", node.rack) for rank, node in enumerate(nodes)), ("the server", server.rack)]
    used += [(f"{key}.{name}", within) for name, within in inside.items()]
    for who, rack in used:
        if rack is not None and rack not in entries:
            raise ValueError(f"{who} is in rack {rack!r}, which {key} does not describe: add it there{checks.suggestion(rack, entries)}")
    for name in entries:
        way, at = [name], inside[name]
        while at is not None:
            if at in way:
                raise ValueError(f"{key} goes round in a circle, {' in '.join([*way, at])}: let one of them stand in no other")
            way.append(at)
            at = inside[at]
    occupied = {rack for _, rack in used if rack is not None}
    for name in entries:
        if name not in occupied:
            raise ValueError(f"{key}.{name} has nothing in it: give rows of cluster.nodes rack: {name}, or leave it out")
    return {name: _rack(f"{key}.{name}", entry, _members(name, nodes, inside)) for name, entry in entries.items()}


def _members(rack: str, nodes: Sequence[Node], inside: Mapping[str, str | None]) -> list[Node]:
    """The nodes in a rack, and in racks in it."""
    racks: Collection[str | None] = {name for name in inside if rack in _outwards(name, inside)}
    return [node for node in nodes if node.rack in racks]


def _outwards(rack: str | None, inside: Mapping[str, str | None]) -> Iterator[str]:
    while rack is not None:
        yield rack
        rack = inside[rack]


def _rack(key: str, entry: Mapping[str, Any], members: Sequence[Node]) -> Rack:
    """With `oversubscription` k, its link carries 1/k of what its nodes' links carry together."""
    carries = {name: _number(key, entry, name, None) for name in LINKS}
    if entry.get("oversubscription") is not None:
        times = checks.number(f"{key}.oversubscription", entry["oversubscription"])
        if any(carries.values()):
            raise ValueError(f"{key} has an oversubscription and a link of its own: leave one of them out")
        for name in LINKS:
            theirs = [getattr(node, name) for node in members]
            if not theirs or None in theirs:
                raise ValueError(f"{key}.oversubscription needs {name} of each of its nodes: add cluster.network.{name}")
            carries[name] = math.fsum(theirs) / times
    if carries[LINKS[1]] is None:
        carries[LINKS[1]] = carries[LINKS[0]]
    within = None if entry.get("within") is None else str(entry["within"])
    return Rack(**carries, latency_seconds=_number(key, entry, "latency_seconds"), within=within)


SCHEDULED, BY_LAW = ("join", "crash", "repair", "leave"), ("seconds_to_crash", "seconds_to_repair")


def _faults(config: Any, num_nodes: int) -> Faults:
    key = "cluster.faults"
    if config is None:
        return Faults()
    entry = checks.mapping(key, config, optional=("detection_seconds", "regroup_seconds", "schedule"))
    absent: dict[int, list[tuple[float, float]]] = {}
    by_law: dict[int, tuple[Law, Law | None]] = {}
    for index, row in enumerate(_list(f"{key}.schedule", entry.get("schedule") or [], "faults")):
        where = f"{key}.schedule[{index}]"
        fault = checks.mapping(where, row, required=("nodes",), optional=(*SCHEDULED, *BY_LAW))
        for rank in _ranks(f"{where}.nodes", fault["nodes"], num_nodes):
            if fault.get("seconds_to_crash") is not None:
                if rank in by_law:
                    raise ValueError(f"{where}: node {rank} crashes by a law already: give it one")
                to_repair = _law(where, fault, "seconds_to_repair")
                by_law[rank] = law(f"{where}.seconds_to_crash", fault["seconds_to_crash"]), to_repair
            absent.setdefault(rank, []).extend(_absences(where, fault))
    for rank, times in absent.items():
        times.sort()
        for (_, until), (start, _) in pairwise(times):
            if start <= until:
                gone = "left for good" if until == math.inf else f"is not there until {until:g} s"
                raise ValueError(f"{key}.schedule: node {rank} is to go at {start:g} s, but {gone}: mend its rows")
        if rank in by_law and times and times[-1][1] == math.inf:
            raise ValueError(f"{key}.schedule: node {rank} cannot crash by a law, as it leaves for good: leave one of them out")
    return Faults(
        detection_seconds=_number(key, entry, "detection_seconds"),
        regroup_seconds=_number(key, entry, "regroup_seconds"),
        nodes={rank: Outages(scheduled=tuple(absent[rank]), **_laws(by_law.get(rank))) for rank in sorted(absent)},
    )


def _laws(both: tuple[Law, Law | None] | None) -> dict[str, Law | None]:
    return {} if both is None else dict(zip(BY_LAW, both, strict=True))


def _absences(where: str, fault: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """From a row's join, crash and repair, or leave: when its nodes are not there."""
    at = {name: checks.number(f"{where}.{name}", fault[name]) for name in SCHEDULED if fault.get(name) is not None}
    if not at and fault.get("seconds_to_crash") is None:
        raise ValueError(f"{where} says nothing of its nodes: give it {', '.join(SCHEDULED)} in seconds, or seconds_to_crash by a law")
    if fault.get("seconds_to_repair") is not None and fault.get("seconds_to_crash") is None:
        raise ValueError(f"{where}.seconds_to_repair does nothing without seconds_to_crash: add it, or give crash and repair in seconds")
    if "repair" in at and "crash" not in at:
        raise ValueError(f"{where}.repair does nothing without a crash: add it")
    if "join" in at:
        yield 0.0, at["join"]
    if "crash" in at:
        if at.get("repair", math.inf) <= at["crash"]:
            raise ValueError(f"{where}: repair at {at['repair']:g} s must come behind crash at {at['crash']:g} s")
        yield at["crash"], at.get("repair", math.inf)
    if "leave" in at:
        yield at["leave"], math.inf


def _ranks(key: str, value: Any, num_nodes: int) -> Sequence[int]:
    if value == "all":
        return range(num_nodes)
    ranks = _list(key, value, "nodes by their rank, such as [0, 3], or all")
    if not ranks:
        raise ValueError(f"{key} names no node: list some by their rank, or say all")
    for rank in ranks:
        if checks.whole(key, rank, least=0) >= num_nodes:
            raise ValueError(f"{key}: there is no node {rank}, as the cluster has {num_nodes}: count from 0")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{key} names a node twice: {list(ranks)}")
    return ranks
