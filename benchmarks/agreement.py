"""How far the simulated rates are from the measured ones: python benchmarks/agreement.py [--repeats 3] [override …]

Each method is simulated once, because a simulation without noise repeats bit by bit. It is run a few times in padded processes. A row
has the median of the real runs, their spread (largest minus smallest, relative to the median) and the relative error.
The exit status is 1 if updates/s differ by more than 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

METHODS = ("ssgd", "hetgrad", "asgd", "dbs_sgd", "ssp", "od_sgd", "pipe_sgd", "local_sgd")
TOLERANCE = 0.10


def updates_per_second(folder: Path, *overrides: str) -> tuple[float, float]:
    """Updates/s of one run, and the total lateness of its results as a share of the run."""
    command = [sys.executable, "-m", "hetsim", f"hydra.run.dir={folder}", "pictures=false", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    summary = json.loads((folder / "summary.json").read_text())
    late = sum(kind["late_seconds"] for kind in (summary["emulation"] or {}).values() if isinstance(kind, dict))
    return summary["updates_per_second"], late / summary["seconds"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    arguments, overrides = parser.parse_known_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    print(f"{machine}; {arguments.repeats} real runs each")
    print(f"{'method':10}{'simulated/s':>13}{'measured/s':>13}{'spread':>9}{'error':>9}{'late':>9}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            simulated, _ = updates_per_second(Path(folder, method, "sim"), "backend=sim", f"method={method}", *overrides)
            runs = [
                updates_per_second(Path(folder, method, f"dist{repeat}"), "backend=dist", f"method={method}", *overrides)
                for repeat in range(arguments.repeats)
            ]
            rates = [rate for rate, _ in runs]
            measured = statistics.median(rates)
            error = simulated / measured - 1
            worst = max(worst, abs(error))
            spread = (max(rates) - min(rates)) / measured
            late = statistics.median(late for _, late in runs)
            print(f"{method:10}{simulated:13.2f}{measured:13.2f}{spread:9.2%}{error:+9.2%}{late:9.2%}", flush=True)
    sys.exit(1 if worst > TOLERANCE else 0)


if __name__ == "__main__":
    main()
