"""What the split of the batch gains on unequal nodes, against what it could: python benchmarks/gain.py [--quotas] [override …]

Four workers whose times are as 1:1:2:4, padded. With --quotas they get 0.4, 0.4, 0.2 and 0.1 of a core instead, and nothing is
padded. SSGD with equal batches, `dbs` and `hetgrad` take turns.

Only the steps of the second half of a run count, when the splits have settled. A step is its longest gradient plus the rest:
communication, waiting for messages, updates. The bound on a step is also a sum: the time for the batch if all workers ended at once, at
their measured samples per second, plus the rest of a step of SSGD.

A row has:

- the milliseconds of a step (median of the runs, extremes), of its longest gradient and of its rest
- the gain over SSGD of the same turn, and the gain that the bound allows
- the ratio of the two gains, with its extremes
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from pyarrow import parquet

import hetsim

METHODS = {
    "ssgd": ("method=ssgd",),
    "dbs": ("method=dbs", "allocation.reallocate_every=5"),
    "hetgrad": ("method=hetgrad",),
}
CHOICES = ("workload=digits", "budget.epochs=null", "evaluate_every_epochs=1000", "trace=full", "pictures=false", "backend=dist")
NETWORK = "cluster.network={latency_seconds: 2e-4, bytes_per_second: 1e9}"
TIMES = (1, 1, 2, 4)


class Step(NamedTuple):
    """Means over the second half of a run, in seconds."""

    seconds: float
    gradient: float
    """The longest of a step."""
    at_once: float
    """If workers of these samples per second all ended at once."""

    @property
    def rest(self) -> float:
        """Of a step, beside the longest gradient."""
        return self.seconds - self.gradient


def words(quotas: bool) -> list[str]:
    """The cluster, and what it computes."""
    if not quotas:
        nodes = ", ".join(f"{{count: 1, seconds_per_sample: {time * 1e-3}, overhead_seconds: 2e-3}}" for time in TIMES)
        return [f"cluster.nodes=[{nodes}]", NETWORK, "batch_size=256", "budget.updates=60"]
    nodes = ", ".join(f"{{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0, cpu_quota: {0.4 / time}}}" for time in TIMES)
    model = "+workload.model_options.hidden=[300,300]"
    return [f"cluster.nodes=[{nodes}]", NETWORK, model, "batch_size=4096", "budget.updates=40", "backend.emulate=quota"]


def step(folder: Path) -> Step:
    """Of a run in this folder."""
    rows = parquet.read_table(folder / "trace.parquet").to_pylist()
    commits = [row["end"] for row in rows if row["kind"] == "commit"]
    first = len(commits) // 2
    seconds = (commits[-1] - commits[first - 1]) / (len(commits) - first)
    longest: dict[int, float] = defaultdict(float)
    samples: dict[int, int] = defaultdict(int)
    busy: dict[int, float] = defaultdict(float)
    for row in rows:
        if row["kind"] == "gradient" and row["version"] >= first:
            took = row["end"] - row["start"]
            longest[row["version"]] = max(longest[row["version"]], took)
            samples[row["rank"]] += row["samples"]
            busy[row["rank"]] += took
    rates = sum(samples[rank] / busy[rank] for rank in samples)
    return Step(seconds, statistics.fmean(longest.values()), sum(samples.values()) / rates / len(longest))


def middle(values: list[float], digits: int) -> str:
    """The median and the extremes."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quotas", action="store_true")
    arguments, overrides = parser.parse_known_args()
    load = "/".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, load {load}; {arguments.repeats} repeats")
    steps: dict[str, list[Step]] = {method: [] for method in METHODS}
    with tempfile.TemporaryDirectory() as made:
        for k in range(arguments.repeats):
            for method, chosen in METHODS.items():
                folder = Path(made, f"{method}{k}")
                run = hetsim.run(*chosen, *CHOICES, *words(arguments.quotas), *overrides, folder=folder)
                steps[method].append(step(folder))
                print(method, [*map(int, run.summary["batch_sizes"])], [round(each * 1e3, 2) for each in steps[method][-1]], flush=True)
    print(f"{'':9}{'step, ms':26}{'gradient':26}{'rest':24}{'gain':20}{'bound':20}ratio")
    for method, found in steps.items():
        pairs = list(zip(found, steps["ssgd"], strict=True))
        gains = [even.seconds / each.seconds for each, even in pairs]
        bounds = [even.seconds / (each.at_once + even.rest) for each, even in pairs]
        columns = [
            f"{middle([each.seconds * 1e3 for each in found], 1):26}",
            f"{middle([each.gradient * 1e3 for each in found], 1):26}",
            f"{middle([each.rest * 1e3 for each in found], 1):24}",
            f"{middle(gains, 2):20}{middle(bounds, 2):20}",
            middle([gain / bound for gain, bound in zip(gains, bounds, strict=True)], 3),
        ]
        print(f"{method:9}{''.join(columns)}")


if __name__ == "__main__":
    main()
