"""From `cluster.faults` to the times at which each node is absent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hetsim import checks
from hetsim.cluster.distributions import Distribution, parse_distribution
from hetsim.cluster.model import Faults, Outages
from hetsim.cluster.parse.values import _distribution, _list, _number

SCHEDULED, DRAWN = ("join", "crash", "repair", "leave"), ("seconds_to_crash", "seconds_to_repair")


def _faults(config: Any, num_nodes: int) -> Faults:
    key = "cluster.faults"
    if config is None:
        return Faults()
    entry = checks.mapping(key, config, optional=("detection_seconds", "regroup_seconds", "schedule"))
    absent: dict[int, list[tuple[float, float]]] = {}
    drawn: dict[int, tuple[Distribution, Distribution | None]] = {}
    for index, row in enumerate(_list(f"{key}.schedule", entry.get("schedule") or [], "faults")):
        where = f"{key}.schedule[{index}]"
        fault = checks.mapping(where, row, required=("nodes",), optional=(*SCHEDULED, *DRAWN))
        for rank in _ranks(f"{where}.nodes", fault["nodes"], num_nodes):
            if fault.get("seconds_to_crash") is not None:
                if rank in drawn:
                    raise ValueError(f"{where}: node {rank} has a distribution of crashes already: give it one")
                to_repair = _distribution(where, fault, "seconds_to_repair")
                drawn[rank] = parse_distribution(f"{where}.seconds_to_crash", fault["seconds_to_crash"]), to_repair
            absent.setdefault(rank, []).extend(_absences(where, fault))
    for rank, times in absent.items():
        times.sort()
        for (_, until), (start, _) in pairwise(times):
            if start <= until:
                absence = "left for good" if until == math.inf else f"is not there until {until:g} s"
                raise ValueError(f"{key}.schedule: node {rank} is to go at {start:g} s, but {absence}: correct its rows")
        if rank in drawn and times and times[-1][1] == math.inf:
            raise ValueError(f"{key}.schedule: node {rank} cannot crash at drawn times, as it leaves for good: leave one of them out")
    return Faults(
        detection_seconds=_number(key, entry, "detection_seconds"),
        regroup_seconds=_number(key, entry, "regroup_seconds"),
        nodes={rank: Outages(scheduled=tuple(absent[rank]), **_distributions(drawn.get(rank))) for rank in sorted(absent)},
    )


def _distributions(both: tuple[Distribution, Distribution | None] | None) -> dict[str, Distribution | None]:
    return {} if both is None else dict(zip(DRAWN, both, strict=True))


def _absences(where: str, fault: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """(from, until) in seconds at which the nodes of a row are absent: before join, from crash to repair, after leave."""
    at = {name: checks.seconds(f"{where}.{name}", fault[name]) for name in SCHEDULED if fault.get(name) is not None}
    if not at and fault.get("seconds_to_crash") is None:
        raise ValueError(f"{where} describes no fault: give it {', '.join(SCHEDULED)} in seconds, or a drawn seconds_to_crash")
    if fault.get("seconds_to_repair") is not None and fault.get("seconds_to_crash") is None:
        raise ValueError(f"{where}.seconds_to_repair does nothing without seconds_to_crash: add it, or give crash and repair in seconds")
    if "repair" in at and "crash" not in at:
        raise ValueError(f"{where}.repair does nothing without a crash: add it")
    if "join" in at:
        yield 0.0, at["join"]
    if "crash" in at:
        if at.get("repair", math.inf) <= at["crash"]:
            raise ValueError(f"{where}: repair at {at['repair']:g} s must come after crash at {at['crash']:g} s")
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
