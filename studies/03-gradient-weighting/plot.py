"""Draw figure.png from results.csv: python plot.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

from common import COLOURS, INK, MARKERS, arguments, plain, rows
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from train import GRID, HERE
from training import Results, Run, noise

DATA = {
    "shared": "shared data",
    "by speed": "owned, classes go with speed",
    "skewed": "owned, half of the classes each",
    "iid": "owned, alike",
}


def losses(axes: Axes, results: Results, regimes: Sequence[Run]) -> None:
    """What weighting changes in the final loss, by regime, at tuned rates and at the common one."""
    for at, (tuned, label) in enumerate(((True, "tuned rates"), (False, "common rate"))):
        found = [results.ratio(one, "hetgrad", "static", "loss", tuned=tuned) for one in regimes]
        bars = [[100 * (each.mean - each.low) for each in found], [100 * (each.high - each.mean) for each in found]]
        places = [place + 0.25 * (at - 0.5) for place in range(len(regimes))]
        shown = [100 * (each.mean - 1) for each in found]
        axes.errorbar(shown, places, xerr=bars, fmt=MARKERS[at], color=COLOURS[at], markersize=4, linewidth=1, label=label)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(regimes)), [f"{one.data}, {one.speeds}, N = {one.num_nodes}" for one in regimes])
    axes.set_ylim(len(regimes) - 0.5, -0.5)
    plain(axes, title="weighting by samples: final loss", xlabel="change against unweighted means, %, with 95 % intervals")
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=2)


def noises(axes: Axes, results: Results, regimes: Sequence[Run]) -> None:
    """The loss that weighting saves on shared data against the noise that it removes."""
    for at, one in enumerate(one for one in regimes if one.data == "shared"):
        found = results.ratio(one, "static", "hetgrad", "loss")
        at_noise = noise(results.shares(one, "hetgrad"))
        axes.errorbar(
            at_noise,
            found.mean,
            found.bars,
            fmt=MARKERS[at % 7],
            color=COLOURS[at % 7],
            label=f"{one.speeds}, N = {one.num_nodes}",
            capsize=2,
        )
    axes.axhline(1, color=INK, linewidth=0.8)
    plain(
        axes,
        title="shared data: loss and noise",
        xlabel="variance of the unweighted mean, over that of the mean of all samples",
        ylabel="final loss, unweighted over weighted",
    )
    axes.legend(fontsize=7, frameon=False, loc="best")


def whose(axes: Axes, results: Results, regimes: Sequence[Run]) -> None:
    """What each worker's data count."""
    one = next(one for one in regimes if (one.speeds, one.data) == ("1:16", "by speed"))
    for at, method in enumerate(("static", "hetgrad")):
        axes.plot(
            range(one.num_nodes),
            [100 * w for w in results.by_worker(one, method, "weight_shares")],
            color=COLOURS[at],
            marker=MARKERS[at],
            label=method,
        )
    axes.set_ylim(bottom=0)
    plain(
        axes,
        title="owned data, speeds 1:16: whose samples count",
        xlabel="worker, from the slowest to the fastest",
        ylabel="share of all weights, %",
    )
    axes.legend(fontsize=7, frameon=False, loc="best")


def worst(axes: Axes, results: Results, regimes: Sequence[Run]) -> None:
    """Accuracy of the worst class, where classes go with speed."""
    shown = [one for one in regimes if one.data == "by speed" and one.num_nodes == 8]
    for at, method in enumerate(GRID.methods):
        found = [results.numbers(one, method, "worst_class") for one in shown]
        means = [sum(each) / len(each) for each in found]
        axes.plot(range(len(shown)), means, color=COLOURS[at], marker=MARKERS[at], label=method)
        for place, each in enumerate(found):
            axes.plot([place] * len(each), each, ".", color=COLOURS[at], markersize=3, alpha=0.6)
    axes.set_xticks(range(len(shown)), [one.speeds for one in shown])
    plain(axes, title="owned data, classes go with speed", xlabel="speeds", ylabel="accuracy of the worst class")
    axes.legend(fontsize=7, frameon=False, loc="best")


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"), GRID.common)
    regimes = results.regimes()
    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.subplots(2, 2)
    losses(grid[0, 0], results, regimes)
    noises(grid[0, 1], results, regimes)
    whose(grid[1, 0], results, regimes)
    worst(grid[1, 1], results, regimes)
    figure.savefig(folder / "figure.png", dpi=85)


if __name__ == "__main__":
    main()
