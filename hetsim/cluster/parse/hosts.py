"""Make hosts from `cluster.hosts`, and the CPU fields of nodes and the server from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from hetsim import checks
from hetsim.cluster.hosts import MIN_BUDGET_SECONDS, CommunicationWork, Host, default_period
from hetsim.cluster.model import NodeSpec, Server
from hetsim.cluster.parse import values

COLD = ("cold_seconds", "cooling_seconds")
"""The keys of a row of nodes for gradients after a pause, and of cluster.network.cpu for messages after a pause."""
FIRST = "first_seconds"
"""The key of a row of nodes for gradients with a new number of samples."""
PROGRAM = "program_seconds"
"""The key of a row of nodes, and of the server, for what its own program costs."""
CPU = (PROGRAM, "cpu_quota", "cpu_quota_period_seconds", "cpu_quota_covers_messages", "host")
"""The keys of a row of nodes, and of the server, for their share of the cores."""
MIN_QUOTA = 1e-3
"""The smallest quota, as a share of a core. Linux grants at least a millisecond in a period of at most a second."""
MAX_CORES = 4096
MIN_SPEED = 1e-3
MAX_TICK = 0.1


def parse_hosts(config: Any, nodes: Sequence[NodeSpec], server: Server) -> dict[str, Host]:
    """Hosts by name. Raises ValueError for a host without nodes, or one that is used but not described."""
    key = "cluster.hosts"
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"{key} must be a mapping from names to hosts, such as {{lab: {{cores: 8}}}}, not {checks.shown(config)}")
    hosts = {str(name): _parse_host(f"{key}.{name}", entry) for name, entry in (config or {}).items()}
    used = [*((f"node {rank}", node.host) for rank, node in enumerate(nodes)), ("the server", server.host)]
    for label, host in used:
        if host is not None and host not in hosts:
            raise ValueError(f"{label} is on host {host!r}, which {key} does not describe: add it there{checks.suggestion(host, hosts)}")
    occupied = {host for _, host in used}
    for name in hosts:
        if name not in occupied:
            raise ValueError(f"{key}.{name} has nothing on it: give rows of cluster.nodes host: {name}, or leave it out")
    return hosts


def _parse_host(key: str, config: Any) -> Host:
    entry = checks.mapping(key, config, required=("cores",), optional=("busy_speeds", "tick_seconds", "balance_seconds"))
    cores = checks.whole(f"{key}.cores", entry["cores"])
    if cores > MAX_CORES:
        raise ValueError(f"{key}.cores must be at most {MAX_CORES}, not {cores}")
    tick = values.number(key, entry, "tick_seconds")
    if tick > MAX_TICK:
        raise ValueError(f"{key}.tick_seconds must be at most {MAX_TICK:g}, not {tick:g}: 0.004 is usual, 0.001 on many desktops")
    balance = values.number(key, entry, "balance_seconds")
    if entry.get("busy_speeds") is None:
        return Host(cores=cores, tick_seconds=tick, balance_seconds=balance)
    speeds = tuple(
        checks.number(f"{key}.busy_speeds", speed) for speed in values.sequence(f"{key}.busy_speeds", entry["busy_speeds"], "speeds")
    )
    if len(speeds) != cores or speeds[0] != 1 or not all(MIN_SPEED <= speed <= 1 for speed in speeds):
        raise ValueError(
            f"{key}.busy_speeds must have the speed of a core with 1, 2 … {cores} of them busy, first 1 and each between {MIN_SPEED:g} "
            f"and 1, not {list(speeds)}"
        )
    return Host(cores=cores, busy_speeds=speeds, tick_seconds=tick, balance_seconds=balance)


def parse_cpu(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a node or a server for its share of the cores."""
    host = None if entry.get("host") is None else str(entry["host"])
    if host is None and entry.get(PROGRAM) is not None:
        raise ValueError(f"{key} has {PROGRAM} and no host, on which alone it counts: give it a host, or leave {PROGRAM} out")
    own_fields = {"host": host, PROGRAM: values.number(key, entry, PROGRAM)}
    covers = entry.get("cpu_quota_covers_messages")
    if covers is not None and not isinstance(covers, bool):
        raise ValueError(f"{key}.cpu_quota_covers_messages must be true or false, not {checks.shown(covers)}")
    if entry.get("cpu_quota") is None:
        for name in CPU[2:4]:
            if entry.get(name) is not None:
                raise ValueError(f"{key} has {name} and no cpu_quota: give it one, or leave {name} out")
        return own_fields
    share = entry["cpu_quota"]
    if not MIN_QUOTA <= checks.number(f"{key}.cpu_quota", share) <= 1:
        raise ValueError(f"{key}.cpu_quota must be a share of one core, between {MIN_QUOTA:g} and 1, not {checks.shown(share)}")
    period = values.number(key, entry, "cpu_quota_period_seconds", None)
    if period is None and host is not None:
        period = default_period(share)
    if period is not None and not (share * period >= MIN_BUDGET_SECONDS * (1 - 1e-9) and period <= 1):
        raise ValueError(
            f"{key}.cpu_quota_period_seconds must be at most 1 and, as Linux grants at least {MIN_BUDGET_SECONDS:g} s each, at least "
            f"{MIN_BUDGET_SECONDS / share:g}, not {period:g}"
        )
    return own_fields | {"cpu_quota": float(share), "cpu_quota_period_seconds": period, "cpu_quota_covers_messages": bool(covers)}


def parse_cold(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A node's fields for gradients after a pause (both or neither) and of a new number of samples. They require a host."""
    cold_fields = _parse_cooling(key, entry)
    if entry.get("host") is None:
        if cold_fields:
            raise ValueError(f"{key} has cold_seconds and no host, on which alone pauses count: give it a host, or leave both keys out")
        if entry.get(FIRST) is not None:
            raise ValueError(f"{key} has {FIRST} and no host, on which alone it counts: give it a host, or leave {FIRST} out")
    return cold_fields | {FIRST: values.number(key, entry, FIRST)}


def _parse_cooling(key: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """Both fields or neither."""
    names = [name for name in COLD if entry.get(name) is not None]
    if not names:
        return {}
    if len(names) < len(COLD):
        raise ValueError(f"{key} has {names[0]} and lacks {next(name for name in COLD if name not in names)}: give both, or neither")
    cold_fields = {name: values.number(key, entry, name) for name in COLD}
    if not cold_fields["cooling_seconds"] > 0:
        raise ValueError(f"{key}.cooling_seconds must be above zero, not {cold_fields['cooling_seconds']:g}")
    return cold_fields


def parse_communication(config: Any) -> CommunicationWork | None:
    """The CPU cost of communication from `cluster.network.cpu`."""
    if config is None:
        return None
    key = "cluster.network.cpu"
    names = [field.name for field in fields(CommunicationWork)]
    entry = checks.mapping(key, config, optional=names)
    work = CommunicationWork(**{name: values.number(key, entry, name) for name in names if name not in COLD}, **_parse_cooling(key, entry))
    if work.collective_thread_share > 1:
        raise ValueError(f"cluster.network.cpu.collective_thread_share must be from 0 to 1, not {work.collective_thread_share:g}")
    return work
