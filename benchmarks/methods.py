"""The table of docs/reference/methods.md: *medians* over the seeds of a sweep, as three seeds give no useful interval of a mean.

hetsim -m method=… seed=0,1,2 evaluate_every_epochs=0.2 hydra.sweep.dir=SWEEP
python benchmarks/methods.py SWEEP

`hetsim-table SWEEP` makes a table, with means and intervals, of any sweep.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hetsim.results.reading.finished_runs import FinishedRun, finished_runs
from hetsim.results.tables.metrics import METRICS, Target

HEAD = ("method", "seconds to {accuracy:.0%}", "spread", "updates/s", "samples/s", "staleness", "at most", "idle", "final accuracy")


def median(values: Sequence[float | None]) -> float | None:
    """A key to sort by, with None, which stands for never, after every number."""
    ordered = sorted(values, key=lambda value: (value is None, value))
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    known = [value for value in middle if value is not None]
    return sum(known) / len(known) if len(known) == len(middle) else None


def shown(value: float | None, digits: int = 3) -> str:
    """With so many significant digits; a dash for None."""
    return "–" if value is None else f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def first_evaluation(run: FinishedRun, accuracy: float) -> float | None:
    """The seconds at the first evaluation with this accuracy or more, as the page says; None if there is none."""
    return next((seconds for seconds, _, reached in run.points if reached is not None and reached >= accuracy), None)


def row(method: str, found: Sequence[FinishedRun], accuracy: float) -> tuple[float, list[str]]:
    """One method's medians, and the key to sort by."""
    times = [first_evaluation(run, accuracy) for run in found]
    reached = [time for time in times if time is not None]
    spread = f"{shown(min(reached))} … {shown(max(reached))}" if len(reached) == len(times) else f"{len(reached)} of {len(times)}"
    time = median(times)

    def middle(metric: str) -> float:
        return statistics.median(METRICS[metric].number(run, Target()) or 0.0 for run in found)

    cells = [f"`{method}`", shown(time), spread, shown(middle("updates_per_second")), shown(middle("samples_per_second"))]
    cells += [shown(middle("staleness_mean"), 2), f"{middle('staleness_max'):.0f}", f"{middle('idle_share'):.0%}"]
    return (float("inf") if time is None else time), [*cells, f"{middle('final_accuracy'):.3f}"]


def main() -> None:
    """The table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path, help="the folder of the sweep")
    parser.add_argument("--accuracy", type=float, default=0.9)
    arguments = parser.parse_args()
    by_method: dict[str, list[FinishedRun]] = defaultdict(list)
    try:
        for run in finished_runs(arguments.sweep):
            by_method[run.summary["method"]].append(run)
    except ValueError as error:
        parser.error(str(error))
    worlds = {(run.summary["cluster"], run.summary["workload"], run.summary["backend"]) for found in by_method.values() for run in found}
    if len(worlds) > 1:
        parser.error(f"{arguments.sweep} mixes {', '.join(' '.join(world) for world in sorted(worlds))}: give sweeps of one each")
    rows = sorted(row(method, found, arguments.accuracy) for method, found in by_method.items())
    print("| " + " | ".join(HEAD).format(accuracy=arguments.accuracy) + " |")
    print("|" + "---|" * len(HEAD))
    for _, cells in rows:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
