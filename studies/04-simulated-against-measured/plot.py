"""Draw figure.png: the error of each prediction by cluster, beside the spread of the measured repeats: python plot.py [--folder FOLDER]"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cases import CLUSTERS, HERE, METHODS
from evaluate import BARS, cases
from matplotlib.figure import Figure

COLUMNS = 4
INK, DEVELOPED, HELD_OUT, FADED = "#2b2f36", "#3b6ea5", "#b5542c", "#c9ced6"


def main(arguments: Sequence[str] | None = None) -> None:
    """A panel for each cluster, a row in it for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE)
    folder = parser.parse_args(arguments).folder
    found = {(case.cluster, case.method): case for case in cases(folder)}
    shown = [cluster for cluster in CLUSTERS if any(name == cluster.name for name, _ in found)]
    num_rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(11, 2.4 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, COLUMNS, squeeze=False, sharey=True)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, cluster in zip(panels.flat, shown, strict=False):
        colour = HELD_OUT if cluster.held_out else DEVELOPED
        bar = 100 * BARS[cluster.kind][1]
        axes.axvspan(-bar, bar, color=FADED, alpha=0.35, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        for place, method in enumerate(METHODS):
            if case := found.get((cluster.name, method)):
                half = 50 * case.spread
                axes.plot([-half, half], [place, place], color=INK, linewidth=4, alpha=0.35, solid_capstyle="butt")
                axes.plot(100 * case.error, place, "o", color=colour, markersize=6)
        axes.set_yticks(range(len(METHODS)), list(METHODS))
        axes.set_ylim(len(METHODS) - 0.5, -0.5)
        axes.set_title(f"{cluster.name}{' (held out)' if cluster.held_out else ''}", color=INK, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("predicted updates/s against measured, %", fontsize=10)
    figure.savefig(folder / "figure.png", dpi=72)


if __name__ == "__main__":
    main()
