"""How many small simulations a parallel sweep on this machine makes per second.

python benchmarks/sweep.py [RUNS] [PROCESSES]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

SMALL = ("workload=phantom", "budget.epochs=null", "budget.updates=20", "trace=none", "pictures=false")


def swept(num_runs: int, num_processes: int, folder: Path) -> float:
    """Seconds of the command, with start-up."""
    parallel = ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={num_processes}")
    command = (sys.executable, "-m", "hetsim", "-m", *SMALL, f"seed=range(0,{num_runs})", *parallel, f"hydra.sweep.dir={folder}")
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def main() -> None:
    """Run them all, then the same command again, which skips all of them."""
    num_runs, num_processes = (int(given) for given in (*sys.argv[1:], *("1000", "2")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        for what in ("run", "skipped"):
            seconds = swept(num_runs, num_processes, Path(folder))
            print(f"{num_runs} {what} in {seconds:.1f} s by {num_processes} processes: {num_runs / seconds:.1f} a second", flush=True)


if __name__ == "__main__":
    main()
