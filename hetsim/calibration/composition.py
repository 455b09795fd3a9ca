"""Combine separately calibrated machines to a cluster that was never measured as a whole. Links come from the first part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from hetsim.calibration.fit import shown
from hetsim.cluster.fewer import rescale_all_reduce_table

ALIKE = ("workload", "num_parameters", "dtype", "threads")
"""The keys that must be equal in all calibrations."""


class Part(NamedTuple):
    """A calibrated cluster as a config, the name of its file, and the number of copies of its machines."""

    name: str
    config: Mapping[str, Any]
    copies: int = 1


def composed(name: str, parts: Sequence[Part]) -> dict[str, Any]:
    """The cluster of all these nodes. Each copy has its own hosts. Network and server come from the first part.

    Raises ValueError for parts that were not calibrated, or not with the same workload.
    """
    calibrated = _calibrated(parts)
    first = parts[0].config
    devices = {part.config["calibrated"]["device"] for part in parts}
    rows: list[dict[str, Any]] = []
    hosts: dict[str, Any] = {}
    for part in parts:
        for copy in range(part.copies):
            server = first["server"] if part is parts[0] and copy == 0 else {}
            for row in (*part.config["nodes"], server):
                if row.get("host") is not None:
                    hosts[_host(part, copy, row["host"])] = part.config["hosts"][row["host"]]
            for row in part.config["nodes"]:
                own = {"host": _host(part, copy, row["host"])} if row.get("host") is not None else {}
                own |= {"device": row.get("device") or part.config["calibrated"]["device"]} if len(devices) > 1 else {}
                rows.append({**row, **own})
    server = dict(first["server"])
    if server.get("host") is not None:
        server["host"] = _host(parts[0], 0, server["host"])
    network = dict(first["network"])
    before, after = (sum(row["count"] for row in these) for these in (first["nodes"], rows))
    if network.get("all_reduce_table") is not None and after != before:
        network["all_reduce_table"] = [
            [size, shown(seconds)] for size, seconds in rescale_all_reduce_table(network["all_reduce_table"], before, after)
        ]
    return {"name": name, "calibrated": calibrated, "nodes": rows, "network": network, "server": server, "hosts": hosts}


def _calibrated(parts: Sequence[Part]) -> dict[str, Any]:
    for part in parts:
        if part.config.get("calibrated") is None:
            raise ValueError(f"{part.name} does not say what it was calibrated with, so its times may not fit: calibrate it again")
    held = [part.config["calibrated"] for part in parts]
    for key in ALIKE:
        if len({its[key] for its in held}) > 1:
            found = ", ".join(f"{part.name} with {its[key]}" for part, its in zip(parts, held, strict=True))
            raise ValueError(f"the clusters were calibrated with different {key} ({found}): calibrate them with the same")
    samples = [max(its["samples"][0] for its in held), min(its["samples"][1] for its in held)]
    if samples[0] > samples[1]:
        raise ValueError("the clusters were calibrated with batch sizes that have none in common: calibrate them with the same batch_size")
    doubts = [f"{part.name}, {doubt}" for part, its in zip(parts, held, strict=True) for doubt in its.get("doubts") or ()]
    num_nodes = [part.copies * sum(row["count"] for row in part.config["nodes"]) for part in parts]
    return {
        **{key: value for key, value in held[0].items() if key != "tried"},
        "date": min(its["date"] for its in held),
        **{key: " and ".join(dict.fromkeys(its[key] for its in held)) for key in ("machine", "torch")},
        "samples": samples,
        "error": shown(fmean((its["error"] for its in held), weights=num_nodes)),
        **({"doubts": doubts} if doubts else {}),
        "composed": [part.name if part.copies == 1 else f"{part.copies} × {part.name}" for part in parts],
    }


def _host(part: Part, copy: int, host: str) -> str:
    return f"{part.name}-{host}" if part.copies == 1 else f"{part.name}-{host}-{copy}"


def remarks(parts: Sequence[Part]) -> Iterator[str]:
    """Remarks for readers of the file."""
    names = ", ".join(f"{part.name} ({part.copies} times)" if part.copies > 1 else part.name for part in parts)
    yield f"Composed by hetsim-calibrate of {names}. It was never measured as a whole."
    yield f"Network and server are those of {parts[0].name}; the error is the mean of theirs, by nodes."
