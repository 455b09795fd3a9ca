"""Laws of clusters of many nodes: reading one takes a number of operations that grows with the nodes, not with their square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.compose import composed
from hetsim.config.plausible import implausible

PLAIN = {"latency_seconds": 1e-4, "bytes_per_second": 1e9}
SPELLS = {"factor": 2.0, "seconds_between": 10.0, "seconds_lasting": 1.0}


def rows(count: int, **more: Any) -> dict[str, Any]:
    """A cluster with a row for each node."""
    return described([{"count": 1, "seconds_per_sample": 1e-3 + 1e-9 * rank, "overhead_seconds": 0.0, **more} for rank in range(count)])


def described(nodes: list[dict[str, Any]], network: dict[str, Any] = PLAIN, **more: Any) -> dict[str, Any]:
    return {"name": "many", "nodes": nodes, "network": network, "server": {"seconds_per_update": 0.0}, **more}


def in_racks(count: int) -> dict[str, Any]:
    racks = {f"r{rank}": {"uplink_bytes_per_second": 1e9, "downlink_bytes_per_second": 1e9} for rank in range(count)}
    nodes = [{"count": 1, "seconds_per_sample": 1e-3, "overhead_seconds": 0.0, "rack": name} for name in racks]
    return described(nodes, {**PLAIN, "racks": racks})


def on_hosts(count: int) -> dict[str, Any]:
    hosts = {f"h{rank}": {"cores": 1} for rank in range(count)}
    nodes = [{"count": 1, "seconds_per_sample": 1e-3, "overhead_seconds": 0.0, "host": name} for name in hosts]
    return described(nodes, hosts=hosts)


def with_faults(count: int) -> dict[str, Any]:
    schedule = [{"nodes": [rank], "crash": 1.0 + rank, "repair": 1e6} for rank in range(count)]
    return {**rows(count), "faults": {"schedule": schedule}}


def stopped(count: int) -> dict[str, Any]:
    return {**rows(count), "faults": {"schedule": [{"nodes": [rank], "stop": 1.0, "continue": 2.0} for rank in range(count)]}}


def left_out(count: int) -> dict[str, Any]:
    return {**rows(count), "leave_out": list(range(count // 2))}


def of_machines(count: int) -> dict[str, Any]:
    machine = {"network": 1e9, "inside": 1e10, "gpus": {"count": 2, "seconds_per_sample": 1e-3}}
    return {"name": "many", "machines": [machine for _ in range(count // 2)]}


CLUSTERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "slow spells": lambda count: rows(count, slow_spells=SPELLS),
    "links": lambda count: rows(count, uplink_bytes_per_second=1e9, downlink_bytes_per_second=1e9),
    "faults": with_faults,
    "stops": stopped,
    "hosts": on_hosts,
    "left out": left_out,
    "rows": rows,
    "machines": of_machines,
    "racks": in_racks,
}


def operations(action: Callable[[], Any]) -> int:
    """The calls, lines and passes of loops that this executes in Python."""
    count = 0

    def counted(*_: object) -> Any:
        nonlocal count
        count += 1
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CLUSTERS)
def test_reading_four_times_as_many_nodes_takes_about_four_times_as_many_operations(kind: str):
    entries = composed(["workload=phantom", "method=asgd", "seed=1"]).entries

    def read(num_nodes: int) -> None:
        config = CLUSTERS[kind](num_nodes)
        implausible({**entries, "cluster": config}, parse_cluster(config))

    few, many = (operations(lambda n=n: read(n)) for n in (500, 2000))

    assert many <= 4.2 * few
