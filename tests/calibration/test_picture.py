"""The page of a calibration shows what was measured and what was fitted to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from test_fit import HELD_OUT, SIZES, readings
from test_noise import normalised

from hetsim.answers.html import document
from hetsim.calibration.cluster import Calibrated
from hetsim.calibration.fit import GradientTimes
from hetsim.calibration.measuring.answer import answer
from hetsim.calibration.noise import Noise
from hetsim.calibration.picture import MAX_NODES
from hetsim.calibration.picture import page as picture
from hetsim.results.writing.figures import own_style

FAST = GradientTimes.fit(readings(lambda size: 2e-3 + size * 1e-4, deviation=0.1), SIZES)


WITH_MODES = replace(FAST, noise=Noise.fit(normalised([1.0, 1.0, 1.0, 1.0, 2.0] * 100)))
"""Whose texts are the longest."""


def drawn(*steps: GradientTimes) -> Figure:
    """A page of these nodes."""
    with own_style():
        figure = picture("lab", steps)
        figure.draw_without_rendering()
    assert isinstance(figure, Figure)
    return figure


def test_points_lie_where_they_were_measured_and_the_fit_passes_by() -> None:
    """Held-out sizes and fitted ones apart; the law of noise beside its factors, with its deviation in words."""
    fit, noise = drawn(FAST).axes
    fitted, held_out = ([*map(tuple, points.get_offsets())] for points in fit.collections)

    assert [size for size, _ in fitted] == SIZES
    assert [size for size, _ in held_out] == HELD_OUT
    assert dict(fitted)[64] == pytest.approx(8.4, rel=0.1)
    assert fit.lines[0].get_ydata()[-1] == pytest.approx(2 + 128 * 1.04 * 0.1, rel=0.1)
    assert [line.get_label() for line in noise.lines] == ["measured residuals", "gamma law"]
    assert noise.get_title(loc="left").startswith("deviation 9.7 %, autocorrelation 0.06")
    assert fit.get_ylabel() == "CPU time, ms"
    assert fit.get_xlabel() == "samples of a gradient"


def test_a_calibration_is_a_page_with_the_file_that_it_wrote(tmp_path: Path) -> None:
    """The error, a row for each node, and why it is not to be trusted."""
    file = tmp_path / "lab.yaml"
    file.write_text("name: lab  # <b>\n")

    config = {"hosts": {}, "network": {"latency_seconds": 1e-6, "bytes_per_second": 1e9}}
    result = Calibrated(config, [FAST, WITH_MODES], doubts=["node 1 was <busy>"], tried={"ssgd": -0.02})

    page = document(answer(file, result, "hetsim-calibrate lab.yaml"), "hetsim-calibrate")

    assert f"held-out batch sizes: {100 * FAST.error:.1f} %" in page.replace("&nbsp;", " ")
    assert "against real runs: ssgd -2.0 %" in page.replace("&nbsp;", " ")
    assert "Not trustworthy: node 1 was &lt;busy&gt;." in page
    assert "name: lab  # &lt;b&gt;" in page
    assert page.count("<tr>") == 3
    assert page.count("<svg") == 1


def test_no_text_covers_another() -> None:
    """Titles, labels, ticks and the legend, of a page of several rows."""
    figure = drawn(*[WITH_MODES] * 3)
    texts = [
        figure._suptitle,
        *(text for axes in figure.axes for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)),
    ]
    for axes in figure.axes:
        texts += [label for label in axes.get_xticklabels() if label.get_position()[0] <= axes.get_xlim()[1]]
        texts += [label for label in axes.get_yticklabels() if label.get_position()[1] <= axes.get_ylim()[1]]
    boxes = [text.get_window_extent() for text in texts if text is not None and text.get_text()]
    boxes += [legend.get_window_extent() for legend in figure.legends]

    assert len(boxes) > 40
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert not [(one, other) for place, one in enumerate(boxes) for other in boxes[:place] if one.overlaps(other)]


@pytest.mark.slow
def test_a_page_of_many_nodes_says_what_it_leaves_out() -> None:
    figure = drawn(*[FAST] * (MAX_NODES + 1))

    assert len(figure.axes) == 2 * MAX_NODES
    assert figure._suptitle is not None
    assert figure._suptitle.get_text().endswith(f"the first {MAX_NODES} of {MAX_NODES + 1} nodes")


def test_gradients_without_noise_are_drawn() -> None:
    exact = GradientTimes.fit(readings(lambda size: 2e-3 + size * 1e-4, repeats=1), SIZES)

    assert len(drawn(exact).axes) == 2
