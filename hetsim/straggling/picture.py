"""The heat map of a job: for each rank and step, the factor on the median rank's usual step."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetsim.results.writing.figures import INK, WAIT, own_style
from hetsim.straggling.job import Floats
from hetsim.straggling.judging import Found

MOST_RANKS, MOST_STEPS = 256, 300
"""The maximum number of cells of the picture. With more ranks or steps, each cell shows the slowest of several."""
DARKEST = 4.0
"""The factor from which the colour does not change."""


@own_style()
def picture(found: Found) -> Any:
    """A figure with a panel for computing, and one for links if the job has any."""
    from matplotlib.figure import Figure

    panels = {"computing": found.computing.heat} | ({} if found.links is None else {"links": found.links.heat})
    num_ranks = found.job.num_ranks
    figure = Figure(figsize=(9, 1.2 + len(panels) * (0.7 + min(4.0, 0.22 * num_ranks))), layout="constrained")
    rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (name, heat) in zip(rows, panels.items(), strict=True):
        cells = _coarse(_coarse(heat, MOST_STEPS, axis=1), MOST_RANKS, axis=0)
        colours = {"cmap": "RdBu_r", "vmin": -np.log2(DARKEST), "vmax": np.log2(DARKEST)}
        extent = (0, heat.shape[1], num_ranks - 0.5, -0.5)
        shown = axes.imshow(np.log2(cells), extent=extent, aspect="auto", interpolation="none", **colours)
        axes.set_facecolor(WAIT)
        axes.set_ylabel("rank", fontsize=9, color=INK)
        axes.set_title(f"{name}: time divided by the median rank's", fontsize=10, color=INK, loc="left")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(shown, ax=axes, ticks=[-2, -1, 0, 1, 2], format=lambda value, _: f"× {2.0**value:g}")
        bar.ax.tick_params(labelsize=9, labelcolor=INK)
        bar.outline.set_visible(False)
    rows[-1].set_xlabel("step", fontsize=9, color=INK)
    return figure


def _coarse(heat: Floats, most: int, *, axis: int) -> Floats:
    """At most `most` cells along this axis, each with the largest value of its part; NaN if no value is known."""
    size = heat.shape[axis]
    begins = np.linspace(0, size, min(most, size) + 1).astype(int)[:-1]
    largest: Floats = np.maximum.reduceat(np.where(np.isfinite(heat), heat, -np.inf), begins, axis=axis)
    return np.where(np.isfinite(largest), largest, np.nan)
