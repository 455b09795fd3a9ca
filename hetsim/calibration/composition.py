"""Combine separately calibrated machines to a cluster that was never measured as a whole. Links come from the first part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from hetsim.calibration.fit import four_digits
from hetsim.cluster.fewer import rescale_all_reduce_table

ALIKE = ("workload", "num_parameters", "dtype", "threads")
"""The keys that must be equal in all calibrations."""


class Part(NamedTuple):
    """A calibrated cluster as a config, the name of its file, and the number of copies of its machines."""

    name: str
    config: Mapping[str, Any]
    copies: int = 1


def compose_cluster(name: str, clusters: Sequence[Part]) -> dict[str, Any]:
    """The cluster of all these nodes. Each copy has its own hosts. Network and server come from the first part.

    Raises ValueError for parts that were not calibrated, or not with the same workload.
    """
    calibrated = _combine_calibrations(clusters)
    first = clusters[0].config
    devices = {cluster.config["calibrated"]["device"] for cluster in clusters}
    rows: list[dict[str, Any]] = []
    hosts: dict[str, Any] = {}
    for cluster in clusters:
        for copy in range(cluster.copies):
            server = first["server"] if cluster is clusters[0] and copy == 0 else {}
            for row in (*cluster.config["nodes"], server):
                if row.get("host") is not None:
                    hosts[_host(cluster, copy, row["host"])] = cluster.config["hosts"][row["host"]]
            for row in cluster.config["nodes"]:
                changes = {"host": _host(cluster, copy, row["host"])} if row.get("host") is not None else {}
                changes |= {"device": row.get("device") or cluster.config["calibrated"]["device"]} if len(devices) > 1 else {}
                rows.append({**row, **changes})
    server = dict(first["server"])
    if server.get("host") is not None:
        server["host"] = _host(clusters[0], 0, server["host"])
    network = dict(first["network"])
    num_before, num_after = (sum(row["count"] for row in these) for these in (first["nodes"], rows))
    if network.get("all_reduce_table") is not None and num_after != num_before:
        network["all_reduce_table"] = [
            [size, four_digits(seconds)] for size, seconds in rescale_all_reduce_table(network["all_reduce_table"], num_before, num_after)
        ]
    return {"name": name, "calibrated": calibrated, "nodes": rows, "network": network, "server": server, "hosts": hosts}


def _combine_calibrations(clusters: Sequence[Part]) -> dict[str, Any]:
    for cluster in clusters:
        if cluster.config.get("calibrated") is None:
            raise ValueError(f"{cluster.name} does not say what it was calibrated with, so its times may not fit: calibrate it again")
    held = [cluster.config["calibrated"] for cluster in clusters]
    for key in ALIKE:
        if len({calibration[key] for calibration in held}) > 1:
            differing = ", ".join(f"{cluster.name} with {calibration[key]}" for cluster, calibration in zip(clusters, held, strict=True))
            raise ValueError(f"the clusters were calibrated with different {key} ({differing}): calibrate them with the same")
    samples = [max(calibration["samples"][0] for calibration in held), min(calibration["samples"][1] for calibration in held)]
    if samples[0] > samples[1]:
        raise ValueError("the clusters were calibrated with batch sizes that have none in common: calibrate them with the same batch_size")
    doubts = [
        f"{cluster.name}, {doubt}" for cluster, calibration in zip(clusters, held, strict=True) for doubt in calibration.get("doubts") or ()
    ]
    num_nodes = [cluster.copies * sum(row["count"] for row in cluster.config["nodes"]) for cluster in clusters]
    return {
        **{key: value for key, value in held[0].items() if key != "tried"},
        "date": min(calibration["date"] for calibration in held),
        **{key: " and ".join(dict.fromkeys(calibration[key] for calibration in held)) for key in ("machine", "torch")},
        "samples": samples,
        "error": four_digits(fmean((calibration["error"] for calibration in held), weights=num_nodes)),
        **({"doubts": doubts} if doubts else {}),
        "composed": [cluster.name if cluster.copies == 1 else f"{cluster.copies} × {cluster.name}" for cluster in clusters],
    }


def _host(part: Part, copy: int, host: str) -> str:
    return f"{part.name}-{host}" if part.copies == 1 else f"{part.name}-{host}-{copy}"


def remarks(clusters: Sequence[Part]) -> Iterator[str]:
    """Remarks for readers of the file."""
    names = ", ".join(f"{cluster.name} ({cluster.copies} times)" if cluster.copies > 1 else cluster.name for cluster in clusters)
    yield f"Composed by hetsim-calibrate of {names}. It was never measured as a whole."
    yield f"Network and server are those of {clusters[0].name}; the error is the mean of theirs, by nodes."
