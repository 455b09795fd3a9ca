"""Timelines and curves: what they show of a run, and that none is empty or makes Matplotlib complain."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from worlds import experiment

from hetsim.answers.files import write_pictures
from hetsim.files.summary_and_curve import read_points, read_summary
from hetsim.results.comparison.answer import answer
from hetsim.results.comparison.findings import compare
from hetsim.results.reading.intervals import after_last_entry, read_intervals
from hetsim.results.writing.figures import BELOW, DRAWN, curves, timeline
from hetsim.sim import Simulator

pytestmark = pytest.mark.slow

SMALL = {"workload": {"num_parameters": 300_000, "num_samples": 2000}, "trace": "full", "pictures": True}
MANY = {"name": "many", "nodes": [{"count": 31, "seconds_per_sample": 1e-3, "overhead_seconds": 0.0}, {"count": 1, "table": [[1, 0.1]]}]}


def ran(folder: Path, *choices: str, **keys: Any) -> Path:
    """The folder of a timing-only run."""
    Simulator().run(experiment(*choices, "workload=phantom", budget={"updates": 60}, **{**SMALL, **keys}), folder, "{}\n")
    return folder


def drawn(folder: Path) -> Any:
    """The axes of its timeline, drawn with every warning an error."""
    size = read_summary(folder)["num_workers"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = timeline([("a run", read_intervals(folder / "trace.parquet", num_workers=size))], num_workers=size)
        figure.canvas.draw()
    return figure


def bars(figure: Any, kind: str) -> list[tuple[float, float, float, float]]:
    """The bars of a kind, as (left, bottom, right, top), from above."""
    from matplotlib.colors import to_rgba

    colour = to_rgba(DRAWN[kind].colour)
    boxes = [
        path.get_extents().extents
        for collection in figure.axes[0].collections
        if len(collection.get_facecolor()) and tuple(collection.get_facecolor()[0]) == colour
        for path in collection.get_paths()
    ]
    return sorted((float(left), float(bottom), float(right), float(top)) for left, bottom, right, top in boxes)


METHODS = {
    "asgd": ("method=asgd",),
    "ssgd": ("method=ssgd",),
    "od_sgd": ("method=od_sgd", "coordination.warm_up=0"),
    "pipe_sgd": ("method=pipe_sgd", "coordination.warm_up=0"),
    "local_sgd": ("method=local_sgd",),
    "dbs": ("method=dbs", "allocation=dbs"),
}


@pytest.mark.parametrize("size", [4, 32])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sampled(2)
def test_a_timeline_shows_communication_beside_computing(method: str, size: int, tmp_path: Path) -> None:
    """In the lower part of a lane, so that nothing covers anything; every rank that communicates in time does so in its lane."""
    keys: dict[str, Any] = {} if size == 4 else {"cluster": {**experiment_cluster(), **MANY}, "batch_size": 256}
    figure = drawn(ran(tmp_path, *METHODS[method], **keys))

    computing, communicating = bars(figure, "gradient"), [*bars(figure, "message"), *bars(figure, "all_reduce")]
    assert len({round(bottom) for _, bottom, _, _ in computing}) == size
    assert len({round(bottom) for _, bottom, _, _ in communicating}) >= size
    tops, bottoms = {round(top % 1, 6) for *_, top in computing}, {round(bottom % 1, 6) for _, bottom, _, _ in communicating}
    assert tops == {0.16}
    assert bottoms == {BELOW[0]}
    words = {text.get_text() for text in figure.legends[0].get_texts()}
    assert words >= {"gradient", "waiting", "message" if method in ("asgd", "od_sgd") else "all-reduce"}


def experiment_cluster() -> dict[str, Any]:
    """The network and the server of mixed4."""
    return {"network": {"latency_seconds": 1e-3, "bytes_per_second": 125e6}, "server": {"seconds_per_update": 1e-3}}


def test_an_all_reduce_is_drawn_from_its_last_entry_on() -> None:
    """Before that a rank waits in it. One that wakes up late, after another has entered the next one, is in the same as that one."""
    entered = {0: [(1.0, 6.0), (6.0, 12.0)], 1: [(5.0, 6.2), (11.0, 12.0)], 2: [(2.0, 6.0), (6.1, 12.0)]}

    assert after_last_entry(entered, until=11.5) == {
        0: [(5.0, 6.0), (11.0, 12.0)],
        1: [(5.0, 6.2), (11.0, 12.0)],
        2: [(5.0, 6.0), (11.0, 12.0)],
    }
    assert after_last_entry({0: [(1.0, 2.0)], 1: [(5.0, 6.0)]}, until=9.0) == {0: [(1.0, 2.0)], 1: [(5.0, 6.0)]}, "1 was absent"


def test_a_timeline_of_local_steps_reaches_to_the_first_average(tmp_path: Path) -> None:
    """Ten steps are more than the first six, and an average that is not much later is worth seeing."""
    figure = drawn(ran(tmp_path, "method=local_sgd"))

    ends = [right for _, _, right, _ in bars(figure, "all_reduce")]
    assert ends
    assert min(ends) < figure.axes[0].get_xlim()[1]


def test_a_timing_only_run_has_no_curve(tmp_path: Path) -> None:
    """Nor do two that are compared: an empty picture says nothing."""
    one, other = ran(tmp_path / "one", "method=ssgd"), ran(tmp_path / "other", "method=asgd")

    write_pictures(answer(compare([one], [other])), tmp_path / "pictures", "hetsim-compare")

    assert sorted(path.name for path in one.glob("*.png")) == ["timeline.png"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["timeline.png"]
    assert curves([("a run", [read_points(one)])], title="nothing") is None


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ([(2.0, 0.1), (1.0, 0.5)], ["training loss", "test accuracy"]),
        ([(2.0, None), (1.0, None)], ["training loss"]),
        ([(None, 0.1), (None, 0.5)], ["test accuracy"]),
    ],
)
def test_curves_have_a_panel_for_each_number_that_a_run_has(rows: list[tuple[float | None, float | None]], labels: list[str]) -> None:
    """Of a run, or of one and of repeats, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = [(float(second), {"train_loss": loss, "test_accuracy": accuracy}) for second, (loss, accuracy) in enumerate(rows)]
        for runs in ([("one", [points])], [("one", [points]), ("other", [points, points])]):
            figure = curves(runs, title="curves")
            figure.canvas.draw()

            assert [axes.get_ylabel() for axes in figure.axes] == labels


