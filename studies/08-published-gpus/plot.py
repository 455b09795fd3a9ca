"""Draw figure.png: the cross-validated errors of Sia's steps beside Pollux's, and what is predicted of data that nobody has seen.

python plot.py [--folder FOLDER]    # from results.csv, predictions-diloco.csv and predictions-gavel.csv
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import COLOURS, FADED, INK, arguments, plain, rows, where
from evaluate import APPS, NAMES
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BANDWIDTHS = {"50m": "50 Mbit/s", "200m": "200 Mbit/s", "1g": "1 Gbit/s", "5g": "5 Gbit/s", "unshaped": "unshaped"}


def draw_errors(axes: Axes, folder: Path) -> None:
    """The median error of each application and GPU, by both rules."""
    found = rows(folder / "results.csv")
    labels = []
    for place, (app, gpu) in enumerate((app, gpu) for gpu in NAMES for app in APPS):
        for rule, colour in (("Pollux", FADED), ("hetsim", COLOURS[0])):
            for row in where(found, data="sia", rule=rule, group=f"{app} {gpu}"):
                axes.plot(100 * float(row["median"]), place, "o", color=colour, label=rule if not place else None)
        labels.append(f"{APPS[app]}, {NAMES[gpu]}")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log")
    plain(axes, xlabel="median error, %", title="Steps on other placements and batch sizes")
    if axes.lines:
        axes.legend(fontsize=7, frameon=False)


def draw_rounds(axes: Axes, folder: Path) -> None:
    """Predicted seconds of a round of DiLoCo by its local steps."""
    found = where(rows(folder / "predictions-diloco.csv"), algorithm="diloco")
    for (bandwidth, name), colour in zip(BANDWIDTHS.items(), COLOURS, strict=False):
        points = sorted({(int(row["H"]), float(row["round_seconds"])) for row in where(found, bandwidth=bandwidth)})
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain(axes, xlabel="local steps", ylabel="seconds of a round", title="DiLoCo, predicted")
    axes.legend(fontsize=7, frameon=False)


def draw_jobs(axes: Axes, folder: Path) -> None:
    """Predicted rates of Gavel's jobs over those of one GPU."""
    one = {(row["gpu"], row["job"]): float(row["steps_per_second"]) for row in rows(HERE / "published" / "gavel_throughputs.csv")
           if row["scale_factor"] == "1"}  # fmt: skip
    for suffix, colour, name in (("", COLOURS[0], "one host"), ("_unconsolidated", COLOURS[1], "several hosts")):
        for row in rows(folder / "predictions-gavel.csv"):
            rate = one.get((row["gpu"], row["job"]), 0.0)
            if rate and row["gpu"].endswith("unconsolidated") == bool(suffix):
                shift = 0.15 if suffix else -0.15
                axes.plot(int(row["scale_factor"]) + shift, float(row["steps_per_second"]) / rate, "o", color=colour, markersize=3)
        axes.plot([], [], "o", color=colour, label=name)
    axes.plot([4, 8], [4, 8], "_", color=INK, label="linear")
    plain(axes, xlabel="GPUs", ylabel="speed over one GPU", title="Gavel's jobs, predicted")
    axes.legend(fontsize=7, frameon=False)


def main(given: Sequence[str] | None = None) -> None:
    """Write figure.png."""
    folder = arguments(__doc__, HERE, given).folder
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draw_errors(left, folder)
    draw_rounds(middle, folder)
    draw_jobs(right, folder)
    figure.savefig(folder / "figure.png", dpi=90)


if __name__ == "__main__":
    main()
