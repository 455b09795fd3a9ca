"""The job of a finished hetsim run, simulated or measured, or of a script whose Team writes a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.files.config_file import read_config
from hetsim.files.summary_and_curve import check_has, read_summary
from hetsim.results.comparison.time_use import ABSENT, SERVER, WAITING, TraceRows, read_rows, seconds_by_worker
from hetsim.runtime.recording.recorder import ALL_REDUCE, GATHER, GRADIENT, MESSAGE, UPDATE
from hetsim.straggling.job import Job, SlowLinks, check_size, places, sums_by_step
from hetsim.straggling.judging import LEAST_SLOWDOWN
from hetsim.trust.shipped import choice

MAX_SAMPLES = 10**12
LINK_KEYS = "uplink_bytes_per_second", "downlink_bytes_per_second"


def read_run(run: Path) -> Job:
    """The job in this folder. Raises ValueError if it contains none."""
    summary = read_summary(run)
    check_has(run, summary, "method", "num_workers", "num_updates", "seconds", "workload")
    rows = read_rows(run, summary)
    if rows is None:
        raise ValueError(f"{run} has no trace of its intervals: repeat the run with trace=full")
    gradients = rows.of(GRADIENT) & rows.of_workers & (rows.start >= 0)
    check_size(str(run), rows.num_workers, len(np.unique(rows.version[gradients])))
    config = read_config(run)
    job_fields: dict[str, Any] = {"source": str(run), "method": summary["method"], "allocation": _allocation(config)}
    job_fields["num_samples"] = _num_samples(config)
    job_fields["capped_collectives"] = (summary.get("emulation") or {}).get("emulate") == "quota"
    reduced = rows.of(ALL_REDUCE, GATHER) & rows.of_workers
    if reduced.any():
        job_fields["slow_links"] = slow_links(config, int(rows.nbytes[reduced].max()), rows.num_workers)
    return _synchronous_job(rows, gradients, reduced, job_fields) if reduced.any() else _server_job(rows, gradients, job_fields)


def _allocation(config: Mapping[str, Any]) -> str:
    """The choice of `allocation` in a config; `even` if it is none of hetsim's."""
    coordination = config.get("coordination")
    entry = config.get("allocation") or (coordination.get("allocation") if isinstance(coordination, Mapping) else None)
    return choice("allocation", entry) if isinstance(entry, Mapping) else "even"


def _num_samples(config: Mapping[str, Any]) -> int | None:
    workload = config.get("workload")
    num_samples = workload.get("num_samples") if isinstance(workload, Mapping) else None
    return num_samples if isinstance(num_samples, int) and 0 < num_samples < MAX_SAMPLES else None


def slow_links(config: Mapping[str, Any], nbytes: int, num_ranks: int) -> SlowLinks | None:
    """The ranks whose links the config describes as slower than the fastest rank's; None if it describes no such link.

    Only the rates of links are read, because a config may come from outside. A cluster with racks or measured all-reduces is left out.
    """
    described = config.get("cluster")
    nodes, network = (described.get(key) if isinstance(described, Mapping) else None for key in ("nodes", "network"))
    if not (isinstance(nodes, list) and isinstance(network, Mapping) and all(isinstance(node, Mapping) for node in nodes)):
        return None
    counts = [node.get("count", 1) for node in nodes]
    if not all(type(count) is int and count > 0 for count in counts) or sum(counts) != num_ranks or network.get("all_reduce_table"):
        return None
    links = [{key: node[key] for key in LINK_KEYS if key in node} for node in nodes]
    kept = [{"count": count, "seconds_per_sample": 1, "overhead_seconds": 0, **link} for count, link in zip(counts, links, strict=True)]
    rates_only = {key: network[key] for key in ("latency_seconds", "bytes_per_second", "sharing", "all_reduce") if key in network}
    try:
        cluster = parse_cluster({"name": "links", "nodes": kept, "network": rates_only, "server": {"seconds_per_update": 0}})
    except ValueError:
        return None
    ends = [(cluster.capacity(("up", rank)), cluster.capacity(("down", rank))) for rank in range(num_ranks)]
    rates = np.array([min(*of_rank, cluster.network.bytes_per_second) for of_rank in ends])
    fastest = int(rates.argmax())
    ranks = tuple(np.flatnonzero(rates * LEAST_SLOWDOWN < rates[fastest]).tolist())
    if not ranks:
        return None
    healed = replace(cluster, nodes=(cluster.nodes[fastest],) * num_ranks)
    seconds, fast_seconds = (Collectives(each).all_reduce_seconds(nbytes) for each in (cluster, healed))
    slowdown = float(rates[fastest] / np.median(rates[list(ranks)]))
    return SlowLinks(ranks, slowdown, max(0.0, 1 - fast_seconds / seconds) if seconds > 0 else 0.0)


