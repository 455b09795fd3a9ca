"""What timing-only runs cost by number of nodes, as a table: python benchmarks/nodes.py

Nodes with lognormal noise, 32 samples each, `trace: commits`. Each run is the whole command in a process of its own. Its seconds are of the
processor, user and system, which other programs on the machine disturb less than the clock.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

UPDATES = {"ssgd": 100, "ddp": 100, "local_sgd": 10, "asgd": 10_000}
"""The updates of a run, by method. An update of `local_sgd` has ten local steps of each node, one of `asgd` a single gradient."""
NODE = "seconds_per_sample: 1 ms, overhead_seconds: 10 ms, noise: {distribution: lognorm, s: 0.3}"


def measured(method: str, nodes: int, folder: Path) -> tuple[float, float]:
    """The run's seconds of the processor and its peak memory in bytes."""
    words = (
        *(f"method={method}", "workload=phantom", f"cluster.nodes=[{{count: {nodes}, {NODE}}}]", f"batch_size={32 * nodes}"),
        *("workload.num_samples=100000000000", "budget.epochs=null", f"budget.updates={UPDATES[method]}"),
        *("trace=commits", "pictures=false", f"hydra.run.dir={folder / f'{method}-{nodes}'}"),
    )
    process = subprocess.Popen([sys.executable, "-m", "hetsim", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{method} among {nodes} nodes failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 100, 1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--methods", nargs="+", choices=UPDATES, default=[*UPDATES])
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| nodes | " + " | ".join(f"`{method}`, {UPDATES[method]:,} updates" for method in arguments.methods) + " |")
    print("|---" * (1 + len(arguments.methods)) + "|")
    with TemporaryDirectory() as folder:
        for nodes in arguments.nodes:
            runs = (measured(method, nodes, Path(folder)) for method in arguments.methods)
            print(
                f"| {nodes:,} | " + " | ".join(f"{seconds:.1f} s, {nbytes / 2**20:,.0f} MiB" for seconds, nbytes in runs) + " |", flush=True
            )


if __name__ == "__main__":
    main()
