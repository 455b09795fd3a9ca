"""Make nodes from rows of `cluster.nodes`: numbers, distributions, tables, slow spells and recorded slowdowns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hetsim import checks
from hetsim.cluster.distributions import Distribution, parse_distribution
from hetsim.cluster.factors import regular_file
from hetsim.cluster.model import NodeSpec, SlowSpells
from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.cluster.parse import values
from hetsim.cluster.parse.hosts import COLD, CPU, FIRST, parse_cold, parse_cpu
from hetsim.cluster.parse.values import LINKS, POSITIVE

CHANGES = ("link_slowdown", "link_slowdown_period_seconds")
"""The keys for changing links, which nodes, racks, the server and machines have."""
LOCAL = "seconds_per_local_update"
DRAWN = ("seconds_per_sample", "overhead_seconds", "seconds_per_update", "latency_seconds", *LINKS, LOCAL)
"""The keys for which a row of nodes may give a distribution. A number is drawn for each of its nodes."""

OTHERS = (
    *("loading", "noise", "slow_spells", "slowdown", "slowdown_period_seconds"),
    *("max_samples", "micro_batch", "half_duplex", "rack", "device", "cost_per_hour", "overlap_seconds_per_byte", *CHANGES),
)
OF_ROW = ("count", *DRAWN, "table", *CPU, *COLD, FIRST, *OTHERS)
"""All keys of a row."""
EXAMPLE = "{count: 2, seconds_per_sample: 2.5 ms, overhead_seconds: 1 ms}"

MAX_NODES = 1_000_000
"""The most nodes of a cluster."""
MAX_FACTOR = 1e9
"""The maximum factor by which a slow spell slows or speeds up work."""


MAX_COST = 1e9


ROW = 10  # number of the random stream of drawn nodes; those of a run are in outages.py


def check_number_of_nodes(key: str, number: int) -> None:
    """Raise ValueError for more nodes than a cluster may have."""
    if number > MAX_NODES:
        raise ValueError(f"{key} must be at most {MAX_NODES}, not {number}: so many nodes would not fit into memory")


def parse_nodes(key: str, config: Any, seed: int, index: int) -> Iterator[NodeSpec]:
    """The `count` nodes of one row. They are equal, except for numbers that are drawn for each node."""
    more = (*DRAWN[2:], "network", *CPU, *COLD, FIRST, *OTHERS)
    if isinstance(config, Mapping):
        values.refuse_throughput(key, config)
    if isinstance(config, Mapping) and config.get("table") is not None:
        for name in DRAWN[:2]:
            if config.get(name) is not None:
                raise ValueError(f"{key} has a table and {name}, which the table replaces: leave one of them out")
        entry = checks.mapping(key, config, required=("count", "table"), optional=more)
        table = values.table(f"{key}.table", entry["table"], of="samples")
    else:
        entry = checks.mapping(key, config, required=("count", *DRAWN[:2]), optional=("table", *more), example=EXAMPLE)
        table = ()
    entry = values.expand_network(key, entry)
    count = checks.whole(f"{key}.count", entry["count"])
    check_number_of_nodes(f"{key}.count", count)
    drawn: dict[str, list[float]] = {}
    for place, name in enumerate(DRAWN):
        if isinstance(entry.get(name), Mapping):
            drawn[name] = parse_distribution(f"{key}.{name}", entry[name]).sample(count, seed, index, ROW, place)
            if name in POSITIVE and min(drawn[name]) <= 0:
                raise ValueError(f"{key}.{name} must be above zero, but its distribution drew {min(drawn[name])}: give it a loc above zero")
            for value in (min(drawn[name]), max(drawn[name])):
                values.number(f"a draw of {key}", {name: value}, name)
    numbers = {name: values.number(key, entry, name, None if name in (*LINKS, LOCAL) else 0.0) for name in DRAWN if name not in drawn}
    slowdown = _read_slowdown(f"{key}.slowdown", entry.get("slowdown"))
    node = NodeSpec(
        **numbers,
        table=table,
        loading=_parse_loading(key, entry),
        noise=values.distribution(key, entry, "noise"),
        slow_spells=_parse_spells(f"{key}.slow_spells", entry.get("slow_spells")),
        slowdown=slowdown,
        slowdown_period_seconds=_parse_period(key, entry, slowdown),
        link_slowdown=parse_link_slowdown(key, entry),
        **parse_cpu(key, entry),
        **parse_cold(key, entry),
        max_samples=_parse_count(key, entry, "max_samples"),
        micro_batch=_parse_count(key, entry, "micro_batch"),
        half_duplex=values.flag(key, entry, "half_duplex"),
        rack=None if entry.get("rack") is None else str(entry["rack"]),
        device=None if entry.get("device") is None else checks.device(f"{key}.device", entry["device"]),
        cost_per_hour=_parse_cost(f"{key}.cost_per_hour", entry.get("cost_per_hour")),
        overlap_seconds_per_byte=_parse_overlap(f"{key}.overlap_seconds_per_byte", entry.get("overlap_seconds_per_byte")),
    )
    for place in range(count):
        yield replace_numbers(node, {name: values[place] for name, values in drawn.items()})


def _parse_count(key: str, entry: Mapping[str, Any], name: str) -> int | None:
    return None if entry.get(name) is None else checks.whole(f"{key}.{name}", entry[name])


def _parse_loading(key: str, entry: Mapping[str, Any]) -> float:
    seconds: float = values.number(key, entry, "loading")
    if seconds and entry.get("host") is not None:
        raise ValueError(f"{key} has a loader and a host, whose cores the loader would share: leave one of loading and host out")
    return seconds


def _parse_cost(key: str, value: Any) -> float:
    if value is None:
        return 0.0
    if checks.number(key, value, zero=True) > MAX_COST:
        raise ValueError(f"{key} must be at most {MAX_COST:g}, not {checks.shown(value)}")
    return float(value)


def _parse_overlap(key: str, value: Any) -> float:
    return 0.0 if value is None else float(checks.number(key, value, zero=True))


def replace_numbers(node: NodeSpec, numbers: dict[str, Any]) -> NodeSpec:
    """The node with these values of fields; the same object if there are none."""
    return replace(node, **numbers) if numbers else node


def _parse_spells(key: str, config: Any) -> SlowSpells | None:
    """Slow spells. A number of seconds is the mean of an exponential distribution."""
    if config is None:
        return None
    entry = checks.mapping(key, config, required=("factor", "seconds_between", "seconds_lasting"))
    distributions = {}
    for name in ("seconds_between", "seconds_lasting"):
        value = entry[name]
        mean = None if isinstance(value, Mapping) else checks.seconds(f"{key}.{name}", value)
        distributions[name] = parse_distribution(f"{key}.{name}", value) if mean is None else Distribution("expon", {"scale": mean})
    return SlowSpells(factor=_parse_factor(f"{key}.factor", entry["factor"]), **distributions)


def _parse_factor(key: str, value: Any) -> float:
    """The factor by which work takes longer or shorter."""
    if not 1 / MAX_FACTOR <= checks.number(key, value) <= MAX_FACTOR:
        raise ValueError(f"{key} must be between {1 / MAX_FACTOR:g} and {MAX_FACTOR:g}, not {value!r}")
    return float(value)


def _parse_period(key: str, entry: Mapping[str, Any], slowdown: tuple[tuple[float, float], ...], name: str = "slowdown") -> float | None:
    """The period after which a recorded slowdown repeats."""
    period: float | None = values.number(key, entry, f"{name}_period_seconds", None)
    if period is None:
        return None
    if not slowdown:
        raise ValueError(f"{key}.{name}_period_seconds does nothing without a {name}: add it, or leave the period out")
    if period <= slowdown[-1][0]:
        raise ValueError(f"{key}.{name}_period_seconds must be later than the last row of the {name}, not {period:g}")
    return period


def parse_link_slowdown(key: str, entry: Mapping[str, Any]) -> LinkSlowdown | None:
    """The slowdown of an entry's link; None if the entry has none."""
    points = _read_slowdown(f"{key}.link_slowdown", entry.get("link_slowdown"))
    period = _parse_period(key, entry, points, "link_slowdown")
    return LinkSlowdown(points, period) if points else None


