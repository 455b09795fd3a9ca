"""Find values of a cluster that are almost certainly mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from hetsim.cluster.model import Cluster, NodeSpec

SLOW_RATE, LONG_SECONDS = 1000.0, 1.0
"""A link below this rate in bytes per second, or a sample or latency above this time in seconds, probably lacks a unit."""


def improbable_value(cluster: Cluster) -> str | None:
    """Describe the first value that almost certainly has the wrong unit; None if there is no such value."""
    for name, value, unit in _described_values(cluster):
        if value < SLOW_RATE if unit == "bytes per second" else value > LONG_SECONDS:
            return (
                f"{name} is {value:g} {unit}, which is probably a mistake: plain numbers are in seconds and bytes, and a unit may be "
                "given, such as 200 ms or 10 Gbit/s"
            )
    return None


def _described_values(cluster: Cluster) -> Iterator[tuple[str, float, str]]:
    """The name, value and unit of each time and rate of a cluster."""
    seconds, rate = "seconds", "bytes per second"
    yield "cluster.network.latency_seconds", cluster.network.latency_seconds, seconds
    yield "cluster.network.bytes_per_second", cluster.network.bytes_per_second, rate
    for rank in range(cluster.num_workers + 1):
        end, place = cluster.end(rank), f"node {rank}" if rank < cluster.num_workers else "the server"
        yield f"latency_seconds of {place}", end.latency_seconds, seconds
        for link in (end.uplink_bytes_per_second, end.downlink_bytes_per_second):
            if link is not None:
                yield f"a link of {place}", link, rate
        if isinstance(end, NodeSpec):
            yield f"seconds_per_sample of {place}", end.seconds_per_sample, seconds