def _synchronous_job(rows: TraceRows, gradients: Any, reduced: Any, job_fields: Mapping[str, Any]) -> Job:
    """A job in which all ranks make each version. A step is a version."""
    updates = rows.of(UPDATE) & rows.of_workers
    versions = np.unique(rows.version[gradients])
    num_ranks, num_steps = rows.num_workers, len(versions)
    shape = num_ranks, num_steps
    kept = np.isin(rows.version, versions)
    step = np.minimum(np.searchsorted(versions, rows.version), num_steps - 1)

    def total(which: Any, values: Any) -> Any:
        which = which & kept
        return sums_by_step(rows.rank[which], step[which], values[which], shape)

    seconds = rows.end - rows.start
    last_gradient, end = np.full(num_steps, -np.inf), np.full(num_steps, -np.inf)
    np.maximum.at(last_gradient, step[gradients], rows.end[gradients])
    np.maximum.at(end, step[reduced & kept], rows.end[reduced & kept])
    return Job(
        **job_fields,
        gradients=total(gradients, seconds),
        updates=np.nan_to_num(total(updates, seconds)),
        samples=np.nan_to_num(total(gradients, rows.samples)),
        collectives=np.maximum(0.0, np.where(np.isfinite(end), end - last_gradient, 0.0)),
        seconds=rows.seconds,
        nbytes=int(rows.nbytes[reduced].max()),
    )


def _server_job(rows: TraceRows, gradients: Any, job_fields: Mapping[str, Any]) -> Job:
    """A job of independent ranks. A rank's step k is its k-th gradient, with its k-th messages to and from the server."""
    place = np.zeros(len(rows.rank), np.int64)
    sent = rows.of(MESSAGE) & rows.of_workers & (rows.nbytes > 0)
    received = rows.receiver >= 0
    for which, ranks in ((gradients, rows.rank), (sent, rows.rank), (received, rows.receiver)):
        place[which] = places(ranks[which], rows.start[which])
    shape = rows.num_workers, int(place[gradients].max()) + 1
    check_size(str(job_fields["source"]), *shape)
    seconds = rows.end - rows.start

    def total(which: Any, ranks: Any, values: Any) -> Any:
        which = which & (place < shape[1])
        return sums_by_step(ranks[which], place[which], values[which], shape)

    of_server = rows.of(UPDATE) & ~rows.of_workers
    links = total(sent, rows.rank, seconds) + total(received, rows.receiver, seconds)
    mean = seconds_by_worker(rows).mean(axis=0)
    return Job(
        **job_fields,
        gradients=total(gradients, rows.rank, seconds),
        updates=np.zeros(shape),
        samples=np.nan_to_num(total(gradients, rows.rank, rows.samples)),
        links=np.maximum(links, 0.0),
        waiting=float(mean[WAITING] + mean[SERVER]),
        absent=float(mean[ABSENT]),
        seconds=rows.seconds,
        nbytes=int(rows.nbytes[sent].max()) if sent.any() else 8,
        server_seconds=float(np.median(seconds[of_server])) if of_server.any() else 0.0,
    )
