"""`hetsim-calibrate --from-trace RUN`: make a cluster from the times of your own training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetsim import checks
from hetsim.calibration.from_trace import Intervals, cluster_of, remarks
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.cluster_files import check_file
from hetsim.config.yaml_text import as_yaml
from hetsim.files.summary_and_curve import check_has, read_summary
from hetsim.files.writing import write_text
from hetsim.results.reading.intervals import read_trace

KINDS = {"gradient": "samples", "update": "samples", "all_reduce": "nbytes"}
MAX_WORKERS = 10_000
MAX_SECONDS = 1e9


def from_trace(file: Path, run: Path, words: Sequence[str]) -> None:
    """Write the cluster."""
    if words:
        raise ValueError(f"{words[0]} would do nothing, as --from-trace measures nothing: leave it out")
    check_file(file)
    summary = read_summary(run)
    check_has(run, summary, "num_workers", "num_updates", "workload")
    num_workers = summary["num_workers"]
    if num_workers > MAX_WORKERS:
        raise ValueError(f"{run} has {num_workers} workers, and a cluster from a trace at most {MAX_WORKERS}: take a smaller run")
    trace = run / "trace.parquet"
    by_kind = _intervals(read_trace(trace, num_workers=num_workers))
    for kind, intervals in by_kind.items():
        if len(intervals.rank) and (last := max(intervals.end.max(), -intervals.start.min())) > MAX_SECONDS:
            raise ValueError(
                f"{trace} has a {kind} at {last:.3g} s, and a cluster is from times of at most {MAX_SECONDS:.0e} s: take a shorter run"
            )
    result = cluster_of(file.stem, num_workers, *(by_kind[kind] for kind in KINDS))
    parse_cluster(result.config)
    source = f"{checks.printable(run.name)}, {summary['workload']}"
    write_text(file, "".join(f"# {checks.one_line(line)}\n" for line in remarks(result, source)) + as_yaml(result.config))
    for rank, (node, error) in enumerate(zip(result.config["nodes"], result.errors, strict=True)):
        line = f"{1e6 * node['seconds_per_sample']:.4g} µs a sample + {1e3 * node['overhead_seconds']:.4g} ms"
        print(f"  node {rank}: {line}; the second half of its gradients is {100 * error:.1f} % off the first")
    print(f"{os.path.relpath(file)}: {num_workers} nodes, from a trace of {summary['num_updates']} updates")


def _intervals(table: Any) -> dict[str, Intervals]:
    """The intervals of each kind, in order of time."""
    from pyarrow import compute

    table = table.sort_by([("start", "ascending")])
    by_kind = {}
    for kind, size in KINDS.items():
        rows = table.filter(compute.equal(table["kind"], kind))
        rank, version, sizes = (rows[name].fill_null(-1).to_numpy().astype(np.int64) for name in ("rank", "version", size))
        by_kind[kind] = Intervals(rank, version, rows["start"].to_numpy(), rows["end"].to_numpy(), sizes)
    return by_kind
