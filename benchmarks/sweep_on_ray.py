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
    """Print the seconds of each sweep with its start-up, and the medians."""
    num_runs, num_processes, rounds = (int(given) for given in (*sys.argv[1:], *("2000", "2", "3")[len(sys.argv) - 1 :]))
    seconds: dict[str, list[float]] = {"joblib": [], "ray": []}
    for which in range(rounds):
        for launcher in sorted(seconds, reverse=which % 2 > 0):
            with tempfile.TemporaryDirectory() as folder:
                seconds[launcher].append(swept(num_runs, num_processes, Path(folder), launcher)[0])
            print(f"{num_runs} runs by {launcher}: {seconds[launcher][-1]:.2f} s", flush=True)
    of = {launcher: statistics.median(each) for launcher, each in seconds.items()}
    ms = {launcher: f"{1e3 * median / num_runs:.2f} ms a run" for launcher, median in of.items()}
    print(f"joblib {ms['joblib']}, Ray {ms['ray']}, ratio of the medians {of['ray'] / of['joblib']:.3f}")


if __name__ == "__main__":
    main()
