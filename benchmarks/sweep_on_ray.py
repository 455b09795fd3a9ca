"""What a small simulation costs in a sweep on Ray, against one by joblib with as many processes on the same machine, in alternation.

python benchmarks/sweep_on_ray.py [RUNS] [PROCESSES] [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from sweep import swept


def main() -> None:
    """Print the seconds of each sweep with its start-up, and the medians: with the start-up, and without that of a sweep of a few runs."""
    num_runs, num_processes, rounds = (int(given) for given in (*sys.argv[1:], *("2000", "2", "3")[len(sys.argv) - 1 :]))
    seconds: dict[str, list[float]] = {"joblib": [], "ray": []}
    starts: dict[str, list[float]] = {"joblib": [], "ray": []}
    for which in range(rounds):
        for launcher in sorted(seconds, reverse=which % 2 > 0):
            for runs, found in ((num_processes, starts), (num_runs, seconds)):
                with tempfile.TemporaryDirectory() as folder:
                    found[launcher].append(swept(runs, num_processes, Path(folder), launcher)[0])
                print(f"{runs} runs by {launcher}: {found[launcher][-1]:.2f} s", flush=True)
    whole = {launcher: statistics.median(each) for launcher, each in seconds.items()}
    rest = {launcher: whole[launcher] - statistics.median(each) for launcher, each in starts.items()}
    for what, of in (("with", whole), ("without", rest)):
        joblib, ray = (1e3 * of[launcher] / num_runs for launcher in ("joblib", "ray"))
        print(f"{what} the start-up: joblib {joblib:.2f} ms a run, Ray {ray:.2f}, ratio {ray / joblib:.3f}")


if __name__ == "__main__":
    main()
