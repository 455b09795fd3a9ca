"""What losses cost, simulated and measured: python benchmarks/losses.py [--repeats 2] [--methods asgd dbs_sgd ssgd local_sgd]

Four equal workers (uniform4), padded. Each method runs without a fault, and with each of these faults:

- a crash at 2 s with a return at 4 s
- the same crash of node 0, which leads a run without a server
- a node that joins at 2 s
- a node that is stopped from 2 to 5 s and counts as lost after 1 s

A row has:

- the seconds by which the fault prolongs the run: measured (median of the repeats), and simulated with the measured detection and regroup
- the updates/s before the fault and in the last second
- the seconds of detection and of the regroup
- the number of samples that were applied twice
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import parquet

METHODS = ("asgd", "dbs_sgd", "ssgd", "local_sgd")
LOST_AFTER = 1.0
FAULTS = {
    "crash": "{nodes: [1], crash: 2, repair: 4}",
    "crash of node 0": "{nodes: [0], crash: 2, repair: 4}",
    "late join": "{nodes: [1], join: 2}",
    "hang": "{nodes: [1], stop: 2, continue: 5}",
}
AT = 2.0
"""Seconds of the run at which the fault happens."""
NUM_SAMPLES, EPOCHS = 4096, 18


class Measured(NamedTuple):
    """Of one run."""

    seconds: float
    before: float
    """Updates/s until the fault."""
    after: float
    """Updates/s in the last second."""
    surplus: int
    """Samples that were applied or discarded, less those that there are to take."""
    losses: Mapping[str, Any]


def run(folder: Path, backend: str, method: str, fault: str | None, *, detection: float = 0.0, regroup: float = 0.0) -> Measured:
    """One run; the seconds of detecting and regrouping are for the simulator."""
    words = [f"method={method}", "cluster=uniform4", "workload=quadratic", f"workload.num_samples={NUM_SAMPLES}", f"budget.epochs={EPOCHS}"]
    if fault is not None:
        described = f"detection_seconds: {detection!r}, regroup_seconds: {regroup!r}, lost_after_seconds: {LOST_AFTER}"
        words.append(f"+cluster.faults={{{described}, schedule: [{FAULTS[fault]}]}}")
    more = [f"backend.lost_after_seconds={LOST_AFTER}", "backend.heartbeat_seconds=0.2"] if backend == "dist" else []
    command = [sys.executable, "-m", "hetsim", f"backend={backend}", *words, *more, "pictures=false"]
    subprocess.run([*command, f"hydra.run.dir={folder}"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    summary = json.loads((folder / "summary.json").read_text())
    trace = parquet.read_table(folder / "trace.parquet").to_pydict()
    commits = [end for end, kind in zip(trace["end"], trace["kind"], strict=True) if kind == "commit"]
    seconds = summary["seconds"]
    return Measured(
        seconds,
        sum(at <= AT for at in commits) / AT,
        float(sum(at > seconds - 1 for at in commits)),
        summary["num_samples"] + summary["num_samples_discarded"] - EPOCHS * NUM_SAMPLES,
        (summary["emulation"] or {}).get("losses") or {},
    )


def mean(runs: list[Measured], key: str) -> float:
    """The mean of what the runs have measured; 0 if none has."""
    found = [its.losses[key] for its in runs if its.losses.get(key) is not None]
    return statistics.fmean(found) if found else 0.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    print("| method | fault | lost, measured | lost, simulated | updates/s before | after | detection | regroup | applied twice |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for method in arguments.methods:
            places = (Path(folder, f"{method}-{number}") for number in range(1000))
            undisturbed = {
                backend: statistics.median(run(next(places), backend, method, None).seconds for _ in range(count))
                for backend, count in (("dist", arguments.repeats), ("sim", 1))
            }
            for fault in FAULTS:
                runs = [run(next(places), "dist", method, fault) for _ in range(arguments.repeats)]
                detection, regroup = mean(runs, "detection_seconds"), mean(runs, "regroup_seconds")
                simulated = run(next(places), "sim", method, fault, detection=detection, regroup=regroup)
                measured = statistics.median(its.seconds for its in runs) - undisturbed["dist"]
                before, after = (statistics.median(its[column] for its in runs) for column in (1, 2))
                lost = f"{measured:.2f} s | {simulated.seconds - undisturbed['sim']:.2f} s"
                took = f"{1000 * detection:.0f} ms | {1000 * regroup:.0f} ms"
                print(
                    f"| {method} | {fault} | {lost} | {before:.1f} | {after:.0f} | {took} | {sum(its.surplus for its in runs)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
