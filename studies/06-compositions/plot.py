"""Draw figure.png from results.csv: python plot.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import COLOURS, INK, MARKERS, arguments, plain, rows
from compositions import OF_THE_PAPERS, PLAIN, named
from evaluate import Results, curve
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from train import HERE, Trial


def against(axes: Axes, results: Results, regimes: Sequence[Trial]) -> None:
    """What the search has found, over the papers' methods."""
    for at, name in enumerate(OF_THE_PAPERS):
        found = [results.ratio(one, results.winner(one), str(PLAIN[name])) for one in regimes]
        places = [place + 0.22 * (at - 1) for place in range(len(regimes))]
        bars = np.array([each.bars for each in found])[:, :, 0].T
        axes.errorbar(
            [each.mean for each in found],
            places,
            xerr=bars,
            fmt=MARKERS[at],
            color=COLOURS[at],
            markersize=4,
            linewidth=1,
            label=f"over {name}",
        )
    axes.axvline(1, color=INK, linewidth=0.8)
    ticks(axes, regimes)
    plain(axes, title="what each search found, over the papers' methods", xlabel="ratio of final losses, with 95 % intervals")
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=3)


def everywhere(axes: Axes, results: Results, regimes: Sequence[Trial]) -> None:
    """Each winner in all regimes, over the best plain method of each."""
    made = [one for one in results.compositions() if one not in map(str, PLAIN.values())]
    width = 0.8 / max(1, len(made))
    for at, composition in enumerate(made):
        found = [results.ratio(one, composition, results.best_plain(one)) for one in regimes]
        places = [place + width * (at - (len(made) - 1) / 2) for place in range(len(regimes))]
        bars = np.array([each.bars for each in found])[:, :, 0].T
        style = {"fmt": MARKERS[at % 7], "color": COLOURS[at % 7], "markersize": 4, "linewidth": 1}
        axes.errorbar([each.mean for each in found], places, xerr=bars, label=named(composition), **style)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 0.7, 1, 1.5, 2, 3, 5, 10])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    ticks(axes, regimes)
    plain(axes, title="DANA and each winner, over the best plain method", xlabel="ratio of final losses, with 95 % intervals")
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2)


def ticks(axes: Axes, regimes: Sequence[Trial]) -> None:
    axes.set_yticks(range(len(regimes)), [f"{one.data}, {one.speeds}" for one in regimes])
    axes.set_ylim(len(regimes) - 0.5, -0.5)
    for place in range(1, len(regimes)):
        axes.axhline(place - 0.5, color="#e6e8eb", linewidth=0.6)


def learning(axes: Axes, results: Results, regime: Trial) -> None:
    """Losses over time, of the plain methods and of what was found; geometric means over seeds."""
    shown = [*map(str, PLAIN.values()), results.winner(regime)]
    for at, composition in enumerate(shown):
        found = [curve(row) for row in results.runs(regime, composition)]
        shares = np.linspace(0, 1, 21)
        logs = [np.interp(shares, *np.array([(share, np.log(loss)) for share, loss in each]).T) for each in found]
        last = at == len(shown) - 1
        style = {"linewidth": 2.4 if last else 1.2, "color": INK if last else COLOURS[at], "linestyle": "-" if last else "--"}
        axes.plot(shares, np.exp(np.mean(logs, axis=0)), label=named(composition), marker=MARKERS[at], markevery=4, markersize=4, **style)
    axes.set_yscale("log")
    axes.set_yticks([0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    plain(
        axes,
        title=f"{regime.data}, {regime.speeds}: what was found, and the plain methods",
        xlabel="share of the time",
        ylabel="training loss",
    )
    axes.legend(fontsize=7, frameon=False, loc="lower left")


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"))
    regimes = results.regimes()
    figure = Figure(figsize=(11, 9), layout="constrained")
    grid = figure.subplots(2, 2)
    against(grid[0, 0], results, regimes)
    everywhere(grid[0, 1], results, regimes)
    for axes, regime in zip(grid[1], regimes[-2:], strict=False):
        learning(axes, results, regime)
    figure.savefig(folder / "figure.png", dpi=85)


if __name__ == "__main__":
    main()