def _read_slowdown(key: str, value: Any) -> tuple[tuple[float, float], ...]:
    """A recorded slowdown: a CSV file with the columns seconds and factor."""
    if value is None:
        return ()
    if not isinstance(value, str):
        raise ValueError(f"{key} must be null or the name of a CSV file with the columns seconds,factor, not {value!r}")
    try:
        with regular_file(value).open(encoding="utf-8-sig", newline="") as file:
            head, *rows = [*csv.reader(file)] or [[]]
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"{key}={value} cannot be read ({reason}): give a CSV file with the columns seconds,factor") from None
    # a sentence quotes nothing of the file, as the config may be a stranger's and the file the user's
    if [name.strip() for name in head] != ["seconds", "factor"]:
        raise ValueError(f"{key}={value} must begin with the line seconds,factor: give another file, or add it")
    points: list[tuple[float, float]] = []
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        place = f"{key}={value}, line {line}:"
        try:
            seconds, factor = (float(cell) for cell in row)
        except ValueError:
            raise ValueError(f"{place} needs two numbers, seconds and factor: correct it") from None
        if not math.isfinite(seconds) or not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
            raise ValueError(f"{place} seconds must be finite, and the factor between {1 / MAX_FACTOR:g} and {MAX_FACTOR:g}: correct it")
        if not points and seconds != 0:
            raise ValueError(f"{place} a trace must start at 0 seconds, not {seconds:g}: add the factor that holds from there")
        if points and seconds <= points[-1][0]:
            if seconds == points[-1][0]:
                raise ValueError(f"{place} there are two factors from {seconds:g} s on: leave one of them out")
            raise ValueError(f"{place} time goes back from {points[-1][0]:g} to {seconds:g} s: sort the rows")
        points.append((seconds, factor))
    if not points:
        raise ValueError(f"{key}={value} has no rows: give at least 0,1")
    return tuple(points)
