"""Draw figure.png: measured and predicted throughputs of each series, with one server and with two.

python plot.py [--folder FOLDER]    # from predictions.csv, second_server.csv and second_server_compared.csv
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
INK, PREDICTED, TWO, WHOLE, FADED = "#2b2f36", "#3b6ea5", "#b5542c", "#2e7d5b", "#9aa1ab"
BAND: dict[str, Any] = {"alpha": 0.2, "linewidth": 0}


def rows(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows of a CSV file by series, without its comments."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found.setdefault((row["gpu"], row["model"]), []).append(row)
    return found


def column(of: list[dict[str, str]], name: str) -> list[float]:
    """Its numbers."""
    return [float(row[name]) for row in of]


def draw_series(axes: Axes, measured: list[dict[str, str]], predicted: list[dict[str, str]]) -> None:
    """Dots with their windows' standard deviations, the prediction with its interval, and min(N·x₁, x₈)."""
    workers, rates = column(measured, "num_workers"), column(measured, "steps_per_second_mean")
    constant = [min(n * rates[0], rates[-1]) for n in workers]
    axes.plot(workers, constant, color=FADED, linestyle=":", label="min(N·x₁, x₈)")
    inner = column(predicted, "num_workers")
    axes.fill_between(inner, column(predicted, "low"), column(predicted, "high"), color=PREDICTED, label="90 % interval", **BAND)
    axes.plot(inner, column(predicted, "predicted"), color=PREDICTED, label="predicted")
    axes.errorbar(workers, rates, column(measured, "steps_per_second_sd"), color=INK, fmt="o", markersize=3, label="measured")
    axes.plot([1, 8], [rates[0], rates[-1]], "o", color=INK, markersize=7, fillstyle="none", linestyle="none", label="calibrated on")


def draw_servers(axes: Axes, predicted: list[dict[str, str]], compared: list[dict[str, str]]) -> None:
    """One server and two, measured; two as predicted before, and by the rule that deals out whole variables."""
    workers = column(predicted, "num_workers")
    axes.fill_between(workers, column(predicted, "low"), column(predicted, "high"), color=TWO, label="interval (committed)", **BAND)
    axes.plot(workers, column(predicted, "two_servers"), color=TWO, label="two servers, halves (committed)")
    axes.plot(workers, column(compared, "dealt_out"), color=WHOLE, linestyle="--", label="two servers, whole variables")
    axes.plot(workers, column(compared, "measured"), "o", color=INK, markersize=3, label="two servers, measured")
    axes.plot(workers, column(predicted, "one_server_measured"), "o", color=FADED, markersize=3, label="one server, measured")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write figure.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=HERE, help="where the CSV files are")
    folder = parser.parse_args(arguments).folder
    measured = rows(HERE / "async_ps_throughput.csv")
    predicted, servers, compared = (rows(folder / f"{name}.csv") for name in ("predictions", "second_server", "second_server_compared"))
    figure = Figure(figsize=(11, 7.7), layout="constrained")
    grid = figure.subplots(3, 4, sharex=True)
    for axes, series in zip(grid[:2].flat, measured, strict=True):
        draw_series(axes, measured[series], predicted[series])
    for axes, series in zip(grid[2], servers, strict=True):
        draw_servers(axes, servers[series], compared[series])
    titles = [*measured, *((gpu, f"{model}, two servers") for gpu, model in servers)]
    for axes, title in zip(grid.flat, titles, strict=True):
        axes.set_title(" ".join(title), fontsize=9)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    for axes in grid[2]:
        axes.set_xlabel("workers", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("steps/s", fontsize=8)
    grid[1, 0].legend(fontsize=7, frameon=False, loc="lower right")
    figure.legend(*grid[2, 0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center", ncols=5)
    figure.savefig(folder / "figure.png", dpi=90)


if __name__ == "__main__":
    main()
