"""Draw figure.png from results.csv: python plot.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

from cases import HERE, INTERVAL, MIXES
from common import COLOURS, INK, MARKERS, Row, arguments, plain, rows, where
from evaluate import NAMES, mean, numbers, values
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter


def prices(axes: Axes, found: Sequence[Row], trace: str) -> None:
    """Dollars and hours of each job, and the means of each method."""
    for colour, mix in zip(COLOURS, MIXES, strict=False):
        for marker, (method, name) in zip(MARKERS, NAMES.items(), strict=True):
            runs = where(found, trace=trace, method=method, mix=mix, interval=INTERVAL)
            axes.scatter(numbers(runs, "hours"), numbers(runs, "dollars"), s=6, color=colour, alpha=0.3, linewidth=0)
            shown = axes.scatter(
                mean(runs, "hours"), mean(runs, "dollars"), s=34, color=colour, marker=marker, edgecolor=INK, linewidth=0.4
            )
            if mix == "on demand":
                shown.set_label(name)
        axes.scatter([], [], s=34, color=colour, label=mix)
    axes.set(xscale="log", ylim=(0, None))
    low, high = axes.get_xlim()
    axes.set_xticks([hours for hours in (1, 2, 5, 10, 20, 50, 100) if low < hours < high])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    plain(axes, title=f"trace of {trace}: means of methods, and each job", xlabel="hours", ylabel="dollars")


def intervals(axes: Axes, found: Sequence[Row]) -> None:
    """Dollars by the time between checkpoints, over those of the cheapest interval."""
    part = where(found, method="ssgd_torchrun", mix="spot")
    for colour, marker, trace in zip(COLOURS, MARKERS, values(part, "trace"), strict=False):
        times = sorted(values(part, "interval"), key=float)
        paid = [mean(where(part, trace=trace, interval=time), "dollars") for time in times]
        axes.plot([float(time) / 60 for time in times], [each / min(paid) for each in paid], color=colour, marker=marker, label=trace)
    axes.set(xscale="log")
    axes.set_xticks([float(time) / 60 for time in values(part, "interval")])
    axes.xaxis.set_major_formatter("{x:g}")
    plain(axes, title="torchrun's restarts, spot nodes alone", xlabel="minutes between checkpoints", ylabel="dollars over the least")


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    found = rows(folder / "results.csv")
    traces = values(found, "trace")
    figure = Figure(figsize=(4.4 * (len(traces) + 1), 4.2), layout="constrained")
    axes = figure.subplots(1, len(traces) + 1)
    for each, trace in zip(axes, traces, strict=False):
        prices(each, found, trace)
    intervals(axes[-1], found)
    axes[0].legend(fontsize=6.5, frameon=False)
    axes[-1].legend(fontsize=6.5, frameon=False)
    figure.savefig(folder / "figure.png", dpi=80)


if __name__ == "__main__":
    main()
