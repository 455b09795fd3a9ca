"""How many small simulations a parallel sweep on this machine makes per second.

python benchmarks/sweep.py [RUNS] [PROCESSES]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

SMALL = ("workload=phantom", "budget.epochs=null", "budget.updates=20", "trace=none", "pictures=false")


def swept(num_runs: int, num_processes: int, folder: Path, launcher: str = "joblib") -> tuple[float, float]:
    """Seconds of the command with its start-up, and seconds of processors in all its processes."""
    parallel = (f"hydra/launcher={launcher}", f"hydra.launcher.n_jobs={num_processes}")
    command = (sys.executable, "-m", "hetsim", "-m", *SMALL, f"seed=range(0,{num_runs})", *parallel, f"hydra.sweep.dir={folder}")
    start, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run them all, then the same command again, which skips all of them."""
    num_runs, num_processes = (int(given) for given in (*sys.argv[1:], *("1000", "2")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        for what in ("run", "skipped"):
            seconds, of_processors = swept(num_runs, num_processes, Path(folder))
            rate = f"{num_runs / seconds:.1f} a second, {of_processors:.1f} s of processors"
            print(f"{num_runs} {what} in {seconds:.1f} s by {num_processes} processes: {rate}", flush=True)


if __name__ == "__main__":
    main()
