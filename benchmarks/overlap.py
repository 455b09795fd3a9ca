"""What overlapping the reduction with the backward pass gains, predicted and measured: python benchmarks/overlap.py [override …]

Two workers are calibrated, as hetsim-calibrate does it. SSGD, without and with the overlap in buckets of 1.1 MB, is simulated on what was
found, and then the contenders take turns in real processes. A row has the milliseconds of a step: simulated, and the median of the real
runs with their extremes; and the relative error of the simulation. On loopback there is little to hide, so start it on a narrow network:

    sudo benchmarks/narrow.sh --mbit 1000 .venv/bin/python benchmarks/overlap.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from training import machine

import hetsim

STEPS = 40
CHOICES = (
    *("method=ssgd", "workload=digits", "+workload.model_options.hidden=[500,500,500,500,500,500]", "batch_size=1536"),
    *("budget.epochs=null", f"budget.updates={STEPS}", "evaluate_every_epochs=1000", "trace=none", "pictures=false"),
)
WORKERS = "cluster.nodes=[{count: 2, seconds_per_sample: 1, overhead_seconds: 1}]"
COORDINATIONS = {
    "all_reduce": ("coordination=all_reduce",),
    "overlapped_all_reduce": ("coordination=overlapped_all_reduce", "coordination.bucket_bytes=1100000"),
}
REDUCTIONS = ("native", "ordered")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each phase of the calibration")
    arguments, overrides = parser.parse_known_args()
    words = (*CHOICES, *overrides)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = folder / "cluster" / "found.yaml"
        file.parent.mkdir()
        calibrate = (sys.executable, "-m", "hetsim.cli.calibrate", str(file), "--seconds", str(arguments.seconds), *words, WORKERS)
        subprocess.run(calibrate, check=True, stdout=subprocess.DEVNULL)

        def step(*choice: str) -> float:
            """Milliseconds of a step of this run."""
            ran = hetsim.run(*words, "cluster=found", *choice, config_dir=folder, folder=Path(tempfile.mkdtemp(dir=folder)))
            return float(ran.summary["seconds"]) / STEPS * 1e3

        simulated = {name: step(*choice, "backend=sim") for name, choice in COORDINATIONS.items()}
        real: dict[tuple[str, str], list[float]] = {(name, reduction): [] for name in COORDINATIONS for reduction in REDUCTIONS}
        for _ in range(arguments.repeats):
            for (name, reduction), steps in real.items():
                choice = COORDINATIONS[name]
                steps.append(step(*choice, "backend=dist", "backend.emulate=none", f"backend.reduction={reduction}"))
    print(f"{machine()}; {arguments.repeats} repeats")
    print(f"{'':32}{'simulated':>10}{'measured':>10}   {'extremes':18}{'error':>8}")
    for (name, reduction), steps in real.items():
        median = statistics.median(steps)
        extremes = f"{min(steps):.1f} … {max(steps):.1f}"
        print(f"{name + ', ' + reduction:32}{simulated[name]:10.1f}{median:10.1f}   {extremes:18}{simulated[name] / median - 1:+8.1%}")
    for reduction in REDUCTIONS:
        gains = [before / after for before, after in zip(*(real[name, reduction] for name in COORDINATIONS), strict=True)]
        print(
            f"gain of the overlap, {reduction}: {statistics.median(gains):.3f} ({min(gains):.2f} … {max(gains):.2f}), "
            f"simulated {simulated['all_reduce'] / simulated['overlapped_all_reduce']:.3f}"
        )


if __name__ == "__main__":
    main()
