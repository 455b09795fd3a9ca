"""Draw figure.png from results.csv: python plot.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

from common import COLOURS, INK, MARKERS, arguments, plain, rows
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from train import GRID, HERE
from training import Results, Run


def losses(axes: Axes, results: Results, regimes: Sequence[Run], theirs: str) -> None:
    """The final loss of DBS-SGD over another method's, by regime, at tuned rates and at the common one."""
    for at, (tuned, label) in enumerate(((True, "tuned rates"), (False, "common rate"))):
        found = [results.ratio(one, "dbs_sgd", theirs, "loss", tuned=tuned) for one in regimes]
        bars = [[100 * (each.mean - each.low) for each in found], [100 * (each.high - each.mean) for each in found]]
        places = [place + 0.25 * (at - 0.5) for place in range(len(regimes))]
        shown = [100 * (each.mean - 1) for each in found]
        axes.errorbar(shown, places, xerr=bars, fmt=MARKERS[at], color=COLOURS[at], markersize=4, linewidth=1, label=label)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.axvline(-60, color=COLOURS[2], linewidth=1, linestyle=":", label="published, −60 %")
    longest = min(one.epochs for one in regimes)
    names = [f"{one.data}, {one.speeds}, N = {one.num_nodes}{f', {one.epochs} epochs' * (one.epochs > longest)}" for one in regimes]
    axes.set_yticks(range(len(regimes)), names)
    axes.set_ylim(len(regimes) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=100)
    axes.set_xticks([-50, 0, 50, 100, 500], ["−50", "0", "50", "100", "500"])
    axes.set_xlim(-75, 700)
    plain(axes, title=f"final loss of dbs_sgd against {theirs}", xlabel="change, %, with 95 % intervals")
    axes.tick_params(axis="y", labelsize=7)


def by_worker(axes: Axes, results: Results, regimes: Sequence[Run], name: str, title: str, ylabel: str, scale: float) -> None:
    """A mean for each worker, with and without DBS."""
    one = max(
        (one for one in regimes if one.data == "shared" and one.num_nodes == 8 and one.speeds.startswith("1:")),
        key=lambda one: int(one.speeds[2:]),
    )
    for at, method in enumerate(("asgd", "dbs_sgd")):
        values = [scale * value for value in results.by_worker(one, method, name)]
        axes.plot(range(one.num_nodes), values, color=COLOURS[at], marker=MARKERS[at], label=method)
    axes.set_ylim(bottom=0)
    plain(axes, title=f"{title}, speeds {one.speeds}", xlabel="worker, from the slowest to the fastest", ylabel=ylabel)
    axes.legend(fontsize=7, frameon=False, loc="best")


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"), GRID.common)
    regimes = results.regimes()
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    grid = figure.subplots(2, 2, height_ratios=[1.9, 1])
    losses(grid[0, 0], results, regimes, "asgd")
    losses(grid[0, 1], results, regimes, "softsync")
    grid[0, 0].legend(fontsize=7, frameon=False, loc="lower right")
    by_worker(grid[1, 0], results, regimes, "mean_delays", "mean delay", "versions", 1)
    by_worker(grid[1, 1], results, regimes, "weight_shares", "what each worker's data count", "share of all weights, %", 100)
    figure.savefig(folder / "figure.png", dpi=80)


if __name__ == "__main__":
    main()
