"""Find the times at which each node is absent, from `cluster.faults`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hetsim import checks
from hetsim.cluster.distributions import Distribution, parse_distribution
from hetsim.cluster.faults import Faults, Outages, WeightCheckpoints
from hetsim.cluster.model import NodeSpec
from hetsim.cluster.parse import values
from hetsim.cluster.parse.availability import read_absences

SCHEDULED, DRAWN = ("join", "crash", "repair", "leave", "stop", "continue"), ("seconds_to_crash", "seconds_to_repair")


def parse_faults(config: Any, num_nodes: int) -> Faults:
    """The faults that `cluster.faults` describes. Raises ValueError if they are invalid."""
    key = "cluster.faults"
    if config is None:
        return Faults()
    optional = ("detection_seconds", "regroup_seconds", "schedule", "lost_after_seconds", "file", "checkpoint")
    entry = checks.mapping(key, config, optional=optional)
    seconds = entry.get("lost_after_seconds")
    lost_after = Faults.lost_after_seconds if seconds is None else checks.seconds(f"{key}.lost_after_seconds", seconds)
    stops: dict[int, list[tuple[float, float]]] = {}
    absent: dict[int, list[tuple[float, float]]] = {}
    drawn: dict[int, tuple[Distribution, Distribution | None]] = {}
    for index, row in enumerate(values.sequence(f"{key}.schedule", entry.get("schedule") or [], "faults")):
        place = f"{key}.schedule.{index}"
        fault = checks.mapping(place, row, required=("nodes",), optional=(*SCHEDULED, *DRAWN))
        for rank in _parse_ranks(f"{place}.nodes", fault["nodes"], num_nodes):
            if fault.get("seconds_to_crash") is not None:
                if rank in drawn:
                    raise ValueError(f"{place}: node {rank} has a distribution of crashes already: give it one")
                to_repair = values.distribution(place, fault, "seconds_to_repair")
                drawn[rank] = parse_distribution(f"{place}.seconds_to_crash", fault["seconds_to_crash"]), to_repair
            absent.setdefault(rank, []).extend(_absences(place, fault))
            stops.setdefault(rank, []).extend(_stops(place, fault))
    for rank, gaps in ({} if entry.get("file") is None else read_absences(f"{key}.file", entry["file"], num_nodes)).items():
        absent.setdefault(rank, []).extend(gaps)
    for rank, times in absent.items():
        times.extend(stops.setdefault(rank, []))
        times.sort()
        for (_, until), (start, _) in pairwise(times):
            if start <= until:
                absence = "left for good" if until == math.inf else f"is not there until {until:g} s"
                raise ValueError(f"{key}.schedule: node {rank} is to go at {start:g} s, but {absence}: correct its rows")
        if rank in drawn and times and times[-1][1] == math.inf:
            raise ValueError(f"{key}.schedule: node {rank} cannot crash at drawn times, because it leaves for good: leave one of them out")
    pauses = {
        rank: tuple(interval for interval in sorted(times) if interval[1] - interval[0] < lost_after)
        for rank, times in sorted(stops.items())
    }
    nodes = {}
    for rank, times in sorted(absent.items()):
        scheduled = tuple(interval for interval in times if interval not in pauses[rank])
        if scheduled or rank in drawn:
            hangs = frozenset(start for start, _ in stops[rank])
            nodes[rank] = Outages(scheduled=scheduled, hangs=hangs, **_distributions(drawn.get(rank)))
    return Faults(
        detection_seconds=values.number(key, entry, "detection_seconds"),
        regroup_seconds=values.number(key, entry, "regroup_seconds"),
        nodes=nodes,
        lost_after_seconds=lost_after,
        pauses={rank: times for rank, times in pauses.items() if times},
        checkpoint=_parse_checkpoint(f"{key}.checkpoint", entry.get("checkpoint")),
    )


def _parse_checkpoint(key: str, config: Any) -> WeightCheckpoints | None:
    if config is None:
        return None
    entry = checks.mapping(key, config, required=("every",), optional=("seconds", "restart_seconds"))
    every = checks.seconds(f"{key}.every", entry["every"], zero=False)
    return WeightCheckpoints(every=every, **{name: values.number(key, entry, name) for name in ("seconds", "restart_seconds")})


def add_pauses(node: NodeSpec, pauses: Sequence[tuple[float, float]]) -> NodeSpec:
    """The node with pauses, in which it computes nothing."""
    if node.slowdown_period_seconds is not None:
        raise ValueError("cluster.faults.schedule stops a node with a slowdown_period_seconds: leave one of them out")
    recorded = node.slowdown or ((0.0, 1.0),)
    changes = {start for start, _ in recorded} | {moment for pause in pauses for moment in pause}

    def factor(moment: float) -> float:
        if any(start <= moment < until for start, until in pauses):
            return math.inf
        return [factor for start, factor in recorded if start <= moment][-1]

    return replace(node, slowdown=tuple((moment, factor(moment)) for moment in sorted(changes)))


def _distributions(distributions: tuple[Distribution, Distribution | None] | None) -> dict[str, Distribution | None]:
    return {} if distributions is None else dict(zip(DRAWN, distributions, strict=True))


def _absences(place: str, fault: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """(from, until) in seconds at which a row's nodes are absent: before a join, from a crash to its repair, and after a leave."""
    at = {name: checks.seconds(f"{place}.{name}", fault[name]) for name in SCHEDULED if fault.get(name) is not None}
    if not at and fault.get("seconds_to_crash") is None:
        raise ValueError(f"{place} describes no fault: give it {', '.join(SCHEDULED)} in seconds, or a drawn seconds_to_crash")
    if fault.get("seconds_to_repair") is not None and fault.get("seconds_to_crash") is None:
        raise ValueError(f"{place}.seconds_to_repair does nothing without seconds_to_crash: add it, or give crash and repair in seconds")
    if "repair" in at and "crash" not in at:
        raise ValueError(f"{place}.repair does nothing without a crash: add it")
    if "join" in at:
        yield 0.0, at["join"]
    if "crash" in at:
        if at.get("repair", math.inf) <= at["crash"]:
            raise ValueError(f"{place}: repair at {at['repair']:g} s must come after crash at {at['crash']:g} s")
        yield at["crash"], at.get("repair", math.inf)
    if "leave" in at:
        yield at["leave"], math.inf


def _stops(place: str, fault: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """(from, until) in seconds at which a row's nodes are stopped."""
    at = {name: checks.seconds(f"{place}.{name}", fault[name]) for name in ("stop", "continue") if fault.get(name) is not None}
    if "continue" in at and at["continue"] <= at.get("stop", math.inf):
        problem = f"must come after stop at {at['stop']:g} s" if "stop" in at else "does nothing without a stop"
        raise ValueError(f"{place}: continue at {at['continue']:g} s {problem}: correct it")
    if "stop" in at:
        yield at["stop"], at.get("continue", math.inf)


def _parse_ranks(key: str, value: Any, num_nodes: int) -> Sequence[int]:
    if value == "all":
        return range(num_nodes)
    ranks = values.sequence(key, value, "nodes by their rank, such as [0, 3], or all")
    if not ranks:
        raise ValueError(f"{key} names no node: list some by their rank, or say all")
    for rank in ranks:
        if checks.whole(key, rank, least=0) >= num_nodes:
            raise ValueError(f"{key}: there is no node {rank}, because the cluster has {num_nodes}: count from 0")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{key} names a node twice: {list(ranks)}")
    return ranks
