"""One page with the result of a calibration: for each node, the fit over the measurements, and the remaining noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.calibration.fit import GradientTimes
from hetsim.calibration.noise import Noise

MAX_NODES = 12
"""The maximum number of rows. The title contains the number of nodes that are left out."""
FITTED, HELD_OUT, FIT, INK = "#0072b2", "#d55e00", "#555555", "#333333"
"""Colours of the palette of Okabe and Ito, which colour-blind people can distinguish. Markers differ, too."""
SMALL = 9


def page(name: str, steps: Sequence[GradientTimes]) -> Any:
    """A figure with a row for each node: left its gradients' seconds by samples, right the quantiles of their noise."""
    from matplotlib.figure import Figure

    shown = list(steps[:MAX_NODES])
    figure = Figure(figsize=(9, 0.9 + 2.1 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 2, squeeze=False)
    for rank, (times, (left, right)) in enumerate(zip(shown, rows, strict=True)):
        _fit(left, rank, times)
        _noise(right, times.noise)
        for axes in (left, right):
            axes.tick_params(labelsize=SMALL, labelcolor=INK, color=INK)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    rows[-1][0].set_xlabel("samples of a gradient", fontsize=SMALL, color=INK)
    rows[-1][1].set_xlabel("share of the gradients with at most this time", fontsize=SMALL, color=INK)
    rest = f", the first {len(shown)} of {len(steps)} nodes" if len(shown) < len(steps) else ""
    figure.suptitle(f"{name}: calibrated gradients{rest}", fontsize=11, color=INK, parse_math=False)
    handles = {label: handle for row in rows for axes in row for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False, fontsize=SMALL)
    return figure


def _fit(axes: Any, rank: int, steps: GradientTimes) -> None:
    """The mean times of each size, and the fit through the sizes that were not held out."""
    fitted = dict(steps.table)
    sizes = np.linspace(0, steps.sizes[1] * 1.04, 200)
    axes.plot(sizes, [1e3 * steps.seconds(size) for size in sizes], color=FIT, lw=1.5, label="prediction", zorder=1)
    for label, colour, marker, kept in (("fitted to", FITTED, "o", True), ("held out", HELD_OUT, "^", False)):
        points = [(size, 1e3 * seconds) for size, seconds in steps.means if (size in fitted) is kept]
        if points:
            axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=32, label=f"mean, {label}", zorder=2)
    axes.set_xlim(0, None)
    axes.set_ylim(0, 1.1e3 * max(*(seconds for _, seconds in steps.means), steps.seconds(steps.sizes[1])))
    axes.set_ylabel("CPU time, ms", fontsize=SMALL, color=INK)
    kind = "table" if steps.takes_table else "line"
    axes.set_title(f"node {rank}: {kind}, {100 * steps.error:.1f} % off the held-out means", fontsize=SMALL, color=INK, loc="left")


def _noise(axes: Any, noise: Noise) -> None:
    """The quantiles of the factors, and of a gamma distribution with the same standard deviation."""
    from scipy.special import gammaincinv

    probabilities = np.linspace(0.005, 0.995, 199)
    axes.plot(probabilities, np.quantile(noise.factors or (1.0,), probabilities), color=FITTED, lw=2, label="measured residuals", zorder=2)
    if noise.deviation > 0:
        variance = noise.deviation**2
        axes.plot(
            probabilities, variance * gammaincinv(1 / variance, probabilities), color=HELD_OUT, lw=1.5, ls="--", label="gamma law", zorder=3
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, None)
    axes.set_ylabel("time / mean of its size", fontsize=SMALL, color=INK)
    law = "measured" if noise.takes_measured else "gamma"
    axes.set_title(
        f"deviation {100 * noise.deviation:.1f} %, autocorrelation {noise.autocorrelation:.2f}; law: {law}",
        fontsize=SMALL,
        color=INK,
        loc="left",
    )