def test_the_whole_run_makes_matplotlib_complain_of_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a trace there is no timeline, and so no picture of a timing-only run."""
    ran(tmp_path, "method=ssgd", trace="none")

    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.glob("*.png")) == []


BACKENDS = ("module://matplotlib_inline.backend_inline", "module://nowhere", "nonsense", "svg")
DRAWING = """
import os, sys
import hetsim, hetsim.config.start, hetsim.sim.backend

for place, backend in enumerate(sys.argv[1:]):
    if os.fork() == 0:  # before anything imports Matplotlib
        os.environ["MPLBACKEND"] = backend
        hetsim.run("workload=phantom", "budget.epochs=null", "budget.updates=5", "method=ssgd", folder=f"run{place}")
        import matplotlib
        print(os.environ["MPLBACKEND"], matplotlib.get_backend(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_pictures_are_drawn_whatever_the_environment_says(tmp_path: Path) -> None:
    """A notebook's kernel hands its backend to each command that it starts. The user's own figures keep it, if it exists."""
    done = subprocess.run([sys.executable, "-c", DRAWING, *BACKENDS], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert [(tmp_path / f"run{place}" / "timeline.png").exists() for place in range(len(BACKENDS))] == [True] * len(BACKENDS)
    variables, used = zip(*map(str.split, done.stdout.splitlines()), strict=True)
    assert variables == BACKENDS
    assert used[-1] == "svg"
