"""Draw figure.png from results.csv: python plot.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cases import HERE, Run
from common import COLOURS, INK, MARKERS, Interval, arguments, interval, plain, rows
from evaluate import NAMES, Results, local_losses, varied
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LINES = (
    ("1:1", "private", "od_sgd", "1:1"),
    ("1:1", "shared", "od_sgd", "1:1, the server's link shared"),
    ("1:4", "private", "od_sgd", "1:4"),
    ("straggler", "private", "od_sgd", "straggler"),
    ("1:4", "private", "od_sgd split", "1:4, split by speed"),
)
TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50)


def speeds(axes: Axes, results: Results) -> None:
    """Throughput over ASGD's by ratio, for some clusters."""
    timed = [one for one in results.timed() if one.num_nodes == 8]
    for at, (spread, links, method, label) in enumerate(LINES):
        shown = sorted((one for one in timed if (one.speeds, one.links) == (spread, links)), key=lambda one: one.ratio)
        if shown:
            found = [results.ratio(one, method, "asgd", "samples_per_second") for one in shown]
            bars = np.hstack([each.bars for each in found])
            means = [each.mean for each in found]
            style = "--" if "split" in method else "-"
            ratios = [one.ratio for one in shown]
            axes.errorbar(ratios, means, bars, color=COLOURS[at], marker=MARKERS[at], markersize=4, linestyle=style, capsize=2, label=label)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes.minorticks_off()
    plain(axes, title="speed: od_sgd over asgd", xlabel="communication / computing", ylabel="samples per second, ratio")
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def bars(axes: Axes, names: Sequence[str], series: Sequence[tuple[str, Sequence[Interval]]]) -> None:
    """Ratios with their intervals, a row for each name."""
    for at, (label, found) in enumerate(series):
        shown = [each.mean for each in found]
        errors = np.hstack([each.bars for each in found])
        places = [place + 0.28 * (at - (len(series) - 1) / 2) for place in range(len(names))]
        axes.errorbar(shown, places, xerr=errors, fmt=MARKERS[at], color=COLOURS[at], markersize=4, linewidth=1, label=label)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    ticks = [tick for tick in TICKS if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def losses(axes: Axes, results: Results) -> None:
    """Final loss over SSGD's, at tuned settings and at the common one."""
    centre = results.centre()
    shown: list[tuple[str, Run, str, str]] = [("od_sgd", centre, "od_sgd", "ssgd")]
    for one, methods in results.regimes.items():
        if (one.speeds, one.ratio, one.links) == (centre.speeds, centre.ratio, centre.links) and one != centre and "od_sgd" in methods:
            name = ", ".join(
                [*([NAMES[one.workload]] if one.workload != centre.workload else []), *([one.data] if one.data != "shared" else [])]
            )
            shown.append((f"od_sgd, {name or f'{one.epochs} epochs'}", one, "od_sgd", "ssgd"))
    for one, method, base in varied(results):
        if method != "od_sgd" and not method.startswith("asgd") and (one == centre or "pipe" not in method):
            longer = f", {one.epochs} epochs" if one.epochs != centre.epochs else ""
            shown.append((method + longer, one, method, base))
    series = [
        (label, [results.ratio(one, ours, theirs, "loss", best=best) for _, one, ours, theirs in shown])
        for label, best in (("tuned", True), ("common setting", False))
    ]
    bars(axes, [name for name, *_ in shown], series)
    plain(axes, title="final loss over ssgd's, equal epochs", xlabel="ratio of losses, with 95 % intervals")
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(fontsize=7, frameon=False, loc="best")


def local(axes: Axes, results: Results) -> None:
    """Final loss by local rate, 0 for Pipe-SGD."""
    found = local_losses(results)
    if found:
        means = [interval([float(row["loss"]) for row in each]) for _, each in found]
        places = range(len(found))
        axes.errorbar(
            places, [each.mean for each in means], np.hstack([each.bars for each in means]),
            color=COLOURS[0], marker=MARKERS[0], capsize=2, label="rate 0.05",
        )  # fmt: skip
        axes.set_xticks(places, [f"{rate:g}" for rate, _ in found])
    best = np.mean(results.numbers(results.centre(), "ssgd", "loss"))
    axes.axhline(best, color=COLOURS[1], linestyle="--", label="ssgd, tuned")
    axes.set_ylim(bottom=0)
    plain(axes, title="od_sgd by local rate (0: pipe_sgd)", xlabel="local rate", ylabel="final training loss")
    axes.legend(fontsize=7, frameon=False, loc="best")


def in_time(axes: Axes, results: Results) -> None:
    """Loss at equal time over SSGD's and ASGD's, by speeds and ratio."""
    centre = results.centre()
    same = (centre.workload, centre.data, centre.epochs, "private")
    shown = [one for one in results.regimes if (one.workload, one.data, one.epochs, one.links) == same]
    shown.sort(key=lambda one: (one.speeds, one.ratio))
    series = [(f"over {theirs}", [results.ratio(one, "od_sgd", theirs, "loss_at_time") for one in shown]) for theirs in ("ssgd", "asgd")]
    bars(axes, [f"{one.speeds}, ratio {one.ratio:g}" for one in shown], series)
    plain(axes, title="loss of od_sgd at equal time over ssgd's and asgd's, tuned", xlabel="ratio of losses, with 95 % intervals")
    axes.legend(fontsize=7, frameon=False, loc="best")


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"))
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    grid = figure.subplots(2, 2)
    speeds(grid[0, 0], results)
    losses(grid[0, 1], results)
    local(grid[1, 0], results)
    in_time(grid[1, 1], results)
    figure.savefig(folder / "figure.png", dpi=80)


if __name__ == "__main__":
    main()
