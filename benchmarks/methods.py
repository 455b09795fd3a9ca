"""From a sweep over methods to a table: time to an accuracy, updates/s, staleness, idleness; medians over the runs of each method.

hetsim -m method=… seed=0,1,2 evaluate_every_epochs=0.2 hydra.sweep.dir=SWEEP
python benchmarks/methods.py SWEEP
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = ("method", "seconds to {accuracy:.0%}", "spread", "updates/s", "samples/s", "staleness", "at most", "idle", "final accuracy")


def seconds_to(run: Path, accuracy: float) -> float | None:
    """When a run's curve first reached it, on the run's own clock; None if it never did."""
    with (run / "curve.csv").open(encoding="utf-8", newline="") as file:
        return next((float(row["seconds"]) for row in csv.DictReader(file) if float(row["test_accuracy"] or 0) >= accuracy), None)


def median(values: Sequence[float | None]) -> float | None:
    """None counts as never: it is larger than every number."""
    ordered = sorted(values, key=lambda value: (value is None, value))
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    known = [value for value in middle if value is not None]
    return sum(known) / len(known) if len(known) == len(middle) else None


def shown(value: float | None, digits: int = 3) -> str:
    """So many significant digits; a dash where there is no number."""
    return "–" if value is None else f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def row(method: str, runs: Sequence[tuple[Path, dict[str, Any]]], accuracy: float) -> tuple[float, list[str]]:
    """One method's medians, and what to sort by."""
    times = [seconds_to(run, accuracy) for run, _ in runs]
    reached = [time for time in times if time is not None]
    spread = f"{shown(min(reached))} … {shown(max(reached))}" if len(reached) == len(times) else f"{len(reached)} of {len(times)}"
    time = median(times)

    def middle(key: str) -> float:
        return statistics.median(summary[key] or 0.0 for _, summary in runs)

    final = statistics.median(summary["final"]["test_accuracy"] for _, summary in runs)
    cells = [f"`{method}`", shown(time), spread, shown(middle("updates_per_second")), shown(middle("samples_per_second"))]
    cells += [shown(middle("staleness_mean"), 2), f"{middle('staleness_max'):.0f}", f"{middle('idle_share'):.0%}", f"{final:.3f}"]
    return (float("inf") if time is None else time), cells


def main() -> None:
    """The table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path, help="the folder of the sweep")
    parser.add_argument("--accuracy", type=float, default=0.9)
    arguments = parser.parse_args()
    by_method: dict[str, list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    worlds = set()
    for path in sorted(arguments.sweep.glob("*/summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        by_method[summary["method"]].append((path.parent, summary))
        worlds.add((summary["cluster"], summary["workload"], summary["backend"]))
    if not by_method:
        parser.error(f"{arguments.sweep} holds no finished run: give the folder of a sweep")
    if len(worlds) > 1:
        parser.error(f"{arguments.sweep} mixes {', '.join(' '.join(world) for world in sorted(worlds))}: give sweeps of one each")
    rows = sorted(row(method, runs, arguments.accuracy) for method, runs in by_method.items())
    print("| " + " | ".join(HEAD).format(accuracy=arguments.accuracy) + " |")
    print("|" + "---|" * len(HEAD))
    for _, cells in rows:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
