"""Draw figure.png from results.csv: python plot.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

from cases import HERE
from common import COLOURS, FADED, INK, MARKERS, Row, arguments, interval, plain, ratio, rows, where
from evaluate import NAMES, NEEDED, alone, communication, costs, rates, values
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CLAIM = {"color": FADED, "alpha": 0.5, "linewidth": 0}
TITLES = {"unequal": "nodes of unequal speed", "stragglers": "one node in 100 is a straggler"}
STYLE = {"markersize": 3.5, "linewidth": 1, "capsize": 2}


def scaling(axes: Axes, found: Sequence[Row], regime: str) -> None:
    """Speed-up over one node by number of nodes."""
    part = where(found, part="scaling", regime=regime)
    sizes = values(part, "num_nodes")
    axes.plot([int(size) for size in sizes], [int(size) for size in sizes], color=FADED, linewidth=1, label="one per node")
    for colour, marker, (method, name) in zip(COLOURS, MARKERS, NAMES.items(), strict=True):
        shown = [(int(size), where(part, method=method, num_nodes=size)) for size in sizes]
        means = [(size, interval([rate / alone() for rate in rates(runs)])) for size, runs in shown if runs]
        bars = list(zip(*((mean.mean - mean.low, mean.high - mean.mean) for _, mean in means), strict=True))
        axes.errorbar([size for size, _ in means], [mean.mean for _, mean in means], bars, color=colour, marker=marker, label=name, **STYLE)
    axes.set(xscale="log", yscale="log")
    plain(axes, title=f"{TITLES[regime]}, a model of 4 MB", xlabel="nodes", ylabel="samples/s over one node's")


def crossing(axes: Axes, found: Sequence[Row]) -> None:
    """ASGD's samples per second over those of an all-reduce, by the machines of its server."""
    for at, nbytes in enumerate(("400000.0", "4000000.0", "40000000.0")):
        part = where(found, part="crossing", regime="equal", nbytes=nbytes)
        for line, shards in zip(("-", "--", ":"), ("1", "4", "16"), strict=True):
            sizes = values(where(part, shards=shards, method="asgd"), "num_nodes")
            pairs = [(where(part, shards=shards, method="asgd", num_nodes=n), where(part, method="ssgd", num_nodes=n)) for n in sizes]
            means = [ratio(rates(ours), rates(theirs)).mean for ours, theirs in pairs]
            axes.plot([int(n) for n in sizes], means, color=COLOURS[at], linestyle=line, linewidth=1.2)
        axes.plot([], [], color=COLOURS[at], label=f"{float(nbytes) / 1e6:g} MB")
    for line, shards in zip(("-", "--", ":"), (1, 4, 16), strict=True):
        axes.plot([], [], color=INK, linestyle=line, label=f"server of {shards}")
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    plain(axes, title="ASGD over an all-reduce, equal nodes", xlabel="nodes", ylabel="ratio of samples/s")


def thirty(axes: Axes, found: Sequence[Row]) -> None:
    """Speed-up of n-softsync with 30 learners, all n."""
    part = where(found, part="thirty")
    axes.axhspan(22, 28, label="published, 22 to 28", **CLAIM)
    for colour, marker, shards in zip(COLOURS, MARKERS, values(part, "shards"), strict=False):
        for method, line in (("softsync 1", "-"), ("softsync 30", "--"), ("ssgd_server", ":")):
            runs = where(part, shards=shards, method=method)
            sizes = values(runs, "nbytes")
            means = [interval([rate / alone(128) for rate in rates(where(runs, nbytes=size))]).mean for size in sizes]
            label = f"server of {shards}" if line == "-" else None
            axes.plot(
                [communication(size) for size in sizes], means, line, color=colour, marker=marker, markersize=3, linewidth=1, label=label
            )
    for line, name in (("-", "n = 1"), ("--", "n = 30"), (":", "SSGD")):
        axes.plot([], [], line, color=INK, label=name)
    axes.set(xscale="log")
    plain(axes, title="n-softsync with 30 learners", xlabel="pull and push over a gradient's time", ylabel="speed-up over one learner")


def allocation(axes: Axes, found: Sequence[Row]) -> None:
    """Gains of splits over equal batches."""
    part = where(found, part="allocation")
    cases = [(regime, num) for regime in values(part, "regime") for num in values(where(part, regime=regime), "num_nodes")]
    axes.axvspan(38, 54, label="LB-BSP, published", **CLAIM)
    axes.axvline(0, color=INK, linewidth=0.8)
    for at, method in enumerate(("lb_bsp", "dbs", "optperf")):
        means = []
        for regime, num in cases:
            here = where(part, regime=regime, num_nodes=num)
            means.append(ratio(rates(where(here, method=method)), rates(where(here, method="ssgd"))))
        places = [place + 0.22 * (at - 1) for place in range(len(cases))]
        bars = [[100 * (m.mean - m.low) for m in means], [100 * (m.high - m.mean) for m in means]]
        shown = [100 * (m.mean - 1) for m in means]
        axes.errorbar(shown, places, xerr=bars, fmt=MARKERS[at], color=COLOURS[at], label=method, markersize=4, linewidth=1)
    axes.set_yticks(range(len(cases)), [f"{regime}, {num}" for regime, num in cases])
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=100)
    axes.set_xticks([-50, 0, 50, 100, 500], ["−50", "0", "50", "100", "500"])
    plain(axes, title="splits behind a barrier, settled", xlabel="gain in samples/s over equal batches, %")
    axes.tick_params(axis="y", labelsize=7)


def waiting(axes: Axes, found: Sequence[Row]) -> None:
    """The time of the best m over the least possible, by the gradients that a step needs."""
    for colour, marker, regime in zip(COLOURS, MARKERS, values(where(found, part="waiting"), "regime"), strict=False):
        for word, line in (("m_sync", "-"), ("m_stops", ":")):
            means = [ratio(costs(found, regime, (word,), s), costs(found, regime, ("stops",), s)).mean for s in NEEDED]
            label = regime if word == "m_sync" else None
            axes.plot(range(len(NEEDED)), means, line, color=colour, marker=marker, markersize=4, linewidth=1.2, label=label)
    axes.plot([], [], ":", color=INK, label="late ones stopped")
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(NEEDED)), [f"{needed:g}" for needed in NEEDED])
    plain(axes, title="the fastest m of 64, best m", xlabel="gradients that a step needs, over N", ylabel="time over the least possible")


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    found = rows(folder / "results.csv")
    figure = Figure(figsize=(12, 7.5), layout="constrained")
    grid = figure.subplots(2, 3)
    scaling(grid[0, 0], found, "unequal")
    scaling(grid[0, 1], found, "stragglers")
    crossing(grid[0, 2], found)
    thirty(grid[1, 0], found)
    allocation(grid[1, 1], found)
    waiting(grid[1, 2], found)
    for axes, place in ((grid[0, 0], "upper left"), (grid[0, 2], "lower left"), (grid[1, 0], "lower left")):
        axes.legend(fontsize=6.5, frameon=False, loc=place)
    grid[1, 1].legend(fontsize=6.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=4)
    grid[1, 2].legend(fontsize=6.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=3)
    figure.savefig(folder / "figure.png", dpi=80)


if __name__ == "__main__":
    main()
