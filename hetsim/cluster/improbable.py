"""Values of a cluster that are almost surely mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from hetsim.cluster.model import Cluster, Node

SLOW_RATE, LONG_SECONDS = 1000.0, 1.0
"""Of a link in bytes per second, and of one sample or a latency: beyond them a unit was probably forgotten."""


def improbable(cluster: Cluster) -> str | None:
    """The first value that is almost surely meant in another unit."""
    for what, value, unit in _described(cluster):
        if value < SLOW_RATE if unit == "bytes per second" else value > LONG_SECONDS:
            return (
                f"{what} is {value:g} {unit}, which is probably a mistake: plain numbers are in seconds and bytes, and a unit may be "
                "given, such as 200 ms or 10 Gbit/s"
            )
    return None


def _described(cluster: Cluster) -> Iterator[tuple[str, float, str]]:
    """The times and rates of a cluster: each one's name, value and unit."""
    seconds, rate = "seconds", "bytes per second"
    yield "cluster.network.latency_seconds", cluster.network.latency_seconds, seconds
    yield "cluster.network.bytes_per_second", cluster.network.bytes_per_second, rate
    for rank in range(cluster.num_workers + 1):
        end, who = cluster.end(rank), f"node {rank}" if rank < cluster.num_workers else "the server"
        yield f"latency_seconds of {who}", end.latency_seconds, seconds
        for link in (end.uplink_bytes_per_second, end.downlink_bytes_per_second):
            if link is not None:
                yield f"a link of {who}", link, rate
        if isinstance(end, Node):
            yield f"seconds_per_sample of {who}", end.seconds_per_sample, seconds
